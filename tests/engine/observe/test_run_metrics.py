"""What is counted for whoever watches: how long runs waited, ran and stood still, by agent and by caller."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import interlingua as il
from interlingua.engine.observe.run_metrics import OTHER, Busiest, Histogram, label
from interlingua.model.run import OWNER, Caller
from tests.kit.engines import crash, engine, finish, submit


def counts(busiest: Busiest) -> dict[str, int]:
    return {name: numbers.queued.count for name, numbers in busiest.all()}


def note(busiest: Busiest, name: str, times: int = 1) -> None:
    for _ in range(times):
        busiest.of(name).queued.add(0.5)


def test_the_first_names_have_numbers_of_their_own_and_the_rest_is_others() -> None:
    busiest = Busiest(2)
    for name in ("a", "b", "c", "d"):
        note(busiest, name, 3)
    assert counts(busiest) == {"a": 3, "b": 3, OTHER: 6}


def test_a_name_that_becomes_busier_takes_the_place_of_the_least_busy_one() -> None:
    busiest = Busiest(2)
    note(busiest, "a", 100)
    note(busiest, "b", 3)
    note(busiest, "late", 50)
    assert set(counts(busiest)) == {"a", "late", OTHER}
    assert sum(counts(busiest).values()) == 153


def test_what_was_busy_long_ago_gives_way_to_what_is_busy_now() -> None:
    busiest = Busiest(1)
    note(busiest, "old", 9_000)
    note(busiest, "new", 60_000)
    assert set(counts(busiest)) == {"new", OTHER}


def test_no_number_ever_falls_and_nothing_is_lost_whoever_comes_and_goes() -> None:
    chance = random.Random(7)
    busiest, before = Busiest(5), dict[str, int]()
    for at in range(30_000):
        name = f"n{int(chance.paretovariate(0.4)) % 3000 + at // 10_000}"
        shown = set(busiest.by_name)
        note(busiest, name)
        now = counts(busiest)
        assert len(now) <= 6
        assert now.get(OTHER, 0) >= before.get(OTHER, 0)
        for kept in shown & set(busiest.by_name):
            assert now[kept] >= before[kept]
        before = now
    assert sum(before.values()) == 30_000
    assert len(busiest._outside) <= 1001


def test_a_name_that_is_called_other_is_among_the_others() -> None:
    busiest = Busiest(2)
    note(busiest, OTHER, 2)
    assert counts(busiest) == {OTHER: 2}


def test_seconds_are_counted_by_the_first_bound_that_is_not_smaller() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.005, 0.006, 4000.0):
        histogram.add(seconds)
    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[-1] == 1
    assert histogram.count == 4


def test_callers_are_called_by_the_name_of_their_key_and_by_nothing_that_others_chose() -> None:
    assert label(Caller("key:8f3a", "laptop")) == "laptop"
    assert label(Caller("key:8f3a")) == OTHER
    assert label(OWNER) == "owner"
    assert label(Caller("anonymous", "anyone on this machine")) == "anonymous"
    assert label(Caller("https://issuer|eve@example.org", "Eve")) == OTHER


@il.agent
async def quick(text: str = "") -> str:
    return text


async def test_the_time_in_the_queue_begins_when_a_delay_is_over(store: Path) -> None:
    async with engine(store, quick) as eng:
        await finish(eng, "quick")
        await finish(eng, "quick", delay=0.3)
        numbers = eng.core.worker.meters.agents.of("quick")
        assert numbers.queued.count == 2
        assert numbers.queued.total < 0.3
        assert numbers.finished == {il.Status.SUCCEEDED: 2}
        assert eng.core.worker.meters.callers.of("owner").ran.count == 2


async def test_the_time_in_the_queue_begins_when_the_thread_is_free(store: Path) -> None:
    go = asyncio.Event()

    @il.agent
    async def turn() -> str:
        await go.wait()
        return ""

    async with engine(store, turn) as eng:
        thread = await eng.threads.create()
        first = await submit(eng, "turn", thread=thread.id, when_busy="enqueue")
        second = await submit(eng, "turn", thread=thread.id, when_busy="enqueue")
        asyncio.get_running_loop().call_later(0.3, go.set)
        await eng.runs.wait(first.id, timeout=20)
        assert (await eng.runs.wait(second.id, timeout=20)).status is il.Status.SUCCEEDED
        queued = eng.core.worker.meters.agents.of("turn").queued
        assert queued.count == 2
        assert queued.total < 0.3


async def test_a_run_that_finds_no_free_slot_is_counted_with_the_time_that_it_waited(store: Path) -> None:
    go = asyncio.Event()

    @il.agent
    async def busy() -> str:
        await go.wait()
        return ""

    one = il.Settings(max_running=1, sweep_every=0.05, stall_warning=0)
    async with engine(store, busy, settings=one) as eng:
        first, second = await submit(eng, "busy"), await submit(eng, "busy")
        asyncio.get_running_loop().call_later(0.2, go.set)
        for run in (first, second):
            await eng.runs.wait(run.id, timeout=20)
        assert 0.19 < eng.core.worker.meters.agents.of("busy").queued.total < 10


async def test_a_run_whose_worker_died_is_counted_with_the_time_that_it_stood_still(store: Path) -> None:
    entered, entries = asyncio.Event(), 0

    @il.agent
    async def stays() -> str:
        nonlocal entries
        entries += 1
        if entries == 1:
            entered.set()
            await asyncio.Event().wait()
        return "done"

    first = engine(store, stays)
    await first.start()
    run = await submit(first, "stays", caller=Caller("key:1", "laptop"))
    await entered.wait()
    await crash(first)
    async with engine(store, stays) as second:
        await second.runs.wait(run.id, timeout=20)
        meters = second.core.worker.meters
        assert meters.taken_over == 1
        assert meters.agents.of("stays").stood_still.count == 1
        assert meters.callers.of("laptop").stood_still.total > 0
        assert meters.agents.of("stays").queued.count == 0  # it had started before
