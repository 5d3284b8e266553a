"""Events of each type: status, artifact and message, and what they hold."""

from __future__ import annotations

from typing import Any

import msgspec

from ...base import applies, expect, member, shown
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import moment, parts_of, told
from ..suite import check, suite
from ..tasks import STATES
from ..wires import new_id
from .events import events, events_of
from .tasks import stories


def _type_of(ident: str, kind: str, name: str) -> None:
    @check(ident)
    async def what_is_named_so_is_of_the_type(node: Node) -> None:
        await events_of(node, kind)
        for event in (await node.feed()).events:
            if event.name == name:
                got = event.body.get("type")
                expect(got == kind, f"an event named {name} has the type {shown(got)}: {event}")


_type_of("peer.8-3.type", "status", "acp.task.status")
_type_of("peer.8-4.type", "artifact", "acp.task.artifact")


@check("peer.8-5.type")
async def what_carries_a_message_is_of_the_type(node: Node) -> None:
    await events_of(node)
    sent = await node.send(message_id=new_id())
    applies(sent.answer.status == 200, sent.why)
    feed = await node.feed()
    event = await feed.until(lambda event: event.body.get("message_id") == sent.body["message_id"])
    applies(event is not None, "the message was not told as an event")
    assert event is not None
    expect(event.body.get("type") == "message", f"an event about a message has the type {event.body.get('type')!r}")


def _in_state(state: str) -> Source:
    async def play(node: Node) -> list[Any]:
        found = [event for event in await events_of(node, "status") if event.body.get("state") == state]
        applies(found, f"no task was told to be {state}")
        return found

    return msgspec.structs.replace(events("status"), play=play)


_STATUS, _ARTIFACT, _MESSAGE = events("status"), events("artifact"), events("message")
_SECTIONS = {"8-3": _STATUS, "8-4": _ARTIFACT, "8-5": _MESSAGE}
_STATUS_HAS, _MESSAGE_HAS = (
    ("type", "ts", "seq", "task_id", "state"),
    ("type", "ts", "seq", "message_id", "role", "parts"),
)
add(
    suite,
    *(Row(f"peer.{at}.ts", of, "ts", fits=moment) for at, of in _SECTIONS.items()),
    *(Row(f"peer.{at}.seq", of, "seq", int) for at, of in _SECTIONS.items()),
    Row("peer.8-3.state", _STATUS, "state", str),
    Row("peer.8-3.state-values", _STATUS, "state", one_of=STATES),
    *(
        Row(
            f"peer.8-3.example-{state.replace('_', '-')}", _in_state(state),
            has=(*_STATUS_HAS, *(("error",) if state == "failed" else ())),
        )
        for state in STATES
    ),
    Row("peer.8-4.artifact", _ARTIFACT, "artifact", dict),
    Row("peer.8-4.artifact-parts", _ARTIFACT, "artifact.parts", list),
    Row("peer.8-4.example", _ARTIFACT, has=("type", "ts", "seq", "task_id", "artifact")),
    Row("peer.8-4.example", _ARTIFACT, "artifact.parts", fits=parts_of),
    Row("peer.8-5.role", _MESSAGE, "role", one_of=("user", "agent")),
    Row("peer.8-5.parts", _MESSAGE, "parts", fits=parts_of),
    Row("peer.8-5.example", _MESSAGE, has=_MESSAGE_HAS),
)  # fmt: skip


@check("peer.8-3.error", "peer.8-7.s-failed-error")
async def a_failure_says_why(node: Node) -> None:
    story = await stories(node).failed()
    failures = [event for event in story.events if event.body.get("state") == "failed"]
    applies(failures, f"no event told of a failure: {story.trouble}")
    for event in failures:
        expect(member(event.body, "error", str, f"the event {event}"), f"error of the event {event} is empty")


def _context(ident: str, kind: str) -> None:
    @check(ident)
    async def the_context_of_the_task_is_right(node: Node) -> None:
        story = await stories(node).completed()
        given = [e.body["context_id"] for e in story.events if e.body.get("type") == kind and "context_id" in e.body]
        applies([one for one in given if one is not None], f"events of type {kind} have no context_id")
        for one in given:
            expect(
                one == story.body["context_id"], f"an event has the context_id {shown(one)}, and not that of its task"
            )


_context("peer.8-3.context-id", "status")
_context("peer.8-4.context-id", "artifact")


@check("peer.8-5.message-id")
async def a_message_event_names_its_message(node: Node) -> None:
    ids = [member(event.body, "message_id", str, f"the event {event}") for event in await events_of(node, "message")]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    expect(not twice, f"several message events have the message_id {', '.join(twice)}")


@check("peer.8-5.direction")
async def messages_are_told_whichever_way_they_go(node: Node) -> None:
    feed = await node.feed()
    sent = await node.send(message_id=new_id())
    applies(sent.answer.status == 200, sent.why)
    out = await feed.until(lambda event: event.body.get("message_id") == sent.body["message_id"])
    expect(out is not None, f"a message that was sent is not told on GET /stream: {told(sent.answer)}")


def _of_message(ident: str, name: str) -> None:
    @check(ident)
    async def it_is_told_with_the_message(node: Node) -> None:
        feed = await node.feed()
        story = await stories(node).create()
        body = {"task_id": story.id} if name == "task_id" else {"context_id": "ctx_told"}
        sent = await node.send(message_id=new_id(), **body)
        applies(sent.answer.status == 200, f"no message is taken with a {name}: {told(sent.answer)}")
        event = await feed.until(lambda event: event.body.get("message_id") == sent.body["message_id"])
        applies(event is not None and event.body.get(name) is not None, f"a message event has no {name}")
        assert event is not None
        expect(event.body[name] == body[name], f"a message with the {name} {body[name]} is told as {event}")


_of_message("peer.8-5.task-id", "task_id")
_of_message("peer.8-5.context-id", "context_id")
