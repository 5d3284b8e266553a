"""Idempotency keys: one key is one run and one call of the agent, whoever uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.ids import new_id
from interlingua.model.errors import KeyReused, Overloaded
from interlingua.model.filters import RunFilter
from interlingua.model.run import RunRequest
from interlingua.store.sql.store import SqlStore
from tests.kit.engines import engine, finish


def asked(text: str = "x", key: str | None = "once") -> RunRequest:
    return RunRequest("count", None, {"text": text}, key=key)


def counting(calls: list[str]) -> il.Agent[..., Any]:
    @il.agent
    async def count(text: str) -> str:
        calls.append(text)
        return text

    return count


@pytest.mark.parametrize("key", [None, "once"])
async def test_a_short_run_is_two_commits_with_and_without_a_key(store: Path, key: str | None) -> None:
    async with engine(store, counting([])) as eng:
        assert isinstance(eng.core.store, SqlStore)
        before = eng.core.store.batches
        run = await eng.runs.submit(asked(key=key))
        assert run.run.status is il.Status.PENDING  # as it is on disk
        assert eng.core.store.batches == before + 1
        assert (await eng.runs.wait(run.id)).status is il.Status.SUCCEEDED
        assert eng.core.store.batches == before + 2


async def test_a_key_that_comes_again_gives_the_run_that_it_made(store: Path) -> None:
    calls: list[str] = []
    async with engine(store, counting(calls)) as eng:
        made = await asyncio.gather(*(eng.runs.submit(asked()) for _ in range(5)))
        with pytest.raises(KeyReused):
            await eng.runs.submit(asked("y"))
    async with engine(store, counting(calls)) as eng:
        made.append(await eng.runs.submit(asked()))
    assert len({run.id for run in made}) == 1
    assert calls == ["x"]


async def test_a_key_that_comes_again_gives_its_run_also_where_no_more_runs_may_wait(store: Path) -> None:
    calls: list[str] = []
    go = asyncio.Event()

    @il.agent
    async def slow() -> str:
        await go.wait()
        return "done"

    settings = il.Settings(max_running=1, max_pending=1, stall_warning=0)
    async with engine(store, counting(calls), slow, settings=settings) as eng:
        made = await eng.runs.submit(asked())
        await eng.runs.wait(made.id, timeout=20)
        await eng.runs.submit(RunRequest("slow", None, {}))
        await eng.runs.submit(asked(key="waits"))
        with pytest.raises(Overloaded):
            await eng.runs.submit(asked(key="new"))
        assert (await eng.runs.submit(asked())).id == made.id
        go.set()
        assert len(await eng.runs.search(RunFilter())) == 3


async def test_a_key_that_two_engines_use_in_the_same_moment_is_one_run_and_one_call(store: Path) -> None:
    calls: list[str] = []
    async with engine(store, counting(calls)) as one, engine(store, counting(calls)) as other:
        for text in map(str, range(20)):
            both = await asyncio.gather(*(eng.runs.submit(asked(text, key=text)) for eng in (one, other)))
            assert both[0].id == both[1].id
            assert (await one.runs.wait(both[0].id, timeout=20)).output == {"text": text}
        assert sorted(calls, key=int) == [str(n) for n in range(20)]
        assert len(await one.runs.search(RunFilter(agent="count", limit=100))) == 20
        assert (one.core.worker.running, other.core.worker.running) == (0, 0)


async def test_a_child_that_is_submitted_twice_is_one_run(store: Path) -> None:
    calls: list[str] = []
    async with engine(store, counting(calls)) as eng:
        parent = await eng.runs.row((await finish(eng, "count", {"text": "parent"})).id)
        child = new_id()
        twice = (eng.runs.submit(asked("child", key=None), run=child, parent=parent) for _ in range(2))
        await asyncio.gather(*twice)
        await eng.runs.submit(asked("child", key=None), run=child, parent=parent)
        assert (await eng.runs.wait(child, timeout=20)).output == {"text": "child"}
        assert calls == ["parent", "child"]
