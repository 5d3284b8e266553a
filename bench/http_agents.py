"""The agents that are measured over HTTP. `interlingua serve` loads this file, which therefore stands alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import interlingua as il


@il.agent
async def trivial(text: str) -> str:
    return text


@il.agent
async def ticks(count: int, pause: float) -> AsyncIterator[str]:
    for index in range(count):
        if index:
            await asyncio.sleep(pause)
        yield f"{index}:{time.monotonic_ns()} "  # as in `load.token`
