"""Agents that are at it, each in its way, when a signal comes. With GO in the environment they come to an end.

SIGNAL names a signal that the process gets while this file is loaded.
"""

import asyncio
import os
import signal
import sys
import time

import interlingua as il
from interlingua.terminal import session

GO = "GO" in os.environ
session._PATIENCE = 0.3  # seconds for agents that do not end


@il.agent(retries=1000)
async def waiting(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    if not GO:
        await asyncio.Event().wait()
    return "done"


@il.agent(retries=1000)
async def stubborn(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    while not GO:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    return "done"


@il.agent(retries=1000)
async def group(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(asyncio.sleep(0 if GO else 3600))
    return "done"


@il.agent(retries=1000)
async def busy(ctx: il.Context[None, None]) -> str:
    """Hogs the event loop, most of the time."""
    await ctx.thought("here")
    while not GO:
        time.sleep(0.02)
        await asyncio.sleep(0)
    return "done"


@il.agent(retries=1000)
def thread(ctx: il.SyncContext[None, None]) -> str:
    ctx.thought("here")
    while not GO:
        time.sleep(0.02)
    return "done"


@il.agent(retries=1000)
async def step(ctx: il.Context[None, None]) -> str:
    async def work() -> str:
        await ctx.thought("here")
        if not GO:
            await asyncio.Event().wait()
        return "done"

    return str(await ctx.step("work", work, retries=2))


@il.agent(asks=[il.Confirm], retries=1000)
async def asking(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    return "done" if (await ctx.ask(il.Confirm("Go on?"))).approved else "not done"


@il.agent(retries=1000)
async def callback() -> str:
    """Leaves something on the event loop that tries to end the process."""
    gone = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(gone.set_result, None)
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await gone
    await asyncio.sleep(0)
    return "done"


ALL = [waiting, stubborn, group, busy, thread, step, asking, callback]

if "SIGNAL" in os.environ:
    signal.raise_signal(signal.Signals[os.environ.pop("SIGNAL")])
