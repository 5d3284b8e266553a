"""The agents that are measured. At the top level of a module, because worker processes load them by name."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import interlingua as il

FRAGMENT = "twenty characters..."


@il.agent
async def trivial(text: str) -> str:
    return text


async def fragments(count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield FRAGMENT


@il.agent
async def stream(count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield FRAGMENT


@il.agent(asks=[il.Confirm])
async def asks(text: str, ctx: il.Context[Any, Any]) -> str:
    verdict = await ctx.ask(il.Confirm(message=text))
    return "yes" if verdict.approved else "no"


enough = threading.Event()  # a thread cannot be stopped from outside, so this one looks


@il.agent
def spin(seconds: float) -> Iterator[str]:
    yield "spinning"  # so that whoever waits for it knows that it has begun
    end = time.monotonic() + seconds
    while time.monotonic() < end and not enough.is_set():
        pass


@il.agent(process=True)
def spin_elsewhere(seconds: float) -> Iterator[str]:
    yield "spinning"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
