"""Submitting, watching, waiting, cancelling, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import (
    AgentNotFound,
    AlreadyFinished,
    Conflict,
    InvalidInput,
    InvalidRequest,
    KeyReused,
    Overloaded,
    RunNotFound,
    TooLarge,
    Unavailable,
)
from interlingua.model.events import CancelRequested, OutputDelta, RunFinished
from interlingua.model.filters import RunFilter
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.engines import PATIENT, QUICK, engine, finish, gone, kinds, log, question, submit


@il.agent
async def echo(text: str) -> AsyncIterator[str]:
    """Repeats what it hears, word by word."""
    for word in text.split():
        yield word + " "


@il.agent
async def upper(text: str) -> str:
    return text.upper()


@il.agent
def sync_upper(text: str) -> str:
    return text.upper()


@il.agent
def sync_words(text: str) -> Iterator[str]:
    yield from text.split()


@il.agent
async def forever(ctx: il.Context[None, None]) -> None:
    await ctx.thought("starting")
    await asyncio.Event().wait()


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None]) -> str:
    verdict = await ctx.ask(il.Confirm("Go on?"))
    return "yes" if verdict.approved else "no"


async def test_a_run_is_submitted_and_ends_with_its_output(store: Path) -> None:
    async with engine(store, upper) as eng:
        run = await finish(eng, "upper", {"text": "hello"})
        assert run.status is il.Status.SUCCEEDED
        assert run.output == {"text": "HELLO"}
        assert await kinds(eng, run.id) == ["created", "started", "finished"]


async def test_each_yield_extends_the_output_and_the_deltas_join_to_it(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await finish(eng, "echo", {"text": "one two three"})
        assert run.output == {"text": "one two three "}
        deltas = [e.body.delta["text"] for e in await log(eng, run.id) if isinstance(e.body, OutputDelta)]
        assert "".join(deltas) == "one two three "


@pytest.mark.parametrize(("agent", "output"), [(sync_upper, "A B"), (sync_words, "ab")], ids=["function", "generator"])
async def test_plain_functions_and_generators_run_in_threads(store: Path, agent: Any, output: str) -> None:
    async with engine(store, agent) as eng:
        run = await finish(eng, agent.card.name, {"text": "a b"})
        assert run.output == {"text": output}


async def test_seqs_start_at_one_and_have_no_gap_and_the_chain_verifies(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await finish(eng, "echo", {"text": "a b c d e"})
        events = await log(eng, run.id)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert await eng.runs.verify(run.id) is None


async def test_a_changed_event_breaks_the_chain_and_an_erased_body_does_not(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await finish(eng, "echo", {"text": "a b"})
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        await eng.runs.erase(run.id, 3)
        assert await eng.runs.verify(run.id) is None
        assert (await kinds(eng, run.id))[2] == "erased"
        await sqlite.database.write(
            lambda c: c.execute("UPDATE events SET body=? WHERE run=? AND seq=4", (b"{}", run.id))
        )
        assert await eng.runs.verify(run.id) == 4
        await sqlite.database.write(
            lambda c: c.execute("UPDATE events SET erased=? WHERE run=? AND seq=3", (b"\0", run.id))
        )
        assert await eng.runs.verify(run.id) == 3


async def test_an_unknown_agent_is_refused_with_those_there_are(store: Path) -> None:
    async with engine(store, echo) as eng:
        with pytest.raises(AgentNotFound, match=r"no agent nobody \(there are: echo\)"):
            await submit(eng, "nobody")


@pytest.mark.parametrize(
    ("input_", "path", "says"),
    [
        ({}, "", "required"),
        ({"text": 1}, "/text", "string"),
        ({"text": "x", "more": 1}, "", "more"),
        ({"text": float("nan")}, "/text", "nan"),
        ({"text": "\ud800"}, "/text", "surrogate"),
        ({"text": b"x"}, "/text", "bytes"),
    ],
    ids=["missing", "wrong type", "unknown field", "nan", "lone surrogate", "no json"],
)
async def test_bad_input_is_refused_with_its_path_and_leaves_nothing_behind(
    store: Path, input_: dict[str, Any], path: str, says: str
) -> None:
    async with engine(store, upper) as eng:
        with pytest.raises(InvalidInput, match=says) as caught:
            await submit(eng, "upper", input_)
        assert caught.value.path == path
        assert await eng.runs.search(RunFilter()) == []


@pytest.mark.parametrize("input_", ["text", ["a"], 1, None], ids=["text", "list", "number", "null"])
async def test_an_input_that_is_no_object_is_refused(store: Path, input_: Any) -> None:
    async with engine(store, upper) as eng:
        with pytest.raises(InvalidInput, match="an object"):
            await eng.runs.submit(il.RunRequest("upper", input=input_))


async def test_deep_nesting_and_huge_inputs_are_refused(store: Path) -> None:
    @il.agent
    async def anything(value: Any) -> str:
        return "ok"

    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    settings = il.Settings(max_input_bytes=10_000, stall_warning=0)
    async with engine(store, anything, settings=settings) as eng:
        with pytest.raises(TooLarge, match="deeper than 100"):
            await submit(eng, "anything", {"value": deep})
        with pytest.raises(TooLarge, match="larger than 10000 bytes"):
            await submit(eng, "anything", {"value": "x" * 20_000})
        assert (await finish(eng, "anything", {"value": "fine"})).output == {"text": "ok"}


async def test_the_same_key_is_the_same_run_and_another_request_under_it_is_refused(store: Path) -> None:
    async with engine(store, upper) as eng:
        first = await submit(eng, "upper", {"text": "a"}, key="k1")
        again = await submit(eng, "upper", {"text": "a"}, key="k1")
        assert again.id == first.id
        with pytest.raises(KeyReused):
            await submit(eng, "upper", {"text": "b"}, key="k1")
        other = await submit(eng, "upper", {"text": "b"}, key="k1", caller=il.Caller("someone else"))
        assert other.id != first.id
    async with engine(store, upper) as eng:
        assert (await submit(eng, "upper", {"text": "a"}, key="k1")).id == first.id


async def test_waiting_times_out_without_touching_the_run(store: Path) -> None:
    async with engine(store, forever) as eng:
        run = await submit(eng, "forever")
        with pytest.raises(TimeoutError):
            await eng.runs.wait(run.id, timeout=0.05)
        assert (await eng.runs.get(run.id)).status is il.Status.RUNNING
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id)).status is il.Status.CANCELLED


async def test_a_reader_sees_events_as_they_are_made_and_the_end(store: Path) -> None:
    gate = asyncio.Event()

    @il.agent
    async def two() -> AsyncIterator[str]:
        yield "first"
        await gate.wait()
        yield "second"

    async with engine(store, two) as eng:
        run = await submit(eng, "two")
        seen = []
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, OutputDelta):
                seen.append(event.body.delta["text"])
                gate.set()
        assert seen == ["first", "second"]
        assert isinstance(event.body, RunFinished)


async def test_a_stream_is_taken_up_after_any_event_also_after_the_end_and_a_restart(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await finish(eng, "echo", {"text": "a b c"})
        whole = await log(eng, run.id)
    async with engine(store, echo) as eng:
        for after in range(len(whole) + 1):
            rest = [e async for e in eng.runs.events(run.id, after=after)]
            assert [(e.seq, e.hash) for e in rest] == [(e.seq, e.hash) for e in whole[after:]]


async def test_a_cursor_beyond_the_end_is_told_to_start_again(store: Path) -> None:
    async with engine(store, upper) as eng:
        run = await finish(eng, "upper", {"text": "x"})
        with pytest.raises(InvalidRequest, match="read again from the start"):
            await anext(eng.runs.events(run.id, after=99))


async def test_reading_an_unknown_run_says_so(store: Path) -> None:
    async with engine(store) as eng:
        for look in (
            eng.runs.get("x"),
            eng.runs.wait("x"),
            anext(eng.runs.events("x")),
            eng.runs.cancel("x"),
            eng.runs.delete("x"),
        ):
            with pytest.raises(RunNotFound):
                await look


async def test_a_slow_reader_loses_nothing_and_is_given_composed_deltas(store: Path) -> None:
    @il.agent
    async def many() -> AsyncIterator[str]:
        for n in range(20_000):
            yield f"{n},"

    async with engine(store, many) as eng:
        run = await submit(eng, "many")
        reader = eng.runs.events(run.id)
        first = await anext(reader)
        done = await eng.runs.wait(run.id, timeout=60)
        text, expected = "", first.seq + 1
        composed = False
        async for event in reader:
            assert event.first == expected  # it is told which events this one stands for
            composed = composed or event.first < event.seq
            expected = event.seq + 1
            if isinstance(event.body, OutputDelta):
                text += event.body.delta["text"]
        assert done.output == {"text": text}
        assert composed


async def test_cancelling_stops_the_agent_and_says_who_and_why(store: Path) -> None:
    stopped = asyncio.Event()

    @il.agent
    async def careful(ctx: il.Context[None, None]) -> None:
        try:
            await ctx.thought("working")
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with engine(store, careful) as eng:
        run = await submit(eng, "careful")
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                await eng.runs.cancel(run.id, reason="changed my mind", by=il.Caller("ada"))
        done = await eng.runs.wait(run.id)
        assert done.status is il.Status.CANCELLED
        assert done.error is not None
        assert done.error.code == "cancelled"
        assert stopped.is_set()
        requested = [e.body for e in await log(eng, run.id) if isinstance(e.body, CancelRequested)]
        assert (requested[0].by, requested[0].reason) == ("ada", "changed my mind")


async def test_an_agent_that_ignores_cancellation_is_left_behind(store: Path) -> None:
    @il.agent
    async def stubborn(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if released:
                    raise

    released = []
    settings = il.Settings(cancel_grace=0.1, stall_warning=0)
    async with engine(store, stubborn, upper, settings=settings) as eng:
        run = await submit(eng, "stubborn")
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                await eng.runs.cancel(run.id)
        assert (await eng.runs.get(run.id)).status is il.Status.CANCELLED
        assert (await finish(eng, "upper", {"text": "others go on"})).output == {"text": "OTHERS GO ON"}
        assert eng.core.worker.abandoned == 1
    released.append(True)


async def test_a_plain_function_that_ignores_cancellation_is_left_behind(store: Path) -> None:
    import threading

    release, entered = threading.Event(), threading.Event()

    @il.agent
    def stubborn() -> str:
        entered.set()
        release.wait(20)
        return "too late"

    settings = il.Settings(cancel_grace=0.1, stall_warning=0)
    async with engine(store, stubborn, settings=settings) as eng:
        run = await submit(eng, "stubborn")
        await asyncio.to_thread(entered.wait, 10)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=5)).status is il.Status.CANCELLED
        release.set()
        assert (await eng.runs.get(run.id)).output is None


async def test_cancelling_a_waiting_run_withdraws_its_question(store: Path) -> None:
    async with engine(store, asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id)).status is il.Status.CANCELLED
        assert (await eng.questions.get(asked.id)).state == "withdrawn"
        assert await eng.questions.open() == []


async def test_cancelling_a_finished_run_says_that_it_has_finished(store: Path) -> None:
    async with engine(store, upper) as eng:
        run = await finish(eng, "upper", {"text": "x"})
        with pytest.raises(AlreadyFinished):
            await eng.runs.cancel(run.id)
        assert (await eng.runs.get(run.id)).status is il.Status.SUCCEEDED


async def test_a_run_that_takes_too_long_times_out(store: Path) -> None:
    async with engine(store, forever) as eng:
        run = await finish(eng, "forever", timeout=0.05)
        assert run.status is il.Status.TIMED_OUT
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("timed_out", True)


@pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])
async def test_waiting_does_not_count_as_running(store: Path, settings: il.Settings) -> None:
    async with engine(store, asker, settings=settings) as eng:
        run = await submit(eng, "asker", timeout=0.3)
        asked = await question(eng, run.id)
        with pytest.raises(TimeoutError):
            await eng.runs.wait(run.id, timeout=0.6)
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "yes"}


async def test_a_delayed_run_starts_when_its_time_has_come(store: Path) -> None:
    async with engine(store, upper) as eng:
        run = await submit(eng, "upper", {"text": "later"}, delay=0.3)
        assert run.status is il.Status.PENDING
        done = await eng.runs.wait(run.id, timeout=10)
        events = await log(eng, run.id)
        assert done.output == {"text": "LATER"}
        assert events[1].time - events[0].time >= 300_000


async def test_a_delayed_run_survives_a_restart(store: Path) -> None:
    async with engine(store, upper) as eng:
        run = await submit(eng, "upper", {"text": "later"}, delay=0.3)
    async with engine(store, upper) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "LATER"}


async def test_runs_beyond_the_slots_wait_their_turn(store: Path) -> None:
    settings = il.Settings(max_running=2, stall_warning=0)
    running = most = 0

    @il.agent
    async def counted() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "done"

    async with engine(store, counted, settings=settings) as eng:
        runs = [await submit(eng, "counted") for _ in range(10)]
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert most == 2


async def test_runs_beyond_those_that_may_wait_are_refused(store: Path) -> None:
    settings = il.Settings(max_running=1, max_pending=1, stall_warning=0)
    gate = asyncio.Event()

    @il.agent
    async def gated() -> str:
        await gate.wait()
        return "done"

    async with engine(store, gated, settings=settings) as eng:
        first = await submit(eng, "gated")
        second = await submit(eng, "gated")
        assert second.status is il.Status.PENDING
        with pytest.raises(Overloaded) as caught:
            await submit(eng, "gated")
        assert caught.value.transient
        gate.set()
        for run in (first, second):
            assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED


async def test_deleting_leaves_a_tombstone_and_a_running_run_cannot_be_deleted(store: Path) -> None:
    async with engine(store, upper, forever) as eng:
        run = await finish(eng, "upper", {"text": "x"})
        await eng.runs.delete(run.id)
        with pytest.raises(RunNotFound):
            await eng.runs.get(run.id)
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        stone = await sqlite.database.read(lambda c: c.execute("SELECT run, seq, head FROM tombstones").fetchone())
        assert (stone[0], stone[1], stone[2].hex()) == (run.id, run.seq, run.head)
        running = await submit(eng, "forever")
        with pytest.raises(Conflict, match="cancel it before"):
            await eng.runs.delete(running.id)
        await eng.runs.cancel(running.id)


async def test_runs_are_found_by_agent_status_caller_and_metadata(store: Path) -> None:
    async with engine(store, upper, asker) as eng:
        tags = [{"team": "a", "n": 1}, {"team": "a", "n": 2, "deep": {"x": [1, 2]}}, {"team": "b", "flag": True}]
        ids = [(await finish(eng, "upper", {"text": "x"}, metadata=t, caller=il.Caller("ada"))).id for t in tags]
        waiting = await submit(eng, "asker")
        await question(eng, waiting.id)

        async def found(**where: Any) -> list[str]:
            return [run.id for run in await eng.runs.search(RunFilter(**where))]

        assert await found() == [waiting.id, *reversed(ids)]
        assert await found(agent="asker") == [waiting.id]
        assert await found(status=[il.Status.WAITING]) == [waiting.id]
        assert await found(caller="ada") == ids[::-1]
        assert await found(metadata={"team": "a"}) == [ids[1], ids[0]]
        assert await found(metadata={"team": "a", "n": 1}) == [ids[0]]
        assert await found(metadata={"deep": {"x": [1, 2]}}) == [ids[1]]
        assert await found(metadata={"flag": True}) == [ids[2]]
        assert await found(metadata={"flag": 1}) == []
        assert await found(metadata={'quo"te': 1}) == []
        assert await found(limit=2, offset=1) == [ids[2], ids[1]]


async def test_finished_runs_are_deleted_after_their_time_when_that_is_asked_for(store: Path) -> None:
    settings = il.Settings(ttl_runs=0.05, sweep_every=0.02, stall_warning=0)
    async with engine(store, upper, settings=settings) as eng:
        run = await finish(eng, "upper", {"text": "x"})
        await gone(eng, run.id)
        eng.core.worker.forget(run.id)
        with pytest.raises(RunNotFound):
            await eng.runs.get(run.id)


async def test_nothing_is_deleted_by_default(store: Path) -> None:
    assert il.Settings().ttl_runs is None
    assert il.Settings().ttl_threads is None


async def test_the_store_is_in_wal_mode_and_waits_for_the_disk(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with engine(store, upper) as eng:
        await finish(eng, "upper", {"text": "x"})
        sqlite = eng.core.store
        assert isinstance(sqlite, SQLiteStore)
        pragmas = await sqlite.database.write(
            lambda c: (c.execute("PRAGMA journal_mode").fetchone()[0], c.execute("PRAGMA synchronous").fetchone()[0])
        )
        assert pragmas == ("wal", 2)  # 2 is FULL
    assert store.stat().st_mode & 0o777 == 0o600


async def test_shutdown_finishes_short_work_and_hands_back_the_rest(store: Path) -> None:
    entered: list[str] = []

    @il.agent
    async def short(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        await asyncio.sleep(0.1)
        return "done"

    @il.agent
    async def endless(ctx: il.Context[None, None]) -> str:
        entered.append("endless")
        await ctx.thought("here")
        if len(entered) > 1:
            return "second time"
        await asyncio.Event().wait()
        return "never"

    async with engine(store, short, endless) as eng:
        one = await submit(eng, "short")
        two = await submit(eng, "endless")
        for run in (one, two):
            async for event in eng.runs.events(run.id):
                if event.kind == "thought":
                    break
    with pytest.raises(Unavailable):
        await submit(eng, "short")
    async with engine(store, short, endless) as eng:
        assert (await eng.runs.get(one.id)).output == {"text": "done"}
        done = await eng.runs.wait(two.id, timeout=10)
        assert done.output == {"text": "second time"}
        assert entered == ["endless", "endless"]


async def test_a_cancel_that_was_acknowledged_just_before_shutdown_takes_effect(store: Path) -> None:
    @il.agent
    async def sleeper(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        await ctx.sleep(3600)
        return "never"

    async with engine(store, sleeper, settings=PATIENT) as eng:
        run = await submit(eng, "sleeper")
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                break
        await eng.runs.cancel(run.id)
    async with engine(store) as eng:
        assert (await eng.runs.get(run.id)).status is il.Status.CANCELLED
