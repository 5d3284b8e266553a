"""The agents that our own doors are looked at with: one for every role that checks know."""

from __future__ import annotations

import asyncio

import interlingua as il


@il.agent
async def echo(text: str):
    """Repeats what it hears, word by word."""
    for word in text.split():
        yield word + " "


@il.agent(asks=[il.Confirm])
async def careful(ctx: il.Context[None, None], text: str) -> str:
    """Asks before it does anything."""
    verdict = await ctx.ask(il.Confirm(f"Do {text}?"))
    return "done" if verdict.approved else "left alone"


@il.agent
async def slow(text: str):
    """Says one word, and then nothing for a long time."""
    yield text + " "
    await asyncio.Event().wait()


@il.agent
async def broken(text: str) -> str:
    """Always fails."""
    raise il.AgentError(f"{text} cannot be done")


@il.agent
async def adder(numbers: list[int]) -> dict[str, int]:
    """Adds numbers."""
    return {"total": sum(numbers)}
