"""How many runs of one agent are at it at once, and that nobody else waits for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import DefinitionError
from tests.kit.engines import PATIENT, QUICK, engine, finish, question, submit

# Nothing is found by looking now and then: what happens, happens because somebody said so.
RARELY = msgspec.structs.replace(PATIENT, sweep_every=30)


class Busy:
    """An agent whose runs are counted, and end when they may."""

    def __init__(self, name: str = "busy", version: str = "0.1.0", **options: Any) -> None:
        self.running = self.most = 0
        self.go = asyncio.Event()
        self.entered = asyncio.Condition()

        @il.agent(name=name, version=version, **options)
        async def busy() -> str:
            async with self.entered:
                self.running += 1
                self.most = max(self.most, self.running)
                self.entered.notify_all()
            await self.go.wait()
            self.running -= 1
            return name

        self.agent = busy

    async def has(self, running: int) -> None:
        async with asyncio.timeout(10), self.entered:
            await self.entered.wait_for(lambda: self.running == running)


async def test_an_agent_runs_as_often_at_once_as_it_says(store: Path) -> None:
    busy = Busy(max_running=2)
    async with engine(store, busy.agent, settings=RARELY) as eng:
        runs = [await submit(eng, "busy") for _ in range(8)]
        await busy.has(2)
        busy.go.set()
        for run in runs:  # each place that gets free is taken at once
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED
    assert busy.most == 2


async def test_runs_that_are_submitted_together_stay_within_the_limit(store: Path) -> None:
    busy = Busy(max_running=1)
    async with engine(store, busy.agent, settings=RARELY) as eng:
        runs = await asyncio.gather(*(submit(eng, "busy") for _ in range(8)))
        await busy.has(1)
        busy.go.set()
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED
    assert busy.most == 1


async def test_runs_that_wait_for_an_agent_at_its_limit_hold_up_nobody_else(store: Path) -> None:
    busy, asked = Busy(max_running=1), list[list[str]]()

    @il.agent
    async def quick(ctx: il.Context[None, None]) -> str:
        return "done"

    async with engine(store, busy.agent, quick, settings=RARELY) as eng:
        runs = [await submit(eng, "busy") for _ in range(30)]
        claim = eng.core.store.claims.claim

        async def listed(worker: str, queues: list[str], *args: Any, **options: Any) -> Any:
            asked.append(queues)
            return await claim(worker, queues, *args, **options)

        eng.core.store.claims.claim = listed  # type: ignore[method-assign]
        for _ in range(5):
            assert (await finish(eng, "quick", delay=0.01)).output == {"text": "done"}
        assert asked
        assert all(queues == [eng.agents.queue(quick)] for queues in asked)  # nobody looks for what could not start
        busy.go.set()
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert busy.most == 1


async def test_what_is_set_for_an_agent_comes_before_what_it_says_and_counts_all_its_versions(store: Path) -> None:
    first, second, third = Busy(version="1", max_running=5), Busy(version="2", max_running=5), Busy("other")
    settings = msgspec.structs.replace(RARELY, agents={"busy": 3, "other@0.1.0": 1})
    async with engine(store, first.agent, second.agent, third.agent, settings=settings) as eng:
        runs = [await submit(eng, "busy", version=str(1 + place % 2)) for place in range(8)]
        runs += [await submit(eng, "other") for _ in range(3)]
        await third.has(1)
        assert first.running + second.running == 3
        for one in (first, second, third):
            one.go.set()
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED
    assert first.most + second.most <= 6
    assert third.most == 1


async def test_a_version_that_shares_its_places_with_another_gets_them_where_that_needs_none(store: Path) -> None:
    first, second = Busy(version="1"), Busy(version="2")
    second.go.set()
    settings = msgspec.structs.replace(RARELY, agents={"busy": 1})
    async with engine(store, first.agent, second.agent, settings=settings) as eng:
        runs = [await submit(eng, "busy", version="2", delay=0.01) for _ in range(4)]
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED
    assert (first.most, second.most) == (0, 1)


async def test_a_process_that_may_run_none_of_an_agent_leaves_its_runs_to_others(store: Path) -> None:
    here, there = Busy(), Busy()
    here.go.set()
    there.go.set()
    async with (
        engine(store, here.agent, settings=msgspec.structs.replace(QUICK, agents={"busy": 0})) as eng,
        engine(store, there.agent, settings=QUICK),
    ):
        assert (await finish(eng, "busy")).output == {"text": "busy"}
    assert (here.most, there.most) == (0, 1)


async def test_an_agent_that_waits_for_an_answer_gives_its_place_to_the_next(store: Path) -> None:
    @il.agent(max_running=1, asks=[il.Confirm])
    async def asker(ctx: il.Context[None, None]) -> str:
        return str(await ctx.ask(il.Confirm("Shall I?")))

    async with engine(store, asker, settings=RARELY) as eng:
        runs = [await submit(eng, "asker") for _ in range(3)]
        questions = [await question(eng, run.id) for run in runs]
        for one in questions:
            await eng.questions.answer(one.id, {"approved": True})
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED


async def test_a_reloaded_agent_has_its_new_limit_and_what_runs_counts_for_it(store: Path) -> None:
    before, after = Busy(max_running=1), Busy(max_running=2)
    async with engine(store, before.agent, settings=RARELY) as eng:
        runs = [await submit(eng, "busy") for _ in range(4)]
        await before.has(1)
        eng.teams.exchange([before.agent], [after.agent])
        await after.has(1)
        assert (before.running, after.running) == (1, 1)
        before.go.set()
        await after.has(2)
        after.go.set()
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED
    assert after.most == 2


def test_a_limit_is_at_least_one() -> None:
    with pytest.raises(DefinitionError, match="max_running is 0"):

        @il.agent(max_running=0)
        async def never() -> str:
            return ""
