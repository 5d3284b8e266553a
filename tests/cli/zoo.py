"""Agents that the tests run through the command line: one for each thing that a terminal has to show or ask."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Literal

import interlingua as il


@dataclass
class Report:
    text: str
    words: int


@dataclass
class Order:
    name: str
    count: int = 3
    size: Literal["small", "large"] = "small"
    notes: list[str] = field(default_factory=list)


class TakeOrder(il.Question[Order]):
    """What would you like?"""

    table: int


class Flag(il.Question[bool]):
    """Raise the flag?"""


@il.agent
def shout(text: str, mark: str = "!") -> str:
    """Says it louder."""
    return text.upper() + mark


@il.agent
async def report(topic: str) -> Report:
    return Report(f"All about {topic}.", 3)


@il.agent
async def total(values: list[int]) -> int:
    return sum(values)


@il.agent(asks=[il.Confirm])
async def confirm(ctx: il.Context[None, None], text: str = "it") -> str:
    verdict = await ctx.ask(il.Confirm(f"Shall I do {text}?"))
    return "done" if verdict.approved else f"stopped: {verdict.reason}"


@il.agent(asks=[il.Choose])
async def choose(ctx: il.Context[None, None]) -> str:
    options = [il.Option("r", "Red"), il.Option("g", "Green")]
    return (await ctx.ask(il.Choose("Which colour?", options))).choice


@il.agent(asks=[TakeOrder])
async def order(ctx: il.Context[None, None]) -> str:
    got = await ctx.ask(TakeOrder(table=7))
    return f"{got.count} {got.size} {got.name} {'/'.join(got.notes)}"


@il.agent(asks=[Flag])
async def flag(ctx: il.Context[None, None]) -> str:
    return "up" if await ctx.ask(Flag()) else "down"


@il.agent(asks=[il.Confirm])
async def twice(ctx: il.Context[None, None]) -> str:
    first = await ctx.ask(il.Confirm("First?"))
    second = await ctx.ask(il.Confirm("Second?"))
    return f"{first.approved} {second.approved}"


@il.agent
async def delegate(ctx: il.Context[None, None]) -> str:
    """Its child asks; whoever watches it is asked."""
    output = await ctx.call(confirm, text="the child's work")
    return f"child says {output['text'] if isinstance(output, dict) else output}"


@il.agent
async def busy(ctx: il.Context[None, None]) -> str:
    """Does a bit of everything."""
    await ctx.thought("hmm \x1b[31mred\x1b[0m")
    await ctx.plan([il.PlanEntry("look", "completed"), il.PlanEntry("leap", "in_progress"), "land"])
    await ctx.tool_call("t1", title="Edit notes", kind="edit", status="in_progress", input={"file": "notes.txt"})
    await ctx.tool_call("t1", status="completed", diffs=[il.Diff("notes.txt", "one\nthree\n", "one\ntwo\n")])
    await ctx.artifact("a result", name="result.txt")
    await ctx.message("by the way")
    await ctx.warn("careful")
    return "busy done"


@il.agent
async def crash(text: str = "") -> str:
    raise ValueError(f"boom {text}")


@il.agent
async def ticks(ctx: il.Context[None, None]) -> AsyncIterator[str]:
    """Never ends by itself."""
    number = 0
    while True:
        yield f"tick{number} "
        number += 1
        await ctx.sleep(0.05)


@il.agent
async def hold(text: str = "") -> str:
    await asyncio.sleep(3600)
    return text


@il.agent
def stubborn() -> Iterator[str]:
    """A plain function that nothing can stop."""
    yield "started "
    time.sleep(3600)


@il.agent
async def hog() -> AsyncIterator[str]:
    """Keeps the event loop to itself."""
    yield "hogging "
    await asyncio.sleep(0.3)
    while True:
        pass


@il.agent
async def mailbox(ctx: il.Context[None, None]) -> AsyncIterator[str]:
    yield "listening "
    yield f"got {(await ctx.receive()).text}"


@il.agent(name="remember")
async def remember(text: str, ctx: il.Context[dict[str, str], None]) -> str:
    before = ctx.state.get("last", "nothing")
    ctx.state["last"] = text
    return f"before: {before}"


@il.agent
async def chatty(text: str) -> str:
    print("printed by the way")
    return text


@il.agent
async def fickle(ctx: il.Context[None, None]) -> AsyncIterator[str]:
    """Says something else each time it is entered."""
    yield f"process {os.getpid()} "
    await ctx.sleep(0.01)
    yield "first "
    if not (ctx.now() and os.environ.get("FICKLE_ENDS")):
        await asyncio.sleep(3600)
    yield "end"


@il.agent(process=True)
def grind() -> Iterator[str]:
    """Keeps a CPU busy, in a process of its own."""
    yield "grinding"
    while True:
        pass
