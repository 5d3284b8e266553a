"""Agents for the fault tests. Steps leave traces outside the store, so that what really ran can be counted."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import msgspec

import interlingua as il


def trace(run: str, what: str) -> str:
    """One write, at the end of the file: whole also under kill -9. Gives back a mark of its own."""
    mark = os.urandom(8).hex()
    fd = os.open(os.environ.get("TRACES", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{run} {what} {mark}\n".encode())
    os.close(fd)
    return mark


@il.agent
async def quick(n: int) -> int:
    return n


@il.agent
async def stream(n: int) -> AsyncIterator[str]:
    for word in range(n):
        yield f"{word} "
        if word % 7 == 0:
            await asyncio.sleep(0)


@il.agent
async def steps(ctx: il.Context[None, None], n: int) -> list[str]:
    """Each step leaves a trace and gives back its mark: the one that is recorded must be the last that ran."""
    return [await ctx.step(f"s{number}", trace, ctx.run_id, f"s{number}") for number in range(n)]


@il.agent
async def branches(ctx: il.Context[None, None], n: int) -> list[str]:
    """Branches come in another order at each entry. None may get the record of another."""

    async def bill(customer: str) -> str:
        await asyncio.sleep(random.random() / 100)
        invoice = await ctx.step("invoice", lambda: f"{customer}:{trace(ctx.run_id, customer)}")
        await asyncio.sleep(random.random() / 100)
        mailed = await ctx.step("mail", lambda: f"{customer}:{invoice}")
        assert invoice.startswith(f"{customer}:"), f"{customer} got {invoice}"
        assert mailed == f"{customer}:{invoice}", f"{customer} got {mailed}"
        return customer

    return list(await asyncio.gather(*(bill(f"c{number}") for number in range(n))))


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None], n: int) -> str:
    await ctx.thought("asking")
    verdict = await ctx.ask(il.Confirm(f"{n}?"))
    return f"{n} {verdict.approved}"


@il.agent
async def child_caller(ctx: il.Context[None, None], n: int) -> int:
    first = await ctx.call(quick, n=n)
    second = await ctx.call(quick, n=n + 1)
    return int(first + second)


class Tally(msgspec.Struct):
    total: int = 0


@il.agent
async def tally(ctx: il.Context[Tally, None], n: int) -> int:
    ctx.state.total += n
    return ctx.state.total


@il.agent
async def listener(ctx: il.Context[None, None], n: int) -> str:
    return " ".join([(await ctx.receive()).text for _ in range(n)])


@il.agent
async def endless(ctx: il.Context[None, None]) -> None:
    await ctx.thought("here")
    await asyncio.Event().wait()


ALL = [quick, stream, steps, branches, asker, child_caller, tally, listener, endless]
