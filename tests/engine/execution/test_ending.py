"""Ends that come late or at the wrong moment: rollbacks, cancellations, deletions, and who waits for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import Conflict, InvalidState, RunNotFound
from interlingua.model.events import RunFinished
from interlingua.model.filters import RunFilter
from interlingua.store.sql.store import SqlStore
from tests.kit.databases import sql
from tests.kit.engines import PATIENT, engine, finish, never_reads_its_inbox, question, settle, submit
from tests.kit.wait_for import wait_for


class Notes(msgspec.Struct):
    items: list[str] = []


class Ledger(msgspec.Struct):
    items: list[str] = []
    total: int = 0


@il.agent
async def keeper(ctx: il.Context[Notes, None], text: str) -> str:
    ctx.state.items.append(text)
    return text


@il.agent
async def counter(ctx: il.Context[Ledger, None], text: str) -> str:
    ctx.state.total += 1
    return text


@il.agent
async def secretive(ctx: il.Context[Any, None], text: str) -> str:
    ctx.state["notes"] = text
    return text


@il.agent(asks=[il.Confirm])
async def holder(ctx: il.Context[Notes, None]) -> str:
    await ctx.ask(il.Confirm("Go on?"))
    ctx.state.items.append("held")
    return "held"


# -- reading and waiting --------------------------------------------------------------------------------------


async def test_a_cancellation_that_meets_the_timer_of_a_reader_is_not_lost(store: Path) -> None:
    async with engine(store, holder, settings=PATIENT) as eng:
        run = await submit(eng, "holder")
        await question(eng, run.id)
        reader = eng.runs.reader(run.id)
        while await reader.read(0.01):
            pass

        async def body() -> None:
            while True:
                await reader.read(0.01)

        task = asyncio.create_task(body())
        ring = reader._ring

        def ring_and_cancel() -> None:
            ring()
            if reader._rung:
                task.cancel()

        reader._ring = ring_and_cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 5)
        assert task.cancelled()


async def test_waiting_leaves_nothing_behind(store: Path) -> None:
    async with engine(store, holder, settings=PATIENT) as eng:
        run = await submit(eng, "holder")
        await question(eng, run.id)
        log = eng.core.worker.log_of(run.id)
        assert log is not None
        before = len(log._readers)
        for _ in range(20):
            await eng.runs.wait(run.id, settled=True)
        assert len(log._readers) == before


async def test_whoever_reads_a_run_that_is_rolled_back_is_told_how_it_ended(store: Path) -> None:
    async with engine(store, holder, settings=PATIENT) as eng:
        run = await submit(eng, "holder")
        await question(eng, run.id)
        reader = eng.runs.reader(run.id)
        events = await reader.read()
        await eng.runs.cancel(run.id, rollback=True)
        async with asyncio.timeout(10):
            while not reader.over:
                events += await reader.read()
        assert isinstance(events[-1].body, RunFinished)
        assert events[-1].body.status is il.Status.CANCELLED
        with pytest.raises(RunNotFound):
            await eng.runs.get(run.id)


async def test_a_reader_misses_no_end_that_is_written_while_it_looks_into_the_store(store: Path) -> None:
    async with engine(store, holder, settings=PATIENT) as eng:
        run = await submit(eng, "holder")
        asked = await question(eng, run.id)
        reader, look = eng.runs.reader(run.id), eng.core.store.runs.events
        while await reader.read(0.01):
            pass
        log = eng.core.worker.log_of(run.id)
        assert log is not None
        log.recent.clear()  # as of a run that was taken up just now

        async def slow(of: str, after: int, limit: int, most_bytes: int | None = None) -> list[il.Event]:
            found = await look(of, after, limit, most_bytes)
            if after == reader.cursor and log.finished is None:
                await eng.questions.answer(asked.id, {"approved": True})
                await wait_for(lambda: log.finished is not None)
            return found

        eng.core.store.runs.events = slow  # type: ignore[method-assign]
        async with asyncio.timeout(10):
            last = await reader.read()
        assert isinstance(last[-1].body, RunFinished)


async def test_the_log_of_a_run_that_could_not_end_otherwise_knows_what_came_before(store: Path) -> None:
    async with engine(store, holder, settings=PATIENT) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, run.id)
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        await sqlite.database.write(
            lambda c: c.execute("UPDATE threads SET version=version+1 WHERE id=?", (thread.id,))
        )
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.status is il.Status.FAILED
        log = eng.core.worker.log_of(run.id)
        assert log is not None
        assert [event.seq for event in log.since(0) or []] == list(range(1, done.seq + 1))


# -- rollbacks ------------------------------------------------------------------------------------------------


async def test_a_rollback_after_the_end_gives_the_thread_its_state_back(store: Path) -> None:
    async with engine(store, keeper) as eng:
        thread = await eng.threads.create()
        first = await finish(eng, "keeper", {"text": "a"}, thread=thread.id)
        second = await finish(eng, "keeper", {"text": "b"}, thread=thread.id)
        await eng.runs.delete(second.id, rollback=True)
        found = await eng.threads.get(thread.id)
        (state,) = await eng.threads.history(thread.id)
        assert (found.values, found.checkpoint, state.run) == ({"items": ["a"]}, state.id, first.id)
        assert [m.text for m in await eng.threads.messages(thread.id)] == ["a", "a"]
        await finish(eng, "keeper", {"text": "c"}, thread=thread.id)
        assert (await eng.threads.get(thread.id)).values == {"items": ["a", "c"]}
        last = (await eng.runs.search(RunFilter(thread=thread.id)))[0]
        await eng.runs.delete(last.id, rollback=True)
        await eng.runs.delete(first.id, rollback=True)
        empty = await eng.threads.get(thread.id)
        assert (empty.values, empty.checkpoint, await eng.threads.history(thread.id)) == (None, None, [])


async def test_what_others_have_built_on_is_not_rolled_back_and_no_history_names_a_run_that_is_gone(
    store: Path,
) -> None:
    async with engine(store, keeper, holder) as eng:
        thread = await eng.threads.create()
        runs = [(await finish(eng, "keeper", {"text": text}, thread=thread.id)).id for text in "abc"]
        await eng.runs.delete(runs[1], rollback=True)
        assert (await eng.threads.get(thread.id)).values == {"items": ["a", "b", "c"]}
        assert [state.run for state in await eng.threads.history(thread.id)] == [runs[2], None, runs[0]]
        copy = await eng.threads.copy(thread.id)
        assert [state.run for state in await eng.threads.history(copy.id)] == [None] * 3
        busy = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, busy.id)
        await eng.runs.delete(runs[2], rollback=True)
        assert (await eng.threads.get(thread.id)).values == {"items": ["a", "b", "c"]}, "a run has begun with it"
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(busy.id, timeout=10)).status is il.Status.SUCCEEDED


async def test_a_rollback_that_nobody_read_in_time_gives_the_thread_back_as_it_was(store: Path) -> None:
    go = asyncio.Event()

    @il.agent
    async def gated(ctx: il.Context[Notes, None], text: str) -> str:
        await go.wait()
        ctx.state.items.append(text)
        return text

    async with engine(store, keeper, gated, settings=PATIENT) as eng:
        thread = await eng.threads.create()
        await finish(eng, "keeper", {"text": "a"}, thread=thread.id)
        late = await submit(eng, "gated", {"text": "b"}, thread=thread.id)
        execution = eng.core.worker.execution(late.id)
        assert execution is not None
        await wait_for(lambda: execution.waits.entered)
        never_reads_its_inbox(execution)
        new = await submit(eng, "keeper", {"text": "c"}, thread=thread.id, when_busy="rollback")
        go.set()
        await eng.runs.wait(new.id, timeout=10)
        assert (await eng.threads.get(thread.id)).values == {"items": ["a", "c"]}
        assert sql(store, "SELECT count(*) FROM runs WHERE id=?", late.id) == [(0,)]


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends at once", "ends later"])
async def test_a_rollback_forgets_what_the_run_had_called_too(store: Path, stubborn: bool) -> None:
    entered: asyncio.Queue[str] = asyncio.Queue()
    go = asyncio.Event()

    @il.agent
    async def child(ctx: il.Context[None, None]) -> str:
        entered.put_nowait(ctx.run_id)
        try:
            await go.wait()
        except asyncio.CancelledError:
            if stubborn:
                await go.wait()
            raise
        return "x"

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        return str(await ctx.call("child"))

    async with engine(store, child, parent, settings=PATIENT) as eng:
        run = await submit(eng, "parent")
        below = await asyncio.wait_for(entered.get(), 10)
        await eng.runs.cancel(run.id, rollback=True)
        await wait_for(lambda: sql(store, "SELECT count(*) FROM runs WHERE id=?", run.id) == [(0,)])
        go.set()
        await wait_for(lambda: sql(store, "SELECT count(*) FROM runs") == [(0,)])
        await wait_for(lambda: eng.core.worker.log_of(below) is None)
        with pytest.raises(RunNotFound):
            await eng.runs.get(below)


async def test_a_child_that_had_ended_is_gone_from_memory_with_its_parent(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def parent(ctx: il.Context[None, None]) -> str:
        await ctx.call("keeper", {"text": "a"})
        await ctx.ask(il.Confirm("Go on?"))
        return "x"

    async with engine(store, keeper, parent, settings=PATIENT) as eng:
        run = await submit(eng, "parent")
        await question(eng, run.id)
        (below,) = await eng.runs.search(RunFilter(parent=run.id))
        await eng.runs.cancel(run.id, rollback=True)
        await wait_for(lambda: eng.core.worker.log_of(run.id) is None)
        with pytest.raises(RunNotFound):
            await eng.runs.get(below.id)


# -- delayed runs ---------------------------------------------------------------------------------------------


async def test_a_delayed_run_that_finds_its_thread_taken_fails_where_it_was_to_be_refused(store: Path) -> None:
    async with engine(store, keeper, holder) as eng:
        thread = await eng.threads.create()
        busy = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, busy.id)
        late = await finish(eng, "keeper", {"text": "b"}, thread=thread.id, delay=0.05)
        assert late.status is il.Status.FAILED
        assert late.error is not None
        assert late.error.code == "thread_busy"
        assert (await eng.threads.get(thread.id)).active == busy.id, "the other one goes on"
        await eng.questions.answer(asked.id, {"approved": True})
        await eng.runs.wait(busy.id, timeout=10)
        assert (await eng.threads.get(thread.id)).values == {"items": ["held"]}


async def test_a_delayed_run_that_may_wait_gets_in_line(store: Path) -> None:
    async with engine(store, keeper, holder) as eng:
        thread = await eng.threads.create()
        busy = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, busy.id)
        late = await submit(eng, "keeper", {"text": "b"}, thread=thread.id, delay=0.05, when_busy="enqueue")
        await wait_for(lambda: sql(store, "SELECT queued IS NOT NULL FROM runs WHERE id=?", late.id) == [(1,)])
        await eng.questions.answer(asked.id, {"approved": True})
        await eng.runs.wait(late.id, timeout=10)
        assert (await eng.threads.get(thread.id)).values == {"items": ["held", "b"]}


@pytest.mark.parametrize("settings", [None, PATIENT], ids=["parked", "in memory"])
@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_a_delayed_run_makes_the_one_before_it_give_way_when_its_time_has_come(
    store: Path, strategy: Any, settings: il.Settings | None
) -> None:
    async with engine(store, keeper, holder, **({"settings": settings} if settings else {})) as eng:
        thread = await eng.threads.create()
        busy = await submit(eng, "holder", thread=thread.id)
        await question(eng, busy.id)
        waiting = await submit(eng, "keeper", {"text": "last"}, thread=thread.id, when_busy="enqueue")
        late = await submit(eng, "keeper", {"text": "b"}, thread=thread.id, delay=0.05, when_busy=strategy)
        assert (await eng.runs.wait(late.id, timeout=10)).status is il.Status.SUCCEEDED
        await eng.runs.wait(waiting.id, timeout=10)
        assert (await eng.threads.get(thread.id)).values == {"items": ["b", "last"]}, "it comes before those in line"
        if strategy == "interrupt":
            assert (await eng.runs.get(busy.id)).status is il.Status.CANCELLED
        else:
            with pytest.raises(RunNotFound):
                await eng.runs.get(busy.id)


async def test_a_delayed_run_in_line_can_be_cancelled(store: Path) -> None:
    async with engine(store, keeper, holder) as eng:
        thread = await eng.threads.create()
        busy = await submit(eng, "holder", thread=thread.id)
        await question(eng, busy.id)
        late = await submit(eng, "keeper", {"text": "b"}, thread=thread.id, delay=0.05, when_busy="enqueue")
        await wait_for(lambda: sql(store, "SELECT queued IS NOT NULL FROM runs WHERE id=?", late.id) == [(1,)])
        await eng.runs.cancel(late.id)
        assert (await eng.runs.wait(late.id, timeout=10)).status is il.Status.CANCELLED
        await settle()
        assert (await eng.threads.get(thread.id)).active == busy.id


# -- whose state it is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["copied", "its runs deleted"])
async def test_a_thread_knows_whose_state_it_holds_without_the_runs_that_made_it(store: Path, how: str) -> None:
    async with engine(store, keeper, counter) as eng:
        thread = await eng.threads.create()
        run = await finish(eng, "keeper", {"text": "a"}, thread=thread.id)
        if how == "copied":
            thread = await eng.threads.copy(thread.id)
        else:
            await eng.runs.delete(run.id)
        thread = await eng.threads.get(thread.id)
        with pytest.raises(Conflict, match="keeper"):
            await eng.threads.check_state(thread, counter.card)
        await eng.threads.check_state(thread, keeper.card)
        with pytest.raises(InvalidState):
            await eng.threads.check_values(thread.id, {"items": 5})
        await eng.threads.check_values(thread.id, {"items": ["x"]})


async def test_state_that_nobody_described_stays_so_without_the_runs_that_made_it(store: Path) -> None:
    async with engine(store, secretive) as eng:
        thread = await eng.threads.create()
        run = await finish(eng, "secretive", {"text": "a"}, thread=thread.id)
        copy = await eng.threads.copy(thread.id)
        await eng.runs.delete(run.id)
        for found in (thread.id, copy.id):
            assert not await eng.threads.is_described(await eng.threads.get(found))
        outside = await eng.threads.create()
        assert await eng.threads.is_described(await eng.threads.patch(outside.id, values_={"a": 1}))


async def test_runs_are_found_by_several_agents_at_once(store: Path) -> None:
    async with engine(store, keeper, counter, secretive) as eng:
        for agent in ("keeper", "counter", "secretive"):
            await finish(eng, agent, {"text": "a"})

        async def found(*agents: str) -> list[str]:
            return sorted(run.agent for run in await eng.runs.search(RunFilter(agents=list(agents))))

        assert await found("keeper", "count*") == ["counter", "keeper"]
        assert await found("keeper@0.1.0", "counter@9") == ["keeper"]
        assert await found("*") == ["counter", "keeper", "secretive"]
        assert await found("keep", "Count*") == []
        assert await found() == []
