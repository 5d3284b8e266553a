"""Waiting in memory follows the wall clock, as waiting in the store does: also when the time is set."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

import interlingua as il
from tests.kit.engines import PATIENT, QUICK, engine, parked, settle, submit, waits

HOUR = 3600


class Clock:
    """The wall clock, as far as this program sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = time.time_ns
        monkeypatch.setattr("time.time_ns", lambda: real() + int(self.ahead * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@il.agent
async def sleeps(ctx: il.Context[None, None], seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@il.agent(asks=[il.Confirm])
async def asks(ctx: il.Context[None, None]) -> str:
    try:
        await ctx.ask(il.Confirm("Go on?"), deadline=HOUR)
    except il.QuestionExpired:
        return "expired"
    return "answered"


@il.agent
async def receives(ctx: il.Context[None, None]) -> str:
    try:
        await ctx.receive(timeout=HOUR)
    except TimeoutError:
        return "nothing came"
    return "something came"


@pytest.mark.parametrize("where", ["memory", "store"])
async def test_a_wait_ends_when_the_time_is_set_forward(store: Path, clock: Clock, where: str) -> None:
    settings = PATIENT if where == "memory" else QUICK
    async with engine(store, sleeps, asks, receives, settings=settings) as eng:
        runs = [
            await submit(eng, "sleeps", {"seconds": HOUR}),
            await submit(eng, "asks"),
            await submit(eng, "receives"),
        ]
        for run in runs:
            if where == "store":
                await parked(eng, run.id)
            else:
                await waits(eng, run.id)
        clock.ahead = HOUR + 1
        outputs = [(await eng.runs.wait(run.id, timeout=20)).output for run in runs]
        assert outputs == [{"text": "awake"}, {"text": "expired"}, {"text": "nothing came"}]


@pytest.mark.parametrize("where", ["memory", "store"])
async def test_a_wait_goes_on_when_the_time_is_set_back(store: Path, clock: Clock, where: str) -> None:
    settings = msgspec.structs.replace(PATIENT if where == "memory" else QUICK, sweep_every=0.02)
    async with engine(store, sleeps, settings=settings) as eng:
        run = await submit(eng, "sleeps", {"seconds": 0.3})
        await (parked(eng, run.id) if where == "store" else waits(eng, run.id))
        clock.ahead = -HOUR
        await asyncio.sleep(0.4)
        await settle()
        assert not (await eng.runs.get(run.id)).status.final
        clock.ahead = 0
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "awake"}
