"""What runs in the cluster that is broken: agents that count, roll dice and ask. Each takes a text, so that every door
can ask for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec

import interlingua as il


@il.agent
async def count(text: str, ctx: il.Context[Any, Any]) -> AsyncIterator[str]:
    """`N PAUSE`: counts, and each number is on record. Whoever takes it over goes on at once where it stood."""
    n, pause = text.split()
    for number in range(int(n)):
        yield f"{number} "
        await ctx.step(f"pause {number}", asyncio.sleep, float(pause))


@il.agent
async def dice(text: str) -> AsyncIterator[str]:
    """`N PAUSE`: never the same twice. Whoever takes it over must begin again, and say so."""
    n, pause = text.split()
    for _ in range(int(n)):
        yield f"{random.randrange(1_000_000)} "
        await asyncio.sleep(float(pause))


class Choice(msgspec.Struct):
    who: str


class Pick(il.Question[Choice]):
    """Who shall it be?"""

    number: int


@il.agent(asks=[Pick])
async def asker(text: str, ctx: il.Context[Any, Any]) -> AsyncIterator[str]:
    """`N`: asks so many times, and says each answer."""
    for number in range(int(text)):
        choice = await ctx.ask(Pick(number), key=f"pick {number}")
        yield f"{choice.who} "
