"""Agents that leave, or end, the process they are in; and a server for them: `python -m tests.faults.leaving STORE`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import interlingua as il
from tests.kit.processes import say

SETTINGS = il.Settings(sweep_every=0.05, shutdown_grace=1, cancel_grace=0.5, stall_warning=0)


@il.agent
async def poison(after: float) -> str:
    """Ends its process, and takes its time."""
    await asyncio.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@il.agent
async def innocent(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


@il.agent
async def leaves(how: str) -> str:
    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(2)

    match how:
        case "task":
            await asyncio.create_task(leave())
        case "group":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(leave())
        case "interrupt":
            raise KeyboardInterrupt
        case _:
            sys.exit(how)
    return "never"


@il.agent
def leaves_in_a_thread() -> str:
    sys.exit(2)


@il.agent(process=True)
def family() -> Iterator[str]:
    child = subprocess.Popen(["sleep", "3600"])
    yield f"{os.getpid()} {child.pid}\n"
    while True:
        time.sleep(0.01)


@il.agent(process=True, retries=20)
def counts(to: int) -> Iterator[str]:
    """Says in which process it is, and works for a while."""
    yield f"{os.getpid()}\n"
    for _ in range(to):
        time.sleep(0.01)
    yield f"{to} counted"


ALL = [poison, innocent, leaves, leaves_in_a_thread, family, counts]


async def main() -> None:
    store = sys.argv[1]
    async with il.Engine(store if "://" in store else Path(store), agents=ALL, settings=SETTINGS):
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
