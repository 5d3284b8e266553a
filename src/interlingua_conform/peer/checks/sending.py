"""`POST /message:send`: what is refused, what is taken, and ids."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer

from ...base import Broken, applies, expect, member, shown
from ...remembering import once
from ..driver import Node
from ..shapes import MADE_ID, absent, refused, text, told
from ..suite import check
from ..wires import Frame, new_id

INVALID = "ERR_INVALID_REQUEST"


class Refusals(msgspec.Struct):
    """The answers to wrong bodies, and the frames of those that were sent to the peer all the same."""

    answers: dict[str, Answer]
    leaked: dict[str, Frame]


@once
async def refusals(node: Node) -> Refusals:
    marks = {name: f"wrong {new_id('n')}" for name in ("no role", "null role")}
    said = {"role": "user", "parts": [text("hello")]}
    bodies: dict[str, Any] = {
        "no role": {"parts": [text(marks["no role"])], "message_id": new_id()},
        "null role": {"role": None, "parts": [text(marks["null role"])]},
        "another role": {**said, "role": "system"},
        "a list as role": {**said, "role": ["user"]},
        "nothing at all": {},
        "no content": {"role": "user"},
        "unknown task": {**said, "task_id": new_id("task")},
        "no parts": {**said, "parts": []},
        "parts that are no array": {**said, "parts": "hello"},
        "text that is no text": {**said, "parts": [{"type": "text", "content": 7}]},
        "file without url": {**said, "parts": [{"type": "file", "filename": "report.pdf"}]},
        "file by ftp": {**said, "parts": [{"type": "file", "url": "ftp://127.0.0.1/report.pdf"}]},
        "file with bytes": {**said, "parts": [{"type": "file", "data": "aGVsbG8=", "media_type": "text/plain"}]},
    }  # fmt: skip
    wire, feed = await node.wire_if_any(), await node.feed_if_any()
    found = Refusals({name: await node.post(body) for name, body in bodies.items()}, {})
    await asyncio.sleep(node.subject.quiet)
    for name, mark in marks.items():
        went = [frame for frame in (wire.messages if wire is not None else ()) if mark in json.dumps(frame)]
        went += [event.body for event in (feed.events if feed is not None else ()) if mark in event.data]
        if went:
            found.leaked[name] = went[0]
    return found


def _refuses(*ids: str, wrong: tuple[str, ...]) -> None:
    @check(*ids)
    async def the_body_is_refused(node: Node) -> None:
        seen = await refusals(node)
        for name in wrong:
            refused(seen.answers[name], 400, INVALID, f"POST /message:send with {name}")


_refuses("peer.1-1.role-missing-rejected", "peer.4-2.role-required", wrong=("no role",))
_refuses("peer.1-1.role-invalid-rejected", "peer.4-2.role-values", wrong=("another role",))
_refuses("peer.14.role", "peer.8-7.m8-role", "peer.comparison.role-enforced", wrong=("no role", "another role"))
_refuses("peer.4-2.upgrade-validates", wrong=("a list as role",))
_refuses("peer.4-2.upgrade-no-default", wrong=("null role",))
_refuses("peer.6.invalid-request-fields", wrong=("nothing at all",))
_refuses("peer.4-2.content-required", wrong=("no content",))
_refuses("peer.2-1.content-string", wrong=("text that is no text",))
_refuses("peer.2-2.url-required", wrong=("file without url",))
_refuses("peer.2-2.url-http", wrong=("file by ftp",))
_refuses("peer.2-2.no-inline-bytes", wrong=("file with bytes",))


@check("peer.1-1.role-not-defaulted")
async def a_message_without_role_goes_nowhere(node: Node) -> None:
    await node.sends()
    seen = await refusals(node)
    for name, leaked in seen.leaked.items():
        raise Broken(f"a message with {name} went out as one of {shown(leaked.get('role'))}: {shown(leaked)}")
    answer = seen.answers["no role"]
    applies(not absent(answer), f"POST /message:send is answered with {told(answer)}")
    expect(answer.status != 200, f"a message without role is taken: {told(answer)}")


@check("peer.4-2.task-id-exists")
async def a_task_that_does_not_exist_is_refused(node: Node) -> None:
    answer = (await refusals(node)).answers["unknown task"]
    # A task that does not exist is a wrong request, and something that is not found: both are in the table of codes.
    expect(answer.status in (400, 404), f"a message with an unknown task_id is answered with {told(answer)}")
    code = member(answer.json(), "error_code", str, "the error")
    expect(code in (INVALID, "ERR_NOT_FOUND"), f"a message with an unknown task_id is refused as {code}")


@check("peer.6.invalid-request-body")
async def a_malformed_body_is_refused(node: Node) -> None:
    headers = {"content-type": "application/json"}
    for content in (b'{"role": "user", "parts": [', b"[]"):
        answer = await node.ask("POST", "/message:send", content=content, headers=headers)
        refused(answer, 400, INVALID, f"the body {content.decode()}")


# -- what is taken --------------------------------------------------------------------------------------------


@check("peer.4-1.message-send", "peer.4-2.parts-suffices", "peer.4-2.json-body")
async def the_plainest_message_is_sent(node: Node) -> None:
    sent = await node.basic()
    expect(sent.answer.status == 200, f"POST /message:send of {shown(sent.body)} is answered with {told(sent.answer)}")
    if await node.wire_if_any() is not None:
        expect(sent.frame is not None, f"a message does not come to the connected peer: {sent.why}")


@check("peer.4-2.text-suffices", "peer.2-4.text")
async def a_message_can_be_a_text(node: Node) -> None:
    await node.sends()
    sent = await node.say({"role": "user", "text": "{mark}"})
    expect(sent.answer.status == 200, f"a message with text alone is answered with {told(sent.answer)}")


@check("peer.2-4.normalized")
async def a_text_becomes_a_part(node: Node) -> None:
    await node.sends()
    sent = await node.say({"role": "user", "text": "{mark}"})
    parts, wanted = sent.arrived.get("parts"), [text(sent.body["text"])]
    expect(parts == wanted, f"the short form text becomes {shown(parts)}, not {shown(wanted)}")
    expect("text" not in sent.arrived, f"a message goes out in the short form: {shown(sent.arrived)}")


@check("peer.4-2.content-suffices")
async def a_message_can_be_content(node: Node) -> None:
    await node.sends()
    sent = await node.say({"role": "user", "content": "{mark}"})
    expect(sent.answer.status == 200, f"a message with content alone is answered with {told(sent.answer)}")


@check("peer.0.unknown-fields-ignored")
async def members_of_later_versions_are_ignored(node: Node) -> None:
    if node.api is not None:
        sent = await node.send(a_member_of_a_later_version={"x": [1]})
        expect(sent.answer.status == 200, f"a message with an unknown member is answered with {told(sent.answer)}")
    if await node.wire_if_any() is not None:
        await node.hear(a_member_of_a_later_version={"x": [1]})


@check("peer.7.absence")
async def a_message_needs_no_extension(node: Node) -> None:
    if node.api is not None:
        sent = await node.basic()
        expect(sent.answer.status == 200, f"a message without any extension is answered with {told(sent.answer)}")
    else:
        await node.hear()


@check("peer.4-2.context-id-optional", "peer.7-3.not-enforced")
async def any_text_is_a_context(node: Node) -> None:
    if node.api is not None:
        sent = await node.send(context_id="our second talk")
        expect(sent.answer.status == 200, f"a message with a context_id is answered with {told(sent.answer)}")
    else:
        await node.hear(context_id="our second talk")


@check("peer.1-2.context-id", "peer.7-3.groups")
async def the_context_goes_along(node: Node) -> None:
    if node.api is not None:
        sent = await node.send(context_id="ctx_one")
        applies(sent.answer.status == 200, f"no context_id is taken: {told(sent.answer)}")
        given: Frame = sent.arrived
    else:
        heard = await node.hear(context_id="ctx_one")
        applies(heard.answer is not None, "no agent behind the node answers")
        given = heard.answer or {}
    expect(given.get("context_id") == "ctx_one", f"context_id is lost: {shown(given)}")


# -- ids ------------------------------------------------------------------------------------------------------


@check("peer.1-3.optional-on-input", "peer.4-2.message-id-optional")
async def an_id_need_not_be_given(node: Node) -> None:
    sent = await node.basic()
    applies(sent.answer.status != 503, sent.why)
    expect(sent.answer.status == 200, f"a message without message_id is answered with {told(sent.answer)}")


async def _made_id(node: Node) -> Any:
    sent = await node.send()
    body = sent.answer.json()
    if sent.frame is not None:
        return sent.frame.get("message_id")
    applies(isinstance(body, dict) and "message_id" in body, "the id that the server made is not to be seen")
    return body["message_id"]


@check("peer.1-1.message-id-by-server", "peer.comparison.message-id-optional")
async def the_server_makes_an_id_where_none_is_given(node: Node) -> None:
    made = await _made_id(node)
    expect(isinstance(made, str) and made, f"the message_id of a message without one becomes {shown(made)}")


@check("peer.1-3.auto-generated")
async def ids_of_the_server_have_their_form(node: Node) -> None:
    made = await _made_id(node)
    fits = isinstance(made, str) and MADE_ID.fullmatch(made)
    expect(fits, f"the server makes the message_id {shown(made)}, not msg_ and 16 hexadecimal digits")


@check("peer.1-3.used-as-is")
async def an_id_that_is_given_is_used(node: Node) -> None:
    given = new_id()
    sent = await node.send(message_id=given)
    body = sent.answer.json()
    told_of = {"the answer": body if isinstance(body, dict) else {}, "the message": sent.frame or {}}
    seen = {where: made["message_id"] for where, made in told_of.items() if "message_id" in made}
    applies(seen, "the id that the message has in the end is not to be seen")
    for where, made in seen.items():
        expect(made == given, f"the message_id {given} becomes {shown(made)} in {where}")


@once
async def _twice(node: Node) -> tuple[Answer, list[Frame]]:
    """Sends a message twice under one id. Returns the second answer, and all frames with it that came to the checker's
    peer."""
    wire = await node.wire()
    sent = await node.send(message_id=new_id())
    applies(sent.frame is not None, sent.why)
    again = await node.post(sent.body)
    await asyncio.sleep(node.subject.quiet)
    mark = sent.body["parts"][0]["content"]
    return again, [frame for frame in wire.messages if mark in json.dumps(frame)]


@check("peer.1-3.idempotency")
async def a_message_can_be_sent_again(node: Node) -> None:
    again, came = await _twice(node)
    expect(again.status == 200, f"a message that is sent again is answered with {told(again)}")
    ids = {shown(frame.get("message_id")) for frame in came}
    expect(len(ids) == 1, f"a message that is sent again gets another id, so that nobody knows it again: {sorted(ids)}")


@check("peer.1-3.deduplicate")
async def a_message_that_is_sent_again_may_be_dropped(node: Node) -> None:
    _, came = await _twice(node)
    applies(len(came) == 1, "the server does not drop what was sent before, which it need not")


# -- priority -------------------------------------------------------------------------------------------------


@check("peer.5-3.message-priority-values", "peer.8-7.y-priority", "peer.history.v2-43-priority")
async def a_message_can_have_a_priority(node: Node) -> None:
    applies(await node.has("message_priority"), "the card does not have capabilities.message_priority")
    if node.api is None:
        await node.hear(priority="critical")
        return
    for priority in ("critical", "high", "normal", "low"):
        sent = await node.send(priority=priority)
        expect(sent.answer.status == 200, f"the priority {priority} is answered with {told(sent.answer)}")
        if sent.frame is not None:
            given = sent.frame.get("priority", priority)
            expect(given == priority, f"a message of the priority {priority} goes out with {shown(given)}")
