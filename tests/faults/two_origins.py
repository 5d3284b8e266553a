"""A process with one of two agents files: `python -m tests.faults.two_origins STORE SOURCE RUNS PROJECT`.

It submits runs of its agent, says their ids, and executes what it finds.
"""

from __future__ import annotations

import asyncio
import sys

import interlingua as il
from tests.kit.processes import say

SETTINGS = il.Settings(park_after=0, max_listening=0, sweep_every=0.05, shutdown_grace=0.5, stall_warning=0)


def mailer(source: str) -> il.Agent[..., str]:
    """Says in each record which code made it."""

    async def me() -> str:
        return source

    @il.agent(name="mailer", asks=[il.Confirm])
    async def mail(ctx: il.Context[None, None]) -> str:
        first = await ctx.step("first", me)
        await ctx.ask(il.Confirm(f"{source}: Send it?"))
        return f"{first} {await ctx.step('second', me)} {source}"

    mail.source = source
    return mail


async def main(store: str, source: str, runs: int, project: str) -> None:
    async with il.Engine(store, agents=[mailer(source)], settings=SETTINGS, project=project) as engine:
        for _ in range(runs):
            say((await engine.runs.submit(il.RunRequest("mailer"))).id)
        say(None)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
