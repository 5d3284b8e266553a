"""Agents that clients of the published SDKs list and run. A file of its own, so that our commands can load it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

import interlingua as il

_stopped: asyncio.Queue[str] = asyncio.Queue()


@il.agent
async def echo(text: str):
    """Repeats what it hears, word by word."""
    for word in text.split():
        yield word + " "


class Total(msgspec.Struct):
    total: int
    seen: list[int]
    note: str | None = None


@il.agent
async def adder(numbers: list[int], ctx: il.Context[Any, Any]) -> Total:
    """Adds numbers, and shows each as it goes."""
    for number in numbers:
        await ctx.emit({"total": number, "seen": [None, number]})
    return Total(sum(numbers), numbers, "done")


@il.agent
async def endless(text: str):
    """Says one word, and goes on until it is stopped."""
    yield "begun "
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _stopped.put_nowait(text)
        raise


@il.agent
async def witness() -> str:
    """Tells what `endless` was busy with when it was stopped; waits for that."""
    return await _stopped.get()


class Broken(il.AgentError):
    """It is broken."""

    code = "broken"
    transient = True


@il.agent(errors=[Broken])
async def breaks(text: str):
    """Fails in the middle."""
    yield "so far "
    raise Broken(f"the {text} is broken", details={"tool": text})


@il.agent(asks=[il.Confirm])
async def careful(text: str, ctx: il.Context[Any, Any]):
    """Asks before it does anything."""
    yield "asking. "
    verdict = await ctx.ask(il.Confirm(message=f"Do {text}?"))
    yield "done" if verdict.approved else "left alone" if verdict.reason is None else f"left alone: {verdict.reason}"


class Address(msgspec.Struct):
    street: str
    number: int


class WhereTo(il.Question[Address]):
    """Where shall it go?"""


@il.agent(asks=[WhereTo])
async def shipper(text: str, ctx: il.Context[Any, Any]) -> str:
    """Asks for an address."""
    address = await ctx.ask(WhereTo())
    return f"{text} to {address.street} {address.number}"


class Table(il.Question[list[list[str]]]):
    """Which lines?"""


@il.agent(asks=[Table])
async def deep(text: str, ctx: il.Context[Any, Any]) -> str:
    """Asks for what is more than a flat form."""
    return str(await ctx.ask(Table()))


class Style(msgspec.Struct):
    tone: str = "dry"


@il.agent(name="org.acme.styled", version="2.0.0")
async def styled(text: str, ctx: il.Context[None, Style]) -> str:
    """Speaks in a tone."""
    return f"{text} in a {ctx.config.tone} tone"
