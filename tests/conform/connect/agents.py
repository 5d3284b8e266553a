"""Agents that use all that the protocol has: state, configuration, interrupts, errors of their own. And one that does
without most of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import interlingua as il


@dataclass
class Chat:
    messages: list[str] = field(default_factory=list)


@dataclass
class Style:
    style: Literal["formal", "friendly"] = "formal"


class Unwilling(il.AgentError):
    """It does not want to."""

    code = "unwilling"

    @dataclass
    class Details:
        mood: str


@il.agent(errors=[Unwilling], metadata={"url": "https://example.org/chat.json"})
async def chat(ctx: il.Context[Chat, Style], message: str):
    """Greets, and remembers what was said."""
    ctx.state.messages.append(message)
    yield "Good day, " if ctx.config.style == "formal" else "Hi, "
    yield message


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[Chat, None], message: str) -> str:
    """Asks before it does anything."""
    verdict = await ctx.ask(il.Confirm(f"Do {message}?"))
    return "done" if verdict.approved else "left alone"


@il.agent
async def sleeper(ctx: il.Context[Chat, None], message: str):
    """Says one word, and then nothing for a long time."""
    yield message + " "
    await asyncio.Event().wait()


@il.agent(errors=[Unwilling])
async def unwilling(message: str) -> str:
    """Always fails."""
    raise Unwilling(f"{message} is not for me", details={"mood": "bad"})


@il.agent(metadata={"connect": {"threads": False, "callbacks": False, "streaming": {"values": True}}})
async def plain(text: str) -> str:
    """Has no threads and no callbacks, and streams in one mode."""
    return text.upper()


@il.agent(metadata={"connect": {"threads": False, "callbacks": False, "streaming": {}}})
async def mute(text: str) -> str:
    """Does not stream at all."""
    return text.upper()
