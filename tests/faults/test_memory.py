"""Long runs of what must cost no memory, however long it goes on. Shorter ones are in the suite."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.protocols.editor.test_stdio import unread_costs_no_memory
from tests.protocols.test_memory_of_callers import MIB, memory, served


@pytest.mark.faults
async def test_two_hundred_megabytes_that_a_client_does_not_read_cost_no_memory(tmp_path: Path) -> None:
    await unread_costs_no_memory(tmp_path, 100, 200)


async def _connections(port: int, count: int) -> None:
    """Clients that come over a WebSocket, send one prompt in a session of their own, and go."""

    async def one() -> None:
        async with connect(f"ws://127.0.0.1:{port}/editor", compression=None) as socket:

            async def asked(id_: int, method: str, params: Any) -> Any:
                await socket.send(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}))
                while (told := json.loads(await socket.recv())).get("id") != id_:
                    pass
                return told["result"]

            await asked(0, "initialize", {"protocolVersion": 1})
            session = (await asked(1, "session/new", {"cwd": "/", "mcpServers": []}))["sessionId"]
            await asked(2, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]})

    for _ in range(count // 20):
        await asyncio.gather(*(one() for _ in range(20)))


@pytest.mark.faults
async def test_thousands_of_connections_with_a_prompt_each_cost_no_memory_in_the_end(tmp_path: Path) -> None:
    """What is remembered of sessions and runs has its limits, which 12,000 reach. Until then SQLite's page cache grows
    with the file (to 32 MiB of the writer, 4 MiB of each reader), and ended runs are kept up to `keep_finished`."""
    async with served(tmp_path) as (started, _, port):
        await _connections(port, 12_000)
        before = memory(started.pid)
        await _connections(port, 6_000)
        assert memory(started.pid) - before < 12 * MIB
