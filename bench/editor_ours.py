"""The agent that editors are measured with, on Interlingua. `editor_sdk.py` is the same one on the published SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import interlingua as il


@il.agent
async def counter(text: str) -> AsyncIterator[str]:
    """Counts as far as it is told: "COUNT", or "COUNT WIDTH EVERY PAUSE" to rest a while after every so many tokens."""
    count, width, every, pause = [float(word) for word in text.split()] if " " in text else (float(text), 0, 0, 0)
    for index in range(int(count)):
        yield f"token{index}".ljust(int(width)) + " "
        if every and not (index + 1) % every:
            await asyncio.sleep(pause)
