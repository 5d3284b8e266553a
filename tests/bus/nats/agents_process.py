"""A process that runs agents, for tests: `python -m tests.bus.nats.agents_process STORE BUS`.

It ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import interlingua as il
from tests.kit.processes import say

SETTINGS = il.Settings(park_after=60, cancel_grace=0.5, shutdown_grace=0.5, sweep_every=30, stall_warning=0)
"""Whoever is not told looks only after half a minute."""


@il.agent
async def talk(n: int, pause: float = 0.0) -> AsyncIterator[str]:
    for number in range(n):
        yield f"{number} "
        await asyncio.sleep(pause)


@il.agent(asks=[il.Confirm])
async def ask(ctx: il.Context[None, None]) -> str:
    return str((await ctx.ask(il.Confirm("Go on?"))).approved)


@il.agent
async def listen(ctx: il.Context[None, None]) -> str:
    message = await ctx.receive()
    return message.text


@il.agent
async def forever(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    await asyncio.Event().wait()
    return ""


AGENTS = [talk, ask, listen, forever]


async def main() -> None:
    async with il.Engine(sys.argv[1], agents=AGENTS, bus=sys.argv[2], settings=SETTINGS) as engine:
        engine.core.store.on_change = lambda: None  # the file tells nothing: what comes, comes by the bus
        say(engine.core.worker.id)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
