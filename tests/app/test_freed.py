"""What is over is freed at once: nothing of a run is in a circle that only the collector would find, much later."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from bench.bridge_clients import CLIENTS
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_to_serve
from tests.kit.engines import QUICK

PROTOCOLS = sorted(CLIENTS)


@il.agent
async def speaks(ctx: il.Context[Any, Any], text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield f"{word} "
        await asyncio.sleep(0.001)


@il.agent
async def other() -> str:
    return "a client has a choice"


@contextlib.asynccontextmanager
async def hub(tmp_path: Path, mounted: str) -> AsyncIterator[Server]:
    async with serving(tmp_path / "there.db", [speaks, other], ServeSettings(port=0, engine=QUICK)) as there:
        address = there.address.replace("http://", "ws://") if mounted == "editor" else there.address
        agents = await load_to_serve(parse(f"{mounted}+{address}/{mounted}#speaks"))
        async with serving(tmp_path / "hub.db", [*agents, other], ServeSettings(port=0, engine=QUICK)) as server:
            yield server
        for let_go in {agent.let_go for agent in agents if agent.let_go is not None}:
            await let_go()


async def found_by_the_collector(server: Server, protocol: str) -> Counter[str]:
    """What of ours was in a circle after ten runs, by the names of its types."""
    client = CLIENTS[protocol](server.address)

    async def some() -> None:
        for _ in range(10):
            said = "".join([piece async for piece in client.pieces("speaks", "one two three")])
            assert said.split() == ["one", "two", "three"]
        await asyncio.sleep(0)

    try:
        await some()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        await some()
        gc.collect()
        return Counter(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("interlingua"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        await client.close()


@pytest.mark.parametrize("mounted", PROTOCOLS)
async def test_of_runs_of_a_mounted_agent_nothing_is_left_to_the_collector(tmp_path: Path, mounted: str) -> None:
    async with hub(tmp_path, mounted) as server:
        left = await found_by_the_collector(server, "mcp")
    assert {name: count for name, count in left.items() if count >= 10} == {}


@pytest.mark.parametrize("served", PROTOCOLS)
async def test_of_runs_at_a_door_nothing_is_left_to_the_collector(tmp_path: Path, served: str) -> None:
    async with hub(tmp_path, "connect") as server:
        left = await found_by_the_collector(server, served)
    assert {name: count for name, count in left.items() if count >= 10} == {}
