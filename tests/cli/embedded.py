"""A program that embeds an engine and knows nothing of signals: `python -m tests.cli.embedded STORE GRACE`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import interlingua as il

from .signalled import ALL


async def main() -> None:
    store = sys.argv[1]
    settings = il.Settings(shutdown_grace=float(sys.argv[2]), cancel_grace=0.2, sweep_every=0.05, stall_warning=0)
    async with il.Engine(store if "://" in store else Path(store), agents=ALL, settings=settings):
        print("Ctrl-C stops.", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
