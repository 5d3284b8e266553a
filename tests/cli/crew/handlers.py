"""Who thinks in this team: the first word of a task says what it is about."""

import asyncio
import contextlib
from dataclasses import dataclass

import interlingua as il


@dataclass
class Order:
    name: str
    count: int


class TakeOrder(il.Question[Order]):
    """What would you like?"""


class Broken(il.AgentError):
    """It never works."""

    code = "broken"


@il.agent(name="pm-1", asks=[il.AskText, TakeOrder])
async def plan(text: str, ctx: il.Context[None, None]) -> str:
    match text.split()[0]:
        case "sales":
            return await sales(text, ctx)
        case "order":
            order = await ctx.ask(TakeOrder())
            return f"{order.count} {order.name}"
        case "write":
            try:
                written = await ctx.delegate("writer-1", text)
            except il.ChildFailed as failed:
                return f"not written: {failed.error.code}"
            return f"as written: {written['text']}"
        case "wait":
            return f"heard: {(await ctx.receive()).text}"
        case "break":
            raise ValueError("no plan")
    done = await ctx.delegate("analyst-1", text, timeout=0.1 if text.startswith("late") else None)
    return f"found: {done['text']}"


async def sales(text: str, ctx: il.Context[None, None]) -> str:
    market = await ctx.ask(il.AskText("Which market?"))

    async def reply(message: il.Message) -> str:
        return f"Yes, for {market.text}."

    with contextlib.suppress(il.Denied):
        await ctx.delegate("qa-1", "look at it")  # which is not for it to say
    found = await ctx.delegate(
        "analyst-1", f"analyse {text}", attachments=[il.ToolResultPart("total", 41, server="Figures")],
        reason="it is about numbers", on_message=reply,
    )  # fmt: skip
    return f"Report: {found['text']}"


@il.agent(name="analyst-1", errors=[Broken])
async def analyse(text: str, ctx: il.Context[None, None]) -> str:
    if text.startswith("listen"):
        return f"heard {(await ctx.receive(sender='user')).text}"
    if text.startswith("late"):
        await asyncio.sleep(3600)
    if text.startswith("fail"):
        raise Broken("it broke")
    total = await ctx.tool("Figures", "total", {"quarter": "Q4"})
    with contextlib.suppress(il.Denied):
        await ctx.tool("Figures", "drop", {"table": "sales"})
    if ctx.inquiries:
        return f"{total['total']}, from the closed sales"
    await ctx.send("pm-1", "Should I look further?", attachments=[il.ToolResultPart("total", total, server="Figures")])
    answer = await ctx.receive(sender="pm-1")
    return f"{total['total']} ({answer.text})"


@il.agent(name="qa-1")
async def verify(text: str, ctx: il.Context[None, None]) -> il.ReviewVerdict:
    assert ctx.review is not None
    if ctx.review.earlier or "heard" in str(ctx.review.result.output):
        return il.ReviewVerdict("approve", ctx.review.result_hash, reason="Verified.")
    return il.ReviewVerdict("inquire", ctx.review.result_hash, inquiry="Which source?")


@il.agent(name="writer-1")
async def write(text: str, ctx: il.Context[None, None]) -> str:
    return f"Dear all, {len(ctx.inquiries)} times asked."
