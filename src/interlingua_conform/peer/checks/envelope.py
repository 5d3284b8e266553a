"""Checks the envelope of messages that a node sends, and its parts, as they arrive at the checker's peer."""

from __future__ import annotations

import itertools
from typing import Any

from ...base import applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import HEX_64, moment, parts_of, text, told
from ..suite import check, suite
from ..wires import Frame

A = "a message that came to a peer"
REQUIRED = ("type", "message_id", "ts", "from", "role", "parts")
FILE = {
    "type": "file", "url": "https://example.com/report.pdf", "media_type": "application/pdf", "filename": "report.pdf",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "object": {"any": "json", "value": True}, "array": [1, [2]], "string": "a text", "number": 1.5, "boolean": False,
    "null": None,
}  # fmt: skip


SAID = Source(Node.said, A, each=True)
add(
    suite,
    Row("peer.1.common-envelope peer.9.same-envelope", SAID, has=REQUIRED),
    Row("peer.1-1.type", SAID, "type", equals="acp.message"),
    Row("peer.1-1.ts", SAID, "ts", fits=moment),
    Row("peer.1-1.from", SAID, "from", str, filled=True),
    Row("peer.1-1.role", SAID, "role"),
    Row("peer.1-1.parts", SAID, "parts", list, items=dict),
    Row("peer.1-2.sig", SAID, "sig", str, matches=HEX_64, form="HMAC-SHA256 in hex", optional=True),
    Row("peer.1-2.identity", SAID, "identity", dict, optional=True),
)


@check("peer.1-1.message-id")
async def a_message_has_an_id_of_its_own(node: Node) -> None:
    ids = [member(frame, "message_id", str, A) for frame in await node.said()]
    expect(len(set(ids)) == len(ids), f"several messages have the same message_id: {ids}")


@check("peer.1-1.role-values")
async def a_role_is_user_or_agent(node: Node) -> None:
    for frame in await node.said():
        applies("role" in frame, f"{A} has no role")
        expect(frame["role"] in ("user", "agent"), f"{A} has the role {shown(frame['role'])}")
    if node.api is not None:
        for role in ("user", "agent"):
            went = (await node.send(role=role)).arrived.get("role")
            expect(went == role, f"a message of the role {role} goes out with {shown(went)}")


@check("peer.1-1.parts-not-empty")
async def there_is_at_least_one_part(node: Node) -> None:
    for frame in await node.said():
        expect(frame.get("parts") != [], f"{A} has empty parts: {shown(frame)}")
    if node.api is not None:
        answer = await node.post({"role": "user", "parts": []})
        expect(answer.status == 400, f"a message with empty parts is answered with {told(answer)}")


@check("peer.1-2.server-seq", "peer.5-3.server-seq")
async def the_number_of_a_message_is_an_integer(node: Node) -> None:
    promised = await node.has("server_seq")
    numbered = [frame for frame in await node.said() if "server_seq" in frame]
    expect(numbered or not promised, f"capabilities.server_seq is true, and {A} has no server_seq")
    applies(numbered, "messages have no server_seq")
    for frame in numbered:
        member(frame, "server_seq", int, A)


async def _numbers(node: Node) -> list[int]:
    numbers = [frame.get("server_seq") for frame in await node.said()]
    found = [number for number in numbers if isinstance(number, int)]
    applies(len(found) > 1, "messages have no server_seq")
    return found


@check("peer.1-2.server-seq-monotonic", "peer.8-1.server-seq-messages")
async def later_messages_have_higher_numbers(node: Node) -> None:
    numbers = await _numbers(node)
    rises = all(before < after for before, after in itertools.pairwise(numbers))
    expect(rises, f"server_seq does not rise from message to message: {numbers}")


# -- parts ----------------------------------------------------------------------------------------------------


@once
async def mixed(node: Node) -> tuple[list[dict[str, Any]], Frame]:
    """Parts of each kind in one message, and what came of them."""
    await node.wire()
    data = [{"type": "data", "content": value} for value in VALUES.values()]
    parts = [text("{mark}"), FILE, *data, text("the end")]
    sent = await node.send(parts=parts)
    applies(sent.answer.status == 200, f"a message with parts of each kind is answered with {told(sent.answer)}")
    return sent.body["parts"], sent.arrived


async def _part(node: Node, at: int) -> tuple[dict[str, Any], Any]:
    given, frame = await mixed(node)
    came = frame.get("parts")
    applies(isinstance(came, list) and len(came) == len(given), f"parts are lost or added: {shown(came)}")
    assert isinstance(came, list)
    return given[at], came[at]


@check("peer.2.atomic-unit", "peer.history.v0-4")
async def several_parts_go_in_order(node: Node) -> None:
    """Sends each kind of part in one message: a node that refuses it does not carry the kinds in its card's
    part_types."""
    await node.wire()
    sent = await node.send(parts=[text("{mark}"), FILE, {"type": "data", "content": {"a": 1}}, text("the end")])
    expect(sent.answer.status == 200, f"a message with several parts is answered with {told(sent.answer)}")
    kinds = [part.get("type") for part in parts_of(sent.arrived.get("parts"), A)]
    expect(kinds == ["text", "file", "data", "text"], f"text, file, data and text parts become {kinds}")


@check("peer.2-1.type")
async def a_text_goes_through(node: Node) -> None:
    given, came = await _part(node, 0)
    expect(came == given, f"the part {shown(given)} becomes {shown(came)}")


@check("peer.2-2.type")
async def a_file_goes_through(node: Node) -> None:
    given, came = await _part(node, 1)
    kept = isinstance(came, dict) and (came.get("type"), came.get("url")) == (given["type"], given["url"])
    expect(kept, f"the part {shown(given)} becomes {shown(came)}")


def _of_file(ident: str, name: str) -> None:
    @check(ident)
    async def it_goes_along_with_a_file(node: Node) -> None:
        given, came = await _part(node, 1)
        expect(isinstance(came, dict) and came.get(name) == given[name], f"a file loses its {name}: {shown(came)}")


_of_file("peer.2-2.media-type", "media_type")
_of_file("peer.2-2.filename", "filename")


@check("peer.2-3.type", "peer.2-3.content-json")
async def data_go_through(node: Node) -> None:
    for at in range(2, 2 + len(VALUES)):
        given, came = await _part(node, at)
        expect(came == given, f"the part {shown(given)} becomes {shown(came)}")


def _value(name: str, at: int) -> None:
    @check(f"peer.2-3.content-{name}")
    async def a_value_of_this_kind_goes_through(node: Node) -> None:
        given, came = await _part(node, at)
        expect(came == given, f"a data part with {shown(given['content'])} becomes {shown(came)}")


for _at, _name in enumerate(VALUES):
    _value(_name, 2 + _at)
