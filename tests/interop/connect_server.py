"""Serves the agents of the Connect tests in a process of its own, so that it can be killed.

python -m tests.interop.connect_server STORE
"""

from __future__ import annotations

import asyncio
import sys

from interlingua.server.app import ServeSettings, serving
from tests.kit.engines import QUICK

from ..protocols.connect.test_door import AGENTS


async def main(store: str) -> None:
    async with serving(store, AGENTS, ServeSettings(port=0, engine=QUICK)) as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
