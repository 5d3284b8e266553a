"""What goes along with a request in `_meta`, and what a run gives beside its output."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.protocols.mcp import translate
from interlingua.transports.jsonrpc.core import INVALID_PARAMS
from tests.kit.clients.mcp import LATEST, breaks, in_process

from ..porter import FILE, VALUE, came, porter

PARTS, METADATA, ERROR = "interlingua/parts", "interlingua/metadata", "interlingua/error"
SENT = [
    {"type": "file", "name": "in.txt", "media_type": "text/plain", "data": base64.b64encode(b"hello").decode()},
    {"type": "file", "url": "https://example.org/a.png"},
    {"type": "data", "data": [1, None]},
    {"type": "data", "data": {"note": "from a part"}},
    {"type": "elsewhere", "kind": 7},
]
BLOB = base64.b64encode(FILE.data or b"").decode()
GIVEN = [
    {"type": "text", "text": "on my way"},
    {"type": "file", "data": BLOB, "media_type": FILE.media_type, "name": FILE.name},
    {"type": "data", "data": VALUE},
]


@pytest.mark.parametrize("token", [{}, {"progressToken": 1}], ids=["at once", "with progress"])
async def test_files_and_values_go_along_and_come_back_in_meta(store: Path, token: dict[str, Any]) -> None:
    async with in_process(store, porter) as (client, _):
        await client.initialize()
        result = await client.whole_run("porter", {"text": "go"}, **token, **{PARTS: SENT})
        told = came(result["output"])
        assert told["text"] == "go"
        assert told["note"] == "from a part"  # the agent's input has a place for it
        assert told["parts"] == [
            "go", ["in.txt", "text/plain", "hello"], [None, None, "https://example.org/a.png"], {"data": [1, None]},
            {"data": {"note": "from a part"}}, {"data": {"type": "elsewhere", "kind": 7}},
        ]  # fmt: skip
        assert result["_meta"][PARTS] == GIVEN


async def test_what_the_input_says_counts_more_than_what_goes_along(store: Path) -> None:
    async with in_process(store, porter) as (client, _):
        await client.initialize()
        output = await client.run("porter", {"text": "go", "note": "mine"}, **{PARTS: SENT})
        assert came(output)["note"] == "mine"


async def test_a_run_that_gives_nothing_else_has_nothing_else_in_meta(store: Path) -> None:
    @il.agent
    async def plain(text: str) -> str:
        return text

    async with in_process(store, plain) as (client, _):
        await client.initialize()
        assert PARTS not in (await client.whole_run("plain", {"text": "x"}))["_meta"]


async def test_members_of_meta_that_are_nobodys_are_metadata_of_the_run(store: Path) -> None:
    async with in_process(store, porter) as (client, engine):
        await client.initialize()
        meta = {"com.example/ticket": 7, "progressToken": "t", "traceparent": "nonsense", "interlingua/unknown": 1}
        result = await client.whole_run("porter", {"text": "x"}, **meta, **{METADATA: {"progressToken": "mine"}})
        assert came(result["output"])["metadata"] == {"com.example/ticket": 7, "progressToken": "mine"}
        run = await engine.runs.get(result["_meta"]["interlingua/run"])
        assert run.metadata == {"com.example/ticket": 7, "progressToken": "mine"}


@pytest.mark.parametrize("meta", [{PARTS: {}}, {PARTS: ["x"]}, {METADATA: []}], ids=str)
async def test_what_goes_along_and_makes_no_sense_is_refused(store: Path, meta: dict[str, Any]) -> None:
    async with in_process(store, porter) as (client, _):
        await client.initialize()
        error = await client.failed_run("porter", {"text": "x"}, **meta)
        assert error["code"] == INVALID_PARAMS
        assert next(iter(meta)) in error["message"]


# -- tools ----------------------------------------------------------------------------------------------------


async def test_a_tool_shows_what_a_run_gives_as_content(store: Path) -> None:
    async with in_process(store, porter) as (client, _):
        await client.initialize()
        params = {"name": "porter", "arguments": {"text": "go"}, "_meta": {PARTS: SENT[:1]}}
        result = await client.ask("tools/call", params)
        text, *others = result["content"]
        assert came(text["text"])["parts"] == ["go", ["in.txt", "text/plain", "hello"]]
        assert others == [
            {"type": "text", "text": "on my way"},
            {
                "type": "resource",
                "resource": {"uri": "file:///answer.bin", "mimeType": FILE.media_type, "blob": BLOB},
            },
            {"type": "text", "text": '{"k": [1, 2]}'},
        ]
        assert result["structuredContent"] == {"text": text["text"]}


async def test_a_tool_that_failed_tells_the_code_in_meta(store: Path) -> None:
    async with in_process(store, breaks) as (client, _):
        await client.initialize()
        result = await client.ask("tools/call", {"name": "breaks", "arguments": {"text": "x"}})
        assert result["isError"] is True
        assert result["_meta"][ERROR] == {"code": "broken", "transient": True, "details": {"tool": "saw"}}
        assert "interlingua/run" in result["_meta"]


@pytest.mark.parametrize(
    ("part", "version", "block"),
    [
        (il.FilePart(data=b"x", media_type="image/png"), "2024-11-05", "image"),
        (il.FilePart(data=b"x", media_type="audio/wav"), LATEST, "audio"),
        (il.FilePart(data=b"x", media_type="audio/wav"), "2024-11-05", "resource"),
        (il.FilePart(text="x", name="a b.txt"), LATEST, "resource"),
        (il.FilePart(url="https://example.org/a"), LATEST, "resource_link"),
        (il.FilePart(url="https://example.org/a"), "2025-03-26", "text"),
        (il.ToolResultPart("look", {"found": 1}), LATEST, "text"),
    ],
)
def test_each_part_is_a_block_that_the_revision_has(part: Any, version: str, block: str) -> None:
    assert translate.block(part, version)["type"] == block
