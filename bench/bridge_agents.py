"""The agents that bridges are measured with: a quick one and one that ticks, once for every protocol they are reached
by, as a hub has room for one of each name."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import interlingua as il

NAMES = os.environ.get("BRIDGE_NAMES", "native").split()


def _made(name: str) -> list[il.Agent[..., Any]]:
    @il.agent(name=f"quick-{name}")
    async def quick(text: str) -> str:
        """Says what it hears."""
        return text

    @il.agent(name=f"ticker-{name}")
    async def ticker(text: str) -> AsyncIterator[str]:
        """Says so many times what time it is, so many milliseconds apart."""
        count, pause = text.split()
        for _ in range(int(count)):
            await asyncio.sleep(int(pause) / 1000)
            yield f"{time.monotonic_ns()} "

    return [quick, ticker]


for _name in NAMES:
    for _agent in _made(_name):
        globals()[_agent.card.name.replace("-", "_")] = _agent
