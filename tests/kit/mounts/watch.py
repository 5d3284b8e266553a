"""What every mount's tests share: a gate in remote agents, and waiting for what the local run's log shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import interlingua as il
from interlingua.model.events import OutputDelta

from ..wait_for import PATIENCE

SETTINGS = il.Settings(cancel_grace=5, shutdown_grace=0.5, sweep_every=0.05, stall_warning=0)


class Gate:
    """Lets a remote agent stop in the middle until the test says so."""

    def __init__(self, *, open_: bool = False) -> None:
        self.open = asyncio.Event()
        self.entered = 0
        if open_:
            self.open.set()


class Busy(il.AgentError):
    """Too much to do."""

    code = "busy"
    transient = True


def remote_agents(gate: Gate, details: dict[str, int] | None = None) -> list[il.Agent[..., Any]]:
    """Agents that any protocol carries."""

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

    @il.agent(errors=[Busy])
    async def busy() -> str:
        raise Busy("come back later", details=details)

    @il.agent(timeout=0.05)
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    @il.agent
    async def remembering(ctx: il.Context[dict[str, list[str]], Any], text: str) -> list[str]:
        ctx.state["seen"] = [*ctx.state.get("seen", []), text]
        return list(ctx.state["seen"])

    return [words, careful, busy, slow, remembering]


async def shown(eng: il.Engine, run: str, text: str) -> None:
    """Waits until the log holds this much of the output."""
    output = ""
    async with asyncio.timeout(PATIENCE):
        async for event in eng.runs.events(run):
            if isinstance(event.body, OutputDelta):
                output += event.body.delta.get("text", "")
                if output == text:
                    return
    raise AssertionError(f"the run ended with {output!r}")


async def seen(eng: il.Engine, run: str, kind: str) -> il.Event:
    """Waits for an event of a run."""
    async with asyncio.timeout(PATIENCE):
        async for event in eng.runs.events(run):
            if event.kind == kind:
                return event
    raise AssertionError(f"the run ended without {kind}")


async def asked_question(eng: il.Engine, run: str, type_: str) -> Any:
    """Waits for a question of a type."""
    async with asyncio.timeout(PATIENCE):
        async for event in eng.runs.events(run):
            if event.kind == "asked" and event.body.question.type == type_:
                return event.body.question
    raise AssertionError(f"the run never asked {type_}")
