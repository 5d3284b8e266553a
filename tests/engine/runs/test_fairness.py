"""Where more is due than can run: callers and agents take turns, and who is in line is not overtaken by who comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

import interlingua as il
from tests.kit.engines import PATIENT, engine, submit

ONE = msgspec.structs.replace(PATIENT, max_running=1)


def caller(name: str) -> il.Caller:
    return il.Caller(name)


async def test_a_caller_with_one_run_does_not_wait_for_the_many_of_another(store: Path) -> None:
    gate, order = asyncio.Event(), list[str]()

    @il.agent
    async def work(who: str) -> str:
        await gate.wait()
        order.append(who)
        return who

    async with engine(store, work, settings=ONE) as eng:
        runs = [await submit(eng, "work", {"who": "greedy"}, caller=caller("greedy")) for _ in range(40)]
        runs.append(await submit(eng, "work", {"who": "modest"}, caller=caller("modest")))
        gate.set()
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert order.index("modest") <= 2


async def test_who_comes_when_a_slot_gets_free_does_not_overtake_who_waits_for_it(store: Path) -> None:
    gate, order, runs = asyncio.Event(), list[str](), list[il.Run]()

    @il.agent
    async def work(who: str) -> str:
        order.append(who)
        await gate.wait()
        return who

    async with engine(store, work, settings=ONE) as eng:
        first = await submit(eng, "work", {"who": "first"}, caller=caller("x"))
        second = await submit(eng, "work", {"who": "second"}, caller=caller("y"))
        while not eng.core.worker.limits.starved:  # it has been seen that one waits
            await asyncio.sleep(0)
        gate.set()
        while eng.core.worker.running:
            await asyncio.sleep(0)
        third = await submit(eng, "work", {"who": "third"}, caller=caller("z"))  # the slot is free, and not taken yet
        runs += [first, second, third]
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert order == ["first", "second", "third"]


async def test_agents_take_turns(store: Path) -> None:
    gate, order = asyncio.Event(), list[str]()

    @il.agent
    async def long() -> str:
        await gate.wait()
        order.append("long")
        return ""

    @il.agent
    async def short() -> str:
        order.append("short")
        return ""

    async with engine(store, long, short, settings=ONE) as eng:
        runs = [await submit(eng, "long") for _ in range(20)]
        runs += [await submit(eng, "short") for _ in range(4)]
        gate.set()
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert order[:10].count("short") == 4
