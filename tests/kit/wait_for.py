"""Waiting for what nobody tells of: a condition is asked again until it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

PATIENCE = 60.0  # seconds, for a machine that is busy; nothing in a test should take one
_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # seconds

Found = TypeVar("Found")


@overload
async def wait_for(condition: Callable[[], Awaitable[Found]], seconds: float = ...) -> Found: ...
@overload
async def wait_for(condition: Callable[[], Found], seconds: float = ...) -> Found: ...
async def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Returns what the condition gave when it held."""
    pause = _PAUSE
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
