"""What a team costs: a delegation through the gate, one with oversight and one that proposes, beside a plain child run.

The agents on both sides do nothing, so what is measured is the engine and its store. Every side has to give back every
result, and what a call leaves in the store is counted, not guessed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

import interlingua as il
from interlingua.model.team.authority import Limits
from interlingua.model.team.manifest import Manifest, Options, Rule, Team
from interlingua.store.sqlite.store import SQLiteStore

from .agents import trivial
from .measure import ROUNDS, Line, disk_folder, interleave

TEXT = "What is said here comes back."
TEAM = "team"
PLAIN = "a plain child run"
Side = Literal["plain", "gate", "overseen", "proposing"]
WHAT: dict[Side, str] = {
    "gate": "delegation through the gate",
    "overseen": "delegation with oversight",
    "proposing": "an overseen agent that proposes, one inquiry",
}
# Many calls of one task are the point here, so its budget is no matter.
LIMITS = Limits(runs=1_000_000)
SETTINGS = il.Settings(stall_warning=0)
CROWD = 100
SHORT = 4 * ROUNDS  # many short rounds: a disk that is slow for a second is slow for both sides of one


class Took(msgspec.Struct):
    """When the first call was made, and when the last one was over."""

    begun: float
    ended: float


async def timed(call: Callable[[], Awaitable[dict[str, Any]]], count: int, at_once: int) -> Took:
    """Make `count` calls, `at_once` of them at a time."""
    left = count

    async def branch() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            output = await call()
            assert output == {"text": TEXT}, output

    begun = time.perf_counter()
    await asyncio.gather(*(branch() for _ in range(at_once)))
    return Took(begun, time.perf_counter())


@il.agent
async def calling(ctx: il.Context[None, None], target: str, count: int, at_once: int) -> Took:
    return await timed(lambda: ctx.call(target, TEXT), count, at_once)


@il.agent
async def delegating(ctx: il.Context[None, None], target: str, count: int, at_once: int) -> Took:
    return await timed(lambda: ctx.delegate(target, TEXT), count, at_once)


@il.agent
async def proposing(ctx: il.Context[None, None], text: str) -> str:
    async def reply(verdict: il.ReviewVerdict) -> str:
        return f"{verdict.inquiry} Yes."

    verdict = await ctx.delegate("asks_first", "Please look at this.", output=text, on_inquiry=reply)
    assert verdict["decision"] == "approve", verdict
    return text


@il.agent
async def approves(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
    assert ctx.review is not None
    return il.ReviewVerdict("approve", ctx.review.result_hash)


@il.agent
async def asks_first(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
    assert ctx.review is not None
    if not ctx.review.earlier:
        return il.ReviewVerdict("inquire", ctx.review.result_hash, inquiry="Is that all?")
    return il.ReviewVerdict("approve", ctx.review.result_hash)


def make_team() -> Team:
    """The lead delegates; of its three agents one works alone, one is overseen, and one proposes."""
    rules = {name: Rule("always") for name in ("gate", "overseen", "proposing")}
    options = Options(limits=LIMITS)
    manifests = [
        Manifest("lead", "", tuple(rules), rules, options=options),
        Manifest("gate", "", options=options),
        Manifest("overseen", "", overseer="approves", options=options),
        Manifest("proposing", "", ("asks_first",), {"asks_first": Rule("when it is done")}, "asks_first",
                 options=options),
        Manifest("approves", ""),
        Manifest("asks_first", ""),
    ]  # fmt: skip
    return Team(TEAM, {manifest.id: manifest for manifest in manifests}, entry="lead", limits=LIMITS)


HANDLERS: dict[str, il.Agent[..., Any]] = {
    "lead": delegating, "gate": trivial, "overseen": trivial, "proposing": proposing, "approves": approves,
    "asks_first": asks_first,
}  # fmt: skip


class Bench:
    """An engine with the team and the plain agents, and what a call costs there."""

    def __init__(self, engine: il.Engine, store: Path) -> None:
        self.engine = engine
        self.store = store
        engine.teams.add_team(make_team(), HANDLERS)

    async def task(self, side: Side, count: int, at_once: int = 1) -> tuple[str, Took]:
        """One run that makes so many calls."""
        agent, target = (calling.card.name, trivial.card.name) if side == "plain" else (TEAM, side)
        run = await self.engine.runs.submit(
            il.RunRequest(agent, input={"target": target, "count": count, "at_once": at_once})
        )
        done = await self.engine.runs.wait(run.id)
        assert done.status is il.Status.SUCCEEDED, done.error
        return run.id, msgspec.convert(done.output, Took)

    async def clients(self, side: Side, clients: int, count: int) -> float:
        """Microseconds per call, where so many runs call at once, each one call after the other."""
        found = await asyncio.gather(*(self.task(side, count) for _ in range(clients)))
        took = max(one.ended for _, one in found) - min(one.begun for _, one in found)
        return took / (clients * count) * 1e6

    async def crowd(self, side: Side, count: int) -> float:
        """Milliseconds until a run that makes all its calls at once has the last result."""
        _, took = await self.task(side, count, count)
        return (took.ended - took.begun) * 1000

    async def costs(self, side: Side, count: int, at_once: int = 1) -> str:
        """What a call leaves in the store, and in how many commits, without what a run without calls leaves there."""
        empty, full = [await self._left(side, calls, at_once) for calls in (0, count)]
        events, commits = ((more - less) / count for more, less in zip(full, empty, strict=True))
        return f"{events:.1f} events and {commits:.1f} commits each"

    async def _left(self, side: Side, count: int, at_once: int) -> tuple[int, int]:
        store = self.engine.core.store
        assert isinstance(store, SQLiteStore)
        before = store.batches
        run, _ = await self.task(side, count, at_once)
        return self._events(run), store.batches - before

    def _events(self, root: str) -> int:
        """Events of a run, and of all runs below it."""
        conn = sqlite3.connect(self.store)
        try:
            below = "SELECT id FROM runs WHERE id=? OR path LIKE ?"
            (found,) = conn.execute(
                f"SELECT count(*) FROM events WHERE run IN ({below})", (root, f"/{root}/%")
            ).fetchone()
            return int(found)
        finally:
            conn.close()


async def teams(quick: bool) -> list[Line]:
    rounds = 1 if quick else SHORT
    sides: list[Side] = ["plain", "gate", "overseen", "proposing"]
    lines = []
    with disk_folder() as folder:
        async with il.Engine(folder / "ours.db", agents=[trivial, calling], settings=SETTINGS) as engine:
            bench = Bench(engine, folder / "ours.db")
            notes = {side: await bench.costs(side, 5 if quick else 20) for side in sides}
            for clients in (1, 16):
                count = 2 if quick else {1: 10, 16: 4}[clients]
                measured = await interleave(rounds, *(partial(bench.clients, side, clients, count) for side in sides))
                for place, side in enumerate(sides[1:], 1):
                    line = Line("teams", f"{WHAT[side]}, {clients} at once", "µs per call", beside=PLAIN)
                    line.note = f"{notes[side]}; {PLAIN}: {notes['plain']}" if clients == 1 else ""
                    lines.append(measured.line(place, 0, line))
            crowd = 10 if quick else CROWD
            notes = {side: await bench.costs(side, crowd, crowd) for side in ("plain", "gate")}
            measured = await interleave(
                rounds, partial(bench.crowd, "gate", crowd), partial(bench.crowd, "plain", crowd)
            )
    per = measured.median(0) / crowd
    note = f"{per:.2f} ms per delegation; {notes['gate']}; {PLAIN}: {notes['plain']}"
    line = Line("teams", f"{crowd} delegations of one run at once", "ms", beside=f"{crowd} plain children", note=note)
    return [*lines, measured.line(0, 1, line)]
