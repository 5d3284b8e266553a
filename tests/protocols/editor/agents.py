"""Agents for the tests of the door."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

import interlingua as il


@il.agent
async def echo(text: str):
    """Repeats what it hears."""
    for word in text.split():
        yield word + " "


@il.agent
async def show(text: str, ctx: il.Context[Any, Any]):
    """Shows all that an agent can show."""
    await ctx.thought("Let me think.", id="t1")
    await ctx.plan([il.PlanEntry("look", status="completed"), il.PlanEntry("leap", priority="high"),
                    il.PlanEntry("rest", status="cancelled")])  # fmt: skip
    await ctx.tool_call("call-1", title="Edit", kind="edit", status="in_progress", input={"path": "/a.py"})
    await ctx.tool_call(
        "call-1", status="completed", output={"ok": True}, content=[il.TextPart("done")],
        diffs=[il.Diff("/a.py", "new\n", "old\n")], locations=[il.Location("/a.py", 3)],
    )  # fmt: skip
    await ctx.tool_call("call-2", title="Stopped", status="cancelled")
    await ctx.message("An aside.")
    await ctx.artifact("the whole text", name="report.txt")
    await ctx.warn("Something is odd.")
    ctx.usage(used=10, size=100, cost=0.5)
    yield "Shown."


class Chat(msgspec.Struct):
    said: list[str] = []


class Style(msgspec.Struct):
    tone: Literal["dry", "warm"] = "dry"
    loud: bool = False


@il.agent(skills=[il.Skill("count", "Count", "Counts what was said", examples=["count to ten"])])
async def remember(text: str, ctx: il.Context[Chat, Style]) -> str:
    """Remembers what was said."""
    ctx.state.said.append(text)
    told = f"{len(ctx.state.said)} in a {ctx.config.tone} tone"
    return told.upper() if ctx.config.loud else told


@il.agent(asks=[il.Confirm])
async def careful(text: str, ctx: il.Context[Any, Any]):
    """Asks before it does anything."""
    verdict = await ctx.ask(il.Confirm(message=f"Do {text}?"))
    yield "done" if verdict.approved else "left alone"


@il.agent(asks=[il.Choose])
async def chooser(text: str, ctx: il.Context[Any, Any]):
    options = [il.Option("red", "Red"), il.Option("blue", "Blue")]
    picked = await ctx.ask(il.Choose(message="Which colour?", options=options))
    yield picked.choice


class Address(msgspec.Struct):
    street: str
    number: int
    country: Literal["it", "fr"] = "it"


class WhereTo(il.Question[Address]):
    """Where shall it go?"""


@il.agent(asks=[WhereTo])
async def shipper(text: str, ctx: il.Context[Any, Any]):
    address = await ctx.ask(WhereTo())
    yield f"{address.street} {address.number} {address.country}"


class Table(il.Question[list[list[str]]]):
    """Which lines?"""


class Trip(msgspec.Struct):
    city: str
    stops: list[Address]
    notes: dict[str, str] = {}


class WhichWay(il.Question[Trip]):
    """Which way?"""


@il.agent(asks=[Table, WhichWay])
async def deep(text: str, ctx: il.Context[Any, Any]):
    """Asks for what is more than a flat form."""
    if text == "way":
        trip = await ctx.ask(WhichWay())
        yield f"{trip.city} {[stop.street for stop in trip.stops]} {trip.notes}"
    else:
        yield str(await ctx.ask(Table()))


@il.agent(asks=[il.AskText])
async def asker(text: str, ctx: il.Context[Any, Any]):
    name = await ctx.ask(il.AskText(message="What is your name?"))
    yield f"Hello {name.text}"


@il.agent
async def parts(text: str, ctx: il.Context[Any, Any]) -> dict[str, Any]:
    """Tells what it was given."""
    return {"text": text, "parts": [msgspec.to_builtins(part) for message in ctx.messages for part in message.parts]}


class Sum(msgspec.Struct):
    total: int


@il.agent
async def adder(a: int, b: int) -> Sum:
    """Takes and gives numbers."""
    return Sum(a + b)


@il.agent
async def slow(text: str):
    """Says one word, and then goes on for ever."""
    yield "begun "
    await asyncio.Event().wait()


class Broken(il.AgentError):
    """It is broken."""

    code = "broken"
    transient = True


@il.agent(errors=[Broken])
async def breaks(text: str):
    yield "so far "
    raise Broken("the tool is broken", details={"tool": "saw"})


@il.agent
async def files(text: str, ctx: il.Context[Any, Any]):
    """Uses the editor's files and terminals."""
    if ctx.editor is None:
        yield "no editor"
        return
    if not ctx.editor.can_read:
        yield "cannot read"
        return
    first = await ctx.editor.read("notes.txt", line=2, limit=1)
    await ctx.editor.write("out.txt", first.upper())
    terminal = await ctx.editor.run("ls", "-l", env={"A": "1"}, output_limit=100)
    ended = await terminal.wait()
    await terminal.release()
    yield f"{first.strip()} {ended.exit_code} {ended.output} {ctx.editor.cwd} {len(ctx.editor.mcp_servers)}"


@il.agent
async def listens(text: str, ctx: il.Context[Any, Any]):
    """Waits for a message."""
    message = await ctx.receive()
    yield f"heard {message.text}"


@il.agent
async def caller(text: str, ctx: il.Context[Any, Any]):
    """Calls another agent."""
    told = await ctx.call(echo, text=text)
    yield told["text"]
