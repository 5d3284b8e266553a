"""Text that is not clean in the answers of tool servers at an address: what can be read is given, and what cannot ends
the call at once with what is wrong. Afterwards the same connection still serves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlingua.model.errors import ToolFailed
from interlingua.model.team.manifest import Server

from .rude_web import done, web
from .tool_common import tools

TAKEN = {
    "a first half": (rb'"a\ud83d"', "a\ufffd"),
    "a second half": (rb'"\ude00a"', "\ufffda"),
    "a pair": (rb'"\ud83d\ude00"', "\U0001f600"),
    "halves in the wrong order": (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
    "invalid UTF-8": (b'"a\xffb"', "a\ufffdb"),
    "half of it in UTF-8": (b'"a\xf0\x9f"', "a\ufffd"),
}
KINDS = pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])


def says(kind: str, text: bytes, end: bytes = b"}]") -> Any:
    async def answer(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        if message["params"]["name"] != "odd":
            await done(message, writes)
            return
        id_ = json.dumps(message["id"]).encode()
        body = b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s%s}}' % (id_, text, end)
        body = b"data: %s\n\n" % body if kind == "text/event-stream" else body
        writes.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writes.drain()

    return answer


@KINDS
@pytest.mark.parametrize("name", TAKEN)
async def test_odd_text_of_a_tool_at_an_address_is_read_as_far_as_it_can_be(name: str, kind: str) -> None:
    text, read = TAKEN[name]
    async with web(says(kind, text)) as address, tools(Server(url=address.url)) as given:
        assert await given.call("odd", timeout=20) == read
        assert await given.call("any") == "done"
        assert address.methods.count("initialize") == 1


@KINDS
async def test_what_is_no_number_of_json_is_null_in_a_result(kind: str) -> None:
    text = b'"a"}],"structuredContent":{"x":NaN,"y":1e999,"z":[{"t":1'
    async with web(says(kind, text, b"}]}")) as address, tools(Server(url=address.url)) as given:
        assert await given.call("odd", timeout=20) == {"x": None, "y": None, "z": [{"t": 1}]}


@KINDS
async def test_an_answer_of_a_tool_that_cannot_be_read_ends_the_call_at_once(kind: str) -> None:
    async with web(says(kind, b'"a",')) as address, tools(Server(url=address.url)) as given:
        with pytest.raises(ToolFailed, match="an answer that cannot be taken"):
            await given.call("odd", timeout=20)
        assert await given.call("any") == "done"
        assert address.methods.count("initialize") == 1
