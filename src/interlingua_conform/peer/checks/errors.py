"""Errors: the envelope of all that came, and each code where it can be brought about."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from interlingua.transports.raw_client import Answer

from ...base import applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import Refused, absent, refused, text, told
from ..suite import check, suite
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


_ERROR = Source(
    _errors, lambda entry: f"the error {told(entry[1])} of {entry[0]}", each=True, value=lambda entry: entry[1].json()
)
add(
    suite,
    Row("peer.6.ok-false", _ERROR, "ok", bool, equals=False),
    Row("peer.6.error-code peer.14.error-code", _ERROR, "error_code", str),
    Row("peer.6.error", _ERROR, "error", str, filled=True),
)


async def _unconnected(node: Node) -> Answer | None:
    await node.connecting()
    answer = await node.alone()
    applies(answer is not None, "a peer was connected from the beginning, or nobody can tell")
    return answer


@check("peer.6.not-found")
async def what_does_not_exist_is_not_found(node: Node) -> None:
    paths = ["/tasks/task_that_nobody_made"]
    if (await node.ask("GET", "/peers")).status == 200:
        paths.append("/peer/peer_that_nobody_met")
    for path in paths:
        refused(await node.ask("GET", path), 404, "ERR_NOT_FOUND", f"GET {path}")


@once
async def _too_large(node: Node) -> tuple[str, Answer]:
    limit: Any = (await node.flags()).get("max_msg_bytes", _DEFAULT)
    applies(isinstance(limit, int) and 0 < limit <= _LARGEST, f"max_msg_bytes is {shown(limit)}")
    id_ = new_id()
    return id_, await node.post({"role": "user", "parts": [text("x" * (limit + 1))], "message_id": id_})


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


def _names_the_message(seen: Callable[[Node], Awaitable[tuple[str, Answer]]], status: int, *ids: str) -> None:
    @check(*ids)
    async def it_is_named(node: Node) -> None:
        id_, answer = await seen(node)
        applies(answer.status == status, f"the message {id_} is answered with {told(answer)}")
        failed = member(answer.json(), "failed_message_id", str, "the error")
        expect(failed == id_, f"failed_message_id of the message {id_} is {failed}")


_LARGE, _WAIT = "a message that is larger than max_msg_bytes", "a wait for a reply that does not come"
add(
    suite,
    Refused("peer.6.not-connected", _unconnected, "a message while no peer is connected", 503, "ERR_NOT_CONNECTED"),
    Refused("peer.6.msg-too-large", _too_large, _LARGE, 413, "ERR_MSG_TOO_LARGE"),
    Refused("peer.6.timeout", _late, _WAIT, 408, "ERR_TIMEOUT"),
)
_names_the_message(_too_large, 413, "peer.6.failed-message-id-too-large")
_names_the_message(_late, 408, "peer.6.failed-message-id-timeout")


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
