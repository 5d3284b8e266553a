"""Events of each type: status, artifact and message, and what they hold."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
from ..driver import Node
from ..shapes import moment, parts_of, told
from ..suite import check
from ..tasks import STATES
from ..wires import new_id
from .events import events_of
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


def _time_and_number(section: str, kind: str) -> None:
    @check(f"peer.{section}.ts")
    async def the_event_has_a_time_in_utc(node: Node) -> None:
        for event in await events_of(node, kind):
            moment(event.body.get("ts"), f"ts of the event {event}")

    @check(f"peer.{section}.seq")
    async def the_event_has_its_number(node: Node) -> None:
        for event in await events_of(node, kind):
            member(event.body, "seq", int, f"the event {event}")


_time_and_number("8-3", "status")
_time_and_number("8-4", "artifact")
_time_and_number("8-5", "message")


@check("peer.8-3.state")
async def a_status_has_a_state(node: Node) -> None:
    for event in await events_of(node, "status"):
        member(event.body, "state", str, f"the event {event}")


@check("peer.8-3.state-values")
async def a_state_is_one_of_seven(node: Node) -> None:
    for event in await events_of(node, "status"):
        state = event.body.get("state")
        expect(state in STATES, f"an event has the state {shown(state)}: {event}")


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


def _example(state: str) -> None:
    @check(f"peer.8-3.example-{state.replace('_', '-')}")
    async def the_event_has_the_shape_of_the_example(node: Node) -> None:
        found = [event for event in await events_of(node, "status") if event.body.get("state") == state]
        applies(found, f"no task was told to be {state}")
        wanted = ["type", "ts", "seq", "task_id", "state", *(["error"] if state == "failed" else [])]
        for event in found:
            missing = [name for name in wanted if name not in event.body]
            expect(not missing, f"an event that tells of {state} has no {', '.join(missing)}: {event}")


for _one in STATES:
    _example(_one)


@check("peer.8-4.artifact")
async def an_artifact_is_an_object(node: Node) -> None:
    for event in await events_of(node, "artifact"):
        member(event.body, "artifact", dict, f"the event {event}")


@check("peer.8-4.artifact-parts")
async def an_artifact_has_parts(node: Node) -> None:
    for event in await events_of(node, "artifact"):
        artifact: Any = event.body.get("artifact")
        applies(isinstance(artifact, dict), "artifacts are no objects")
        member(artifact, "parts", list, f"artifact of the event {event}")


@check("peer.8-4.example")
async def an_artifact_has_the_shape_of_the_example(node: Node) -> None:
    for event in await events_of(node, "artifact"):
        missing = [name for name in ("type", "ts", "seq", "task_id", "artifact") if name not in event.body]
        expect(not missing, f"an artifact event has no {', '.join(missing)}: {event}")
        artifact: Any = event.body["artifact"]
        applies(isinstance(artifact, dict), "artifacts are no objects")
        parts_of(artifact.get("parts"), f"the artifact of {event}")


@check("peer.8-5.message-id")
async def a_message_event_names_its_message(node: Node) -> None:
    ids = [member(event.body, "message_id", str, f"the event {event}") for event in await events_of(node, "message")]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    expect(not twice, f"several message events have the message_id {', '.join(twice)}")


@check("peer.8-5.role")
async def a_message_event_has_a_role(node: Node) -> None:
    for event in await events_of(node, "message"):
        role = event.body.get("role")
        expect(role in ("user", "agent"), f"a message event has the role {shown(role)}: {event}")


@check("peer.8-5.parts")
async def a_message_event_has_parts(node: Node) -> None:
    for event in await events_of(node, "message"):
        expect("parts" in event.body, f"a message event has no parts: {event}")
        parts_of(event.body["parts"], f"the event {event}")


@check("peer.8-5.example")
async def a_message_event_has_the_shape_of_the_example(node: Node) -> None:
    for event in await events_of(node, "message"):
        missing = [name for name in ("type", "ts", "seq", "message_id", "role", "parts") if name not in event.body]
        expect(not missing, f"a message event has no {', '.join(missing)}: {event}")


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
