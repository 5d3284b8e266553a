"""What the tests of the mount need: agents to mount behind our own door, and short ways to mount and watch them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.protocols.connect.mount.server import load
from interlingua.protocols.targets import Target
from interlingua.server.app import Server, ServeSettings, serving
from tests.kit.engines import QUICK, engine
from tests.kit.mounts.watch import Gate, remote_agents


class Tuning(msgspec.Struct):
    loud: bool
    pace: int = 3


def connect_agents(gate: Gate) -> list[il.Agent[..., Any]]:
    @il.agent(asks=[il.AskText])
    async def curious(ctx: il.Context[Any, Any]) -> str:
        answers = [(await ctx.ask(il.AskText("Same question?"))).text for _ in range(2)]
        return ",".join(answers)

    @il.agent
    async def crashing() -> str:
        raise ValueError("oops")

    @il.agent
    async def thinking(ctx: il.Context[Any, Any]) -> str:
        await ctx.thought("hm")
        await ctx.emit("so ")
        await gate.open.wait()
        await ctx.thought("aha")
        await ctx.emit("done")
        return "so done"

    @il.agent
    async def tuned(ctx: il.Context[Any, Tuning]) -> str:
        return f"{ctx.config.loud} {ctx.config.pace}"

    return [*remote_agents(gate), curious, crashing, thinking, tuned]


@contextlib.asynccontextmanager
async def door(tmp_path: Path, gate: Gate | None = None) -> AsyncIterator[Server]:
    if gate is None:
        gate = Gate()
        gate.open.set()
    settings = ServeSettings(port=0, engine=QUICK)
    async with serving(tmp_path / "remote.db", connect_agents(gate), settings) as server:
        try:
            yield server
        finally:
            gate.open.set()


async def mounted(address: str) -> list[il.Agent[..., Any]]:
    return await load(Target("connect+http", f"connect+{address}"))


@contextlib.asynccontextmanager
async def local(store: Path, address: str) -> AsyncIterator[il.Engine]:
    async with engine(store, *await mounted(address)) as eng:
        yield eng


async def remote_runs(server: Server) -> list[il.Run]:
    return await server.engine.runs.search(RunFilter())


async def parked(eng: il.Engine, run: str) -> None:
    """Wait until no process owns the run."""
    async with asyncio.timeout(20):
        while (row := await eng.core.store.runs.get(run)) is None or row.worker is not None:
            await eng.runs.next_hint(run)
