"""A run is on disk before it is entered: a refusal means that nothing happened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import AlreadyFinished, InterlinguaError, Overloaded, StoreError, Unavailable
from interlingua.model.filters import RunFilter
from interlingua.store.sql.dialect import Pipelined
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.databases import sql
from tests.kit.engines import PATIENT, engine, finish, submit


class Paying:
    """An agent that notes its calls, in several shapes, and what was on disk when it was called."""

    def __init__(self, store: Path | str) -> None:
        self.calls: list[str] = []
        self.on_disk: list[list[str]] = []
        self.store = store

    def pay(self, what: str) -> str:
        self.calls.append(what)
        self.on_disk.append([kind for (kind,) in sql(self.store, "SELECT kind FROM events ORDER BY seq")])
        return what

    def agents(self, retries: int = 3) -> list[il.Agent[..., Any]]:
        @il.agent(retries=retries)
        async def pay(what: str) -> str:
            return self.pay(what)

        @il.agent(retries=retries)
        def pay_sync(what: str) -> str:
            return self.pay(what)

        @il.agent
        async def calls_pay(ctx: il.Context[None, None], what: str) -> str:
            return str((await ctx.call("pay", what))["text"])

        return [pay, pay_sync, calls_pay]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "key": {"key": "once"},
    "thread": {"thread": "t", "create_thread": True},
    "delay": {"delay": 0.01},
}


@pytest.mark.parametrize("how", [*OPTIONS, "sync", "child"])
async def test_the_start_of_an_agent_that_must_not_be_repeated_is_on_disk_when_it_is_called(
    store: Path, how: str
) -> None:
    paying = Paying(store)
    async with engine(store, *paying.agents(retries=0), settings=PATIENT) as eng:
        agent = {"sync": "pay_sync", "child": "calls_pay"}.get(how, "pay")
        run = await finish(eng, agent, {"what": "x"}, **OPTIONS.get(how, {}))
        assert run.status is il.Status.SUCCEEDED
    (kinds,) = paying.on_disk
    assert kinds.count("started") == (2 if how == "child" else 1)
    assert "finished" not in kinds


@pytest.mark.parametrize("how", [*OPTIONS, "child"])
async def test_a_run_is_on_disk_when_its_agent_is_called(store: Path, how: str) -> None:
    paying = Paying(store)
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        await finish(eng, "calls_pay" if how == "child" else "pay", {"what": "x"}, **OPTIONS.get(how, {}))
    (kinds,) = paying.on_disk
    assert kinds.count("created") == (2 if how == "child" else 1)


def fails_to_write(eng: il.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    writer: Any = eng.core.store.database.writer  # type: ignore[attr-defined]
    transaction = writer._transaction

    def refuse(sealed: Any, calls: Any, results: Any) -> None:
        if any(isinstance(call, Pipelined) for call, *_ in calls):
            raise OSError("the disk is full")
        transaction(sealed, calls, results)

    monkeypatch.setattr(writer, "_transaction", refuse)


def cannot_keep_up(eng: il.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eng.core.store.runs, "backlog", lambda: 1_000_000)


def is_closed(eng: il.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eng.core.store.database.writer, "_closing", True)  # type: ignore[attr-defined]


def stops(eng: il.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eng.core.admission, "is_open", False)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("why", "error"),
    [(fails_to_write, StoreError), (cannot_keep_up, Overloaded), (is_closed, StoreError), (stops, Unavailable)],
)
async def test_a_submission_that_is_refused_has_called_no_agent_and_left_nothing(
    store: Path, why: Any, error: type[InterlinguaError], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paying = Paying(store)
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        with monkeypatch.context() as patch:
            why(eng, patch)
            with pytest.raises(error):
                await submit(eng, "pay", {"what": "refused"}, **options)
        assert (eng.core.worker.running, eng.core.worker.limits.reserved) == (0, 0)
        assert await eng.runs.search(RunFilter()) == []
        run = await finish(eng, "pay", {"what": "taken"}, **options)  # the key and the thread are free
        assert run.status is il.Status.SUCCEEDED
    assert paying.calls == ["taken"]


async def test_with_a_full_disk_agents_are_called_for_the_runs_that_were_accepted_and_no_others(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store.db"
    paying = Paying(store)
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        await finish(eng, "pay", {"what": "before"})
        assert isinstance(eng.core.store, SQLiteStore)
        await eng.core.store.database.write(
            lambda conn: conn.execute("PRAGMA max_page_count=1").fetchall()
        )  # what it has, no more
        accepted = ["before"]
        for n in range(50):
            try:
                made = await submit(eng, "pay", {"what": str(n)}, metadata={"padding": "x" * 5000})
            except StoreError:
                continue
            accepted.append(str(n))
            with pytest.raises(TimeoutError):
                await eng.runs.wait(made.id, timeout=0)
        assert len(accepted) < 51
        assert set(paying.calls) <= set(accepted)
        assert len(await eng.runs.search(RunFilter(limit=100))) == len(accepted)


async def test_a_caller_that_goes_away_while_its_run_is_written_down_leaves_a_whole_run(store: Path) -> None:
    paying = Paying(store)
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        await finish(eng, "pay", {"what": "first"})
        for n in range(10):
            going = asyncio.ensure_future(submit(eng, "pay", {"what": str(n)}))
            for _ in range(n):
                await asyncio.sleep(0)
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
        await finish(eng, "pay", {"what": "last"})  # written after all of these
        runs = await eng.runs.search(RunFilter(limit=100))
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
        assert len(paying.calls) == len(runs)
        assert (eng.core.worker.running, eng.core.worker.limits.reserved) == (0, 0)


async def test_the_view_of_a_submission_is_what_is_on_disk(store: Path) -> None:
    paying = Paying(store)
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        made = await submit(eng, "pay", {"what": "x"})
        ((seq, status),) = sql(store, "SELECT e.seq, 'pending' FROM events e WHERE e.run=? AND e.seq=1", made.id)
        assert (made.seq, made.status.value) == (seq, status)
        assert (await eng.runs.wait(made.id, timeout=20)).status is il.Status.SUCCEEDED
        with pytest.raises(AlreadyFinished):
            await eng.runs.cancel(made.id)


@pytest.mark.parametrize("turns", range(0, 12, 2))
async def test_what_is_submitted_while_the_engine_stops_is_executed_once_here_or_by_the_next(
    store: Path, turns: int
) -> None:
    paying = Paying(store)
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        await finish(eng, "pay", {"what": "first"})
        going = [asyncio.ensure_future(submit(eng, "pay", {"what": str(n)})) for n in range(5)]
        for _ in range(turns):
            await asyncio.sleep(0)
    before = len(paying.calls)
    made = await asyncio.gather(*going, return_exceptions=True)
    assert all(isinstance(one, il.Run | Unavailable | StoreError) for one in made), made
    assert len(paying.calls) == before  # nothing is executed after the stop
    async with engine(store, *paying.agents(), settings=PATIENT) as eng:
        runs = await eng.runs.search(RunFilter(limit=100))
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert {one.id for one in made if isinstance(one, il.Run)} <= {run.id for run in runs}
    assert len(paying.calls) == len(runs)
