"""What the tests of the mount need: agents to mount behind our own door, and short ways to mount and watch them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

import interlingua as il
from interlingua.model.events import OutputDelta
from interlingua.model.filters import RunFilter
from interlingua.protocols.connect.mount.server import load
from interlingua.protocols.targets import Target
from interlingua.server.app import Server, ServeSettings, serving
from tests.kit.engines import QUICK, engine


class Gate:
    """Lets a remote agent stop in the middle until the test says so."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered = 0


class Busy(il.AgentError):
    """Too much to do."""

    code = "busy"
    transient = True


class Tuning(msgspec.Struct):
    loud: bool
    pace: int = 3


def remote_agents(gate: Gate) -> list[il.Agent[..., Any]]:
    @il.agent(version="2.0.0")
    async def words(text: str) -> AsyncIterator[str]:
        """Says it word by word."""
        gate.entered += 1
        first, *rest = text.split()
        yield first
        await gate.open.wait()
        for word in rest:
            yield " " + word

    @il.agent(asks=[il.Confirm, il.AskText])
    async def careful(ctx: il.Context[Any, Any], text: str) -> AsyncIterator[str]:
        gate.entered += 1
        yield text
        verdict = await ctx.ask(il.Confirm(f"Say {text}?"))
        yield f" {verdict.approved}"
        more = await ctx.ask(il.AskText("What else?"))
        yield f" {more.text}"

    @il.agent(asks=[il.AskText])
    async def curious(ctx: il.Context[Any, Any]) -> str:
        answers = [(await ctx.ask(il.AskText("Same question?"))).text for _ in range(2)]
        return ",".join(answers)

    @il.agent(errors=[Busy])
    async def busy() -> str:
        raise Busy("come back later")

    @il.agent
    async def crashing() -> str:
        raise ValueError("oops")

    @il.agent(timeout=0.05)
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    @il.agent
    async def remembering(ctx: il.Context[dict[str, list[str]], Any], text: str) -> list[str]:
        ctx.state["seen"] = [*ctx.state.get("seen", []), text]
        return list(ctx.state["seen"])

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

    return [words, careful, curious, busy, crashing, slow, remembering, thinking, tuned]


@contextlib.asynccontextmanager
async def door(tmp_path: Path, gate: Gate | None = None) -> AsyncIterator[Server]:
    if gate is None:
        gate = Gate()
        gate.open.set()
    settings = ServeSettings(port=0, engine=QUICK)
    async with serving(tmp_path / "remote.db", remote_agents(gate), settings) as server:
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


async def shown(eng: il.Engine, run: str, text: str) -> None:
    """Wait until the local log holds this much of the output."""
    seen = ""
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run):
            if isinstance(event.body, OutputDelta):
                seen += event.body.delta.get("text", "")
                if seen == text:
                    return
    raise AssertionError(f"the run ended with {seen!r}")


async def remote_runs(server: Server) -> list[il.Run]:
    return await server.engine.runs.search(RunFilter())


async def question_of_type(eng: il.Engine, run: str, type_: str) -> Any:
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run):
            if event.kind == "asked" and event.body.question.type == type_:
                return event.body.question
    raise AssertionError(f"the run never asked {type_}")


async def parked(eng: il.Engine, run: str) -> None:
    """Wait until no process owns the run."""
    async with asyncio.timeout(20):
        while (row := await eng.core.store.runs.get(run)) is None or row.worker is not None:
            await eng.runs.next_hint(run)
