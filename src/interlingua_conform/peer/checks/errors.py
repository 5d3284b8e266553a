"""Errors: the envelope of all that came, and each code where it can be brought about."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from interlingua.transports.raw_client import Answer

from ...base import applies, expect, member, shown
from ..driver import Node
from ..memory import once
from ..shapes import absent, refused, text, told
from ..suite import check
from ..wires import new_id

_LARGEST = 32 * 1024 * 1024
_DEFAULT = 1_048_576


@once
async def provoked(node: Node) -> None:
    """Provokes some errors, for the checks that look at errors."""
    await node.ask("GET", "/tasks/task_that_nobody_made")
    await node.ask("GET", "/no/such/path")
    await node.ask("POST", "/message:send", {"text": "hello", "message_id": new_id()})


async def _errors(node: Node) -> list[tuple[str, Answer]]:
    await provoked(node)
    found = [(what, answer) for what, answer in node.answers if answer.status >= 400]
    applies(found, "nothing was answered with an error")
    return found


@check("peer.6.ok-false")
async def an_error_is_not_ok(node: Node) -> None:
    for what, answer in await _errors(node):
        ok = member(answer.json(), "ok", bool, f"the error {told(answer)} of {what}")
        expect(not ok, f"ok of the error {told(answer)} of {what} is true")


@check("peer.6.error-code", "peer.14.error-code")
async def an_error_has_a_code(node: Node) -> None:
    for what, answer in await _errors(node):
        member(answer.json(), "error_code", str, f"the error {told(answer)} of {what}")


@check("peer.6.error")
async def an_error_says_what_is_wrong(node: Node) -> None:
    for what, answer in await _errors(node):
        expect(member(answer.json(), "error", str, f"the error {told(answer)} of {what}"), f"{what}: error is empty")


@check("peer.6.not-found")
async def what_does_not_exist_is_not_found(node: Node) -> None:
    paths = ["/tasks/task_that_nobody_made"]
    if (await node.ask("GET", "/peers")).status == 200:
        paths.append("/peer/peer_that_nobody_met")
    for path in paths:
        refused(await node.ask("GET", path), 404, "ERR_NOT_FOUND", f"GET {path}")


@check("peer.6.not-connected")
async def without_a_peer_nothing_is_sent(node: Node) -> None:
    await node.connecting()
    answer = await node.alone()
    applies(answer is not None, "a peer was connected from the beginning, or nobody can tell")
    assert answer is not None
    refused(answer, 503, "ERR_NOT_CONNECTED", "a message while no peer is connected")


@once
async def _too_large(node: Node) -> tuple[str, Answer]:
    limit: Any = (await node.flags()).get("max_msg_bytes", _DEFAULT)
    applies(isinstance(limit, int) and 0 < limit <= _LARGEST, f"max_msg_bytes is {shown(limit)}")
    id_ = new_id()
    return id_, await node.post({"role": "user", "parts": [text("x" * (limit + 1))], "message_id": id_})


@check("peer.6.msg-too-large")
async def what_is_too_large_is_refused(node: Node) -> None:
    _, answer = await _too_large(node)
    refused(answer, 413, "ERR_MSG_TOO_LARGE", "a message that is larger than max_msg_bytes")


@check("peer.6.failed-message-id-too-large")
async def what_is_too_large_is_named(node: Node) -> None:
    id_, answer = await _too_large(node)
    applies(answer.status == 413, f"a message that is too large is answered with {told(answer)}")
    failed = member(answer.json(), "failed_message_id", str, "ERR_MSG_TOO_LARGE")
    expect(failed == id_, f"failed_message_id of the message {id_} is {failed}")


@once
async def _late(node: Node) -> tuple[str, Answer]:
    """Sends a message that waits for a reply, and gives no reply."""
    await node.wire()
    await node.sends()
    id_ = new_id()
    body = {"role": "user", "parts": [text("wait")], "message_id": id_, "sync": True, "timeout": 0.1}
    answer = await node.post(body)
    # The members that ask for a wait are not in the document: a node that does not know them sends, or says so.
    applies(answer.status not in (200, 400, 503), f"nobody can wait for a reply here: {told(answer)}")
    return id_, answer


@check("peer.6.timeout")
async def a_wait_that_is_too_long_is_a_timeout(node: Node) -> None:
    _, answer = await _late(node)
    refused(answer, 408, "ERR_TIMEOUT", "a wait for a reply that does not come")


@check("peer.6.failed-message-id-timeout")
async def what_was_waited_for_is_named(node: Node) -> None:
    id_, answer = await _late(node)
    applies(answer.status == 408, f"a wait that ran out of time is answered with {told(answer)}")
    failed = member(answer.json(), "failed_message_id", str, "ERR_TIMEOUT")
    expect(failed == id_, f"failed_message_id of the message {id_} is {failed}")


@check("peer.6.failed-message-id")
async def a_failed_message_is_named_by_its_id(node: Node) -> None:
    found = []
    for what, answer in await _errors(node):
        with contextlib.suppress(ValueError):
            body = json.loads(answer.body)
            if isinstance(body, dict) and body.get("failed_message_id") is not None:
                found.append(member(body, "failed_message_id", str, f"the error {told(answer)} of {what}"))
    applies(found, "no error named a message")


@check("peer.6.failed-message-id-others")
async def other_errors_name_no_message(node: Node) -> None:
    await node.sends()
    answer = await node.post({"parts": [text("no role")], "message_id": new_id()})
    applies(answer.status == 400, f"a message without role is answered with {told(answer)}")
    body = member(answer.json(), "", dict, "the error")
    expect("failed_message_id" not in body, f"{shown(body.get('error_code'))} has a failed_message_id: {shown(body)}")


@check("peer.6.internal")
async def what_goes_wrong_inside_says_so(node: Node) -> None:
    inside = [(what, answer) for what, answer in await _errors(node) if answer.status == 500]
    applies(inside, "nothing went wrong inside")
    for what, answer in inside:
        refused(answer, 500, "ERR_INTERNAL", what)


@check("peer.5-3.error-codes")
async def endpoints_that_are_not_there_have_codes_too(node: Node) -> None:
    applies(await node.has("error_codes"), "the card does not have capabilities.error_codes")
    answer = await node.ask("GET", "/no/such/path")
    applies(absent(answer), f"GET /no/such/path is answered with {told(answer)}")
    member(answer.json(), "error_code", str, "error_codes is true, and an error")
