"""Large results of a tool as the published client of MCP reads them: PyPI `mcp` takes events of up to 1 MiB."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

import interlingua as il
from interlingua.protocols.mcp.config import DoorSettings
from interlingua.protocols.mcp.door.http import WebDoor
from interlingua.server.app import ServeSettings, serving
from tests.kit.engines import QUICK
from tests.kit.wait_for import PATIENCE


@il.agent
async def large(size: int) -> str:
    """Says much."""
    return "x" * size


@il.agent
async def streams(size: int):
    """Says much, in pieces."""
    for _ in range(4):
        yield "x" * (size // 4)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_large_result_arrives_whole(store: Path, mode: Any) -> None:
    told: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    agents = [large, streams]
    async with asyncio.timeout(2 * PATIENCE), serving(store, agents, ServeSettings(port=0, engine=QUICK)) as server:
        web = server.app.doors["mcp"][1].close_streams.__self__  # type: ignore[union-attr]
        assert isinstance(web, WebDoor)
        web.settings = DoorSettings(patience=0.0)  # every answer is an event stream
        async with Client(server.address + "/mcp", mode=mode, read_timeout_seconds=PATIENCE) as client:
            for name in ("large", "streams"):
                for size in (100_000, 600_000, 900_000):
                    result = await client.call_tool(name, {"size": size}, progress_callback=progress)
                    assert result.is_error is not True
                    assert result.structured_content == {"text": "x" * size}
                    assert (len(result.content[0].text) == size) is (size <= 100_000)  # type: ignore[union-attr]
        assert told
