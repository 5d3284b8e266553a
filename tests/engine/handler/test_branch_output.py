"""Output of branches at replay: each branch repeats its own, in whatever order the branches come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.events import OutputDelta, RunRestarted, Thought
from tests.kit.engines import engine, kinds, log, parked, question, submit


class Turns:
    """Lets branches come in an order that may be another one at the next entry."""

    def __init__(self, *orders: str) -> None:
        self.orders = list(orders)
        self.entries = 0

    def enter(self) -> None:
        self._order = self.orders[min(self.entries, len(self.orders) - 1)]
        self._moved = asyncio.Event()
        self._at = 0
        self.entries += 1

    async def take(self, name: str) -> None:
        """Wait until it is the turn of this branch."""
        while self._at < len(self._order) and self._order[self._at] != name:
            await self._moved.wait()
        self._at += 1
        self._moved.set()
        self._moved = asyncio.Event()


def standing(events: list[il.Event]) -> list[Any]:
    """What counts in a log, as a reader has it."""
    found: list[tuple[int, Any]] = []
    for event in events:
        if isinstance(event.body, RunRestarted):
            keep = event.body.keep
            found = [(seq, body) for seq, body in found if seq <= keep]
        elif isinstance(event.body, OutputDelta | Thought):
            found.append((event.seq, event.body))
    return [body for _, body in found]


def output(events: list[il.Event]) -> Any:
    joined = Joiner()
    for body in standing(events):
        if isinstance(body, OutputDelta):
            joined.add(body.delta)
    return joined.value


async def go_on(eng: il.Engine, run: str) -> il.Run:
    """Answer the only question of a run that was parked, and wait for its end."""
    asked = await question(eng, run)
    await parked(eng, run)
    await eng.questions.answer(asked.id, {"approved": True})
    return await eng.runs.wait(run, timeout=20)


@pytest.mark.parametrize("what", ["output", "thoughts"])
@pytest.mark.parametrize("again", ["abab", "bbaa", "baab"])
async def test_branches_that_show_the_same_in_another_order_restart_nothing(store: Path, what: str, again: str) -> None:
    turns = Turns("aabb", again)

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        async def show(name: str) -> None:
            for number in range(2):
                await turns.take(name)
                word = f"{name}{number} "
                await (ctx.emit(word) if what == "output" else ctx.thought(word))

        turns.enter()
        await asyncio.gather(show("a"), show("b"))
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        done = await go_on(eng, run.id)
        assert turns.entries == 2
        assert done.output == {"text": "a0 a1 b0 b1 end" if what == "output" else "end"}
        events = await log(eng, run.id)
        assert "restarted" not in await kinds(eng, run.id)
        assert output(events) == done.output
        thoughts = [body.text for body in standing(events) if isinstance(body, Thought)]
        assert thoughts == ([] if what == "output" else ["a0 ", "a1 ", "b0 ", "b1 "])


@pytest.mark.parametrize("order", ["abab", "aabb", "bbaa"])
async def test_what_one_branch_shows_differently_leaves_that_of_others_as_it_was(store: Path, order: str) -> None:
    turns = Turns("abab", order)

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        async def show(name: str) -> None:
            for number in range(2):
                await turns.take(name)
                await ctx.emit(f"{name}{number if name == 'a' else 10 * turns.entries + number} ")

        turns.enter()
        await asyncio.gather(show("a"), show("b"))
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        done = await go_on(eng, run.id)
        words = done.output["text"].split()
        assert sorted(words) == ["a0", "a1", "b20", "b21", "end"]
        assert [word for word in words if word[0] == "b"] == ["b20", "b21"]
        assert [word for word in words if word[0] == "a"] == ["a0", "a1"]
        assert output(await log(eng, run.id)) == done.output


async def test_a_branch_that_shows_more_than_before_voids_nothing_of_others(store: Path) -> None:
    turns = Turns("ab", "ba")

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        async def show(name: str) -> None:
            await turns.take(name)
            await ctx.emit(f"{name} ")
            if name == "b" and turns.entries == 2:
                await ctx.emit("more ")

        turns.enter()
        await asyncio.gather(show("a"), show("b"))
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        done = await go_on(eng, run.id)
        assert done.output == {"text": "a b more end"}
        assert "restarted" not in await kinds(eng, run.id)


async def test_what_a_branch_showed_since_stands_when_another_shows_less(store: Path) -> None:
    """It was added before the difference was seen, and is added again after the restart."""
    turns = Turns("ab", "ba")

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        async def show(name: str) -> None:
            await turns.take(name)
            if name == "b" or turns.entries == 1:
                await ctx.emit(f"{name} ")
            if name == "b" and turns.entries == 2:
                await ctx.emit("more ")

        turns.enter()
        await asyncio.gather(show("a"), show("b"))
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        done = await go_on(eng, run.id)
        assert done.output == {"text": "b more end"}
        assert output(await log(eng, run.id)) == done.output
        assert (await kinds(eng, run.id)).count("restarted") == 1


async def test_a_recorded_step_that_was_passed_before_a_restart_shows_its_output_once(store: Path) -> None:
    turns = Turns("ab", "ba")

    async def stream(ctx: il.Context[None, None]) -> str:
        await ctx.emit("step ")
        return "step"

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        async def step() -> None:
            await turns.take("b")
            await ctx.step("stream", stream, ctx)

        async def show() -> None:
            await turns.take("a")
            await ctx.emit(f"entry {turns.entries} ")

        turns.enter()
        await asyncio.gather(show(), step())
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        done = await go_on(eng, run.id)
        assert sorted(done.output["text"].split()) == ["2", "end", "entry", "step"]
        assert output(await log(eng, run.id)) == done.output


async def test_a_step_that_is_tried_again_after_a_restart_takes_back_only_its_own(store: Path) -> None:
    """A branch shows something else while another has a step under way whose first attempt fails."""
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal entries
        entries += 1
        entry, begun, shown = entries, asyncio.Event(), asyncio.Event()
        attempts = 0

        async def stream() -> AsyncIterator[str]:
            nonlocal attempts
            attempts += 1
            yield f"attempt-{attempts} "
            begun.set()
            await shown.wait()
            if attempts == 1:
                raise RuntimeError("once more")

        async def show() -> None:
            await ctx.emit("same ")
            await ctx.ask(il.Confirm("Go on?"))
            await ctx.step("stream", stream, retries=1, backoff=0)

        async def differs() -> None:
            if entry > 1:
                await begun.wait()
            await ctx.emit(f"entry-{entry} ")
            shown.set()

        await asyncio.gather(show(), differs())
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        done = await go_on(eng, run.id)
        assert sorted(done.output["text"].split()) == ["attempt-2", "end", "entry-2", "same"]
        assert output(await log(eng, run.id)) == done.output
