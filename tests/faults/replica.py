"""A replica of a deploy, which runs the agents of one file until it is killed.

`python -m tests.faults.replica STORE FILE`.
"""

from __future__ import annotations

import asyncio
import sys

import interlingua as il
from interlingua.server.loading.file import agents_of_file
from tests.kit.processes import say


async def main(store: str, file: str) -> None:
    settings = il.Settings(park_after=0.02, max_listening=0, sweep_every=0.05, stall_warning=0)
    async with il.Engine(store, agents=agents_of_file(file), settings=settings):
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
