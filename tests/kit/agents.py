"""Agents that ask, however deep."""

from __future__ import annotations

import interlingua as il


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None], text: str = "it") -> str:
    """Asks before it does anything."""
    await ctx.thought(f"shall I do {text}?")
    verdict = await ctx.ask(il.Confirm(f"Do {text}?"))
    return f"{verdict.approved} {verdict.reason}"


@il.agent
async def middle(ctx: il.Context[None, None], text: str = "it") -> str:
    """Has somebody else ask."""
    return str(await ctx.call(asker, text=text))


@il.agent
async def top(ctx: il.Context[None, None], text: str = "it") -> str:
    """Has somebody have somebody else ask."""
    return str(await ctx.call(middle, text=text))
