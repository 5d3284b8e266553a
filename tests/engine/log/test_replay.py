"""Running again from the top: what is recorded is given back, what was emitted is not said twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.delta import ABSENT, Joiner
from interlingua.model.events import OutputDelta, Recorded, RunRestarted, RunStarted
from tests.kit.engines import PATIENT, bodies, crash, engine, finish, kinds, log, parked, question, submit


class Draft(msgspec.Struct):
    text: str
    words: int


@dataclass
class Point:
    x: int
    y: int


def output_of(events: list[il.Event]) -> Any:
    """What a reader has who follows the log: deltas joined, voided ones dropped."""
    standing: list[tuple[int, Any]] = []
    for event in events:
        if isinstance(event.body, OutputDelta):
            standing.append((event.seq, event.body.delta))
        elif isinstance(event.body, RunRestarted):
            standing = [(seq, delta) for seq, delta in standing if seq <= event.body.keep]
    joiner = Joiner()
    for _, delta in standing:
        joiner.add(delta)
    return None if joiner.value is ABSENT else joiner.value


async def test_a_step_runs_once_however_often_the_agent_is_entered(store: Path) -> None:
    calls: list[str] = []

    def write() -> Draft:
        calls.append("write")
        return Draft("hello", 1)

    @il.agent(asks=[il.Confirm])
    async def writer(ctx: il.Context[None, None]) -> str:
        calls.append("enter")
        draft = await ctx.step("draft", write)
        assert isinstance(draft, Draft)  # typed by the annotation, the first time and out of the log
        for n in range(3):
            await ctx.ask(il.Confirm(f"Number {n}?"))
        return draft.text

    async with engine(store, writer) as eng:
        run = await submit(eng, "writer")
        for _ in range(3):
            await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "hello"}
    assert calls.count("write") == 1
    assert calls.count("enter") == 4  # parking at once: entered again after each answer


@pytest.mark.parametrize("kind", ["async", "sync", "lambda"])
async def test_steps_may_be_async_functions_plain_functions_and_lambdas(store: Path, kind: str) -> None:
    async def compute(a: int, b: int = 0) -> Point:
        return Point(a, b)

    def compute_plainly(a: int, b: int = 0) -> Point:
        return Point(a, b)

    @il.agent
    async def stepper(ctx: il.Context[None, None]) -> str:
        if kind == "async":
            point = await ctx.step("p", compute, 1, b=2)
        elif kind == "sync":
            point = await ctx.step("p", compute_plainly, 1, b=2)
        else:
            return str(await ctx.step("p", lambda: {"x": 1}))
        assert isinstance(point, Point)
        return f"{point.x},{point.y}"

    async with engine(store, stepper) as eng:
        run = await finish(eng, "stepper")
        assert run.error is None
        assert run.output == {"text": "{'x': 1}" if kind == "lambda" else "1,2"}


async def test_a_final_failure_of_a_step_is_recorded_and_raised_again(store: Path) -> None:
    calls = 0

    def flaky() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("no luck")

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.step("flaky", flaky, retries=2, backoff=0.001)
        except il.StepFailed as error:
            await ctx.ask(il.Confirm("Never mind?"))
            return error.error.message
        return "?"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "ValueError: no luck"}
    assert calls == 3


async def test_an_error_of_the_agents_own_comes_back_as_its_class(store: Path) -> None:
    class RateLimited(il.AgentError):
        """Too many requests."""

        code = "rate_limited"
        transient = True

    def fetch(transient: bool) -> None:
        raise RateLimited("slow down", details={"after": 3}, transient=transient)

    @il.agent(errors=[RateLimited])
    async def agent(ctx: il.Context[None, None], transient: bool) -> str:
        await ctx.step("fetch", fetch, transient)
        return "?"

    async with engine(store, agent) as eng:
        for transient in (True, False):
            run = await finish(eng, "agent", {"transient": transient})
            assert run.status is il.Status.FAILED
            assert run.error is not None
            told = run.error.code, run.error.transient, run.error.details
            assert told == ("rate_limited", transient, {"after": 3})


async def test_now_uuid_and_random_are_the_same_again(store: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        seen.append((ctx.now(), ctx.uuid(), ctx.random(), ctx.uuid()))
        await ctx.ask(il.Confirm("Go on?"))
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        await eng.runs.wait(run.id, timeout=10)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1] != seen[0][3]


async def test_what_was_said_before_a_wait_is_not_said_again(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three "):
            yield word
        await ctx.thought("thinking")
        await ctx.ask(il.Confirm("Go on?"))
        yield "four"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "one two three four"}
        names = await kinds(eng, run.id)
        assert names.count("thought") == 1
        assert "restarted" not in names
        assert output_of(await log(eng, run.id)) == done.output


async def test_at_the_first_difference_the_rest_is_void_and_readers_are_told(store: Path) -> None:
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal entries
        entries += 1
        yield "same "
        await ctx.thought("same thought")
        yield f"entry {entries} "
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "same entry 2 end"}
        events = await log(eng, run.id)
        assert output_of(events) == done.output
        (restarted,) = [e.body for e in events if isinstance(e.body, RunRestarted)]
        (thought,) = [e for e in events if e.kind == "thought"]
        assert restarted.keep == thought.seq


async def test_an_agent_that_says_less_the_second_time_voids_what_it_did_not_say(store: Path) -> None:
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal entries
        entries += 1
        if entries == 1:
            yield "only the first time "
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "end"}
        assert output_of(await log(eng, run.id)) == done.output


@pytest.mark.parametrize("plain", [False, True], ids=["async generator", "generator"])
async def test_a_generator_step_streams_once_and_replays_from_the_log(store: Path, plain: bool) -> None:
    calls = 0

    async def stream() -> AsyncIterator[str]:
        nonlocal calls
        calls += 1
        for word in ("a ", "b ", "c "):
            yield word

    def stream_plainly() -> Iterator[str]:
        nonlocal calls
        calls += 1
        yield from ("a ", "b ", "c ")

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        await ctx.step("stream", stream_plainly if plain else stream)
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "a b c end"}
        assert output_of(await log(eng, run.id)) == done.output
        assert "restarted" not in await kinds(eng, run.id)
    assert calls == 1


async def test_a_recorded_generator_step_is_said_again_after_a_restart_voided_it(store: Path) -> None:
    entries = 0

    async def stream() -> AsyncIterator[str]:
        yield "from the step "

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal entries
        entries += 1
        yield f"entry {entries} "
        await ctx.step("stream", stream)
        await ctx.ask(il.Confirm("Go on?"))
        yield "end"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "entry 2 from the step end"}
        assert output_of(await log(eng, run.id)) == done.output


async def test_a_run_goes_on_after_its_process_died(store: Path) -> None:
    entries, steps = 0, 0
    reached = asyncio.Event()

    def once() -> int:
        nonlocal steps
        steps += 1
        return steps

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal entries
        entries += 1
        yield "before "
        number = await ctx.step("once", once)
        yield f"{number} "
        await ctx.thought("deep")
        if entries == 1:
            reached.set()
            await asyncio.Event().wait()
        yield "after"

    first = engine(store, agent)
    await first.start()
    run = await submit(first, "agent")
    await reached.wait()
    async for event in first.runs.events(run.id):
        if event.kind == "thought":
            break
    await crash(first)
    async with engine(store, agent) as eng:
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "before 1 after"}
        assert output_of(await log(eng, run.id)) == done.output
        assert await eng.runs.verify(run.id) is None
        assert eng.core.worker.meters.taken_over == 1
    assert (entries, steps) == (2, 1)


async def test_a_long_text_that_was_cut_by_a_crash_goes_on_without_repeating(store: Path) -> None:
    entries = 0

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal entries
        entries += 1
        for n in range(3000):
            yield f"{n} "
            if n == 1500 and entries == 1:
                await ctx.thought("half")
                await asyncio.Event().wait()

    first = engine(store, agent)
    await first.start()
    run = await submit(first, "agent")
    async for event in first.runs.events(run.id):
        if event.kind == "thought":
            break
    await crash(first)
    async with engine(store, agent) as eng:
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "".join(f"{n} " for n in range(3000))}
        assert output_of(await log(eng, run.id)) == done.output


async def test_three_crashes_without_a_new_record_end_the_run_for_good(store: Path) -> None:
    entries = 0

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        await ctx.thought("here")
        await ctx._run.data.log.flush()
        reached.set()
        await asyncio.Event().wait()
        return "never"

    run_id = ""
    for _ in range(3):
        reached = asyncio.Event()
        eng = engine(store, agent)
        await eng.start()
        if not run_id:
            run_id = (await submit(eng, "agent")).id
        await reached.wait()
        await crash(eng)
    async with engine(store, agent) as eng:
        done = await eng.runs.wait(run_id, timeout=10)
        assert done.status is il.Status.FAILED
        assert done.error is not None
        assert (done.error.code, done.error.transient) == ("run_lost", False)
        assert "3 times" in done.error.message
    assert entries == 3


async def test_progress_forgives_earlier_crashes(store: Path) -> None:
    entries = 0

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        mine = entries
        for n in range(mine):
            await ctx.step(f"step {n}", lambda: None)
        if mine < 6:
            await ctx._run.data.log.flush()
            reached.set()
            await asyncio.Event().wait()
        return "done"

    run_id = ""
    for _ in range(5):
        reached = asyncio.Event()
        eng = engine(store, agent)
        await eng.start()
        if not run_id:
            run_id = (await submit(eng, "agent")).id
        await reached.wait()
        await crash(eng)
    async with engine(store, agent) as eng:
        assert (await eng.runs.wait(run_id, timeout=10)).output == {"text": "done"}


async def test_an_agent_that_must_not_be_repeated_fails_as_transient(store: Path) -> None:
    entries = 0
    reached = asyncio.Event()

    @il.agent(retries=0)
    async def agent() -> str:
        nonlocal entries
        entries += 1
        reached.set()
        await asyncio.Event().wait()
        return "never"

    first = engine(store, agent)
    await first.start()
    run = await submit(first, "agent")
    await reached.wait()
    await crash(first)
    async with engine(store, agent) as eng:
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.status is il.Status.FAILED
        assert done.error is not None
        assert (done.error.code, done.error.transient) == ("run_lost", True)
    assert entries == 1


async def test_a_parked_run_holds_no_memory_and_outlives_restarts(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        return str((await ctx.ask(il.Confirm("Go on?"))).approved)

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        assert eng.core.worker.running == 0
    for _ in range(3):
        async with engine(store, agent) as eng:
            assert (await eng.runs.get(run.id)).status is il.Status.WAITING
            assert eng.core.worker.running == 0
    async with engine(store, agent) as eng:
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "True"}
        started = await bodies(eng, run.id, RunStarted)
        assert len(started) == 1


async def test_a_waiting_run_stays_in_memory_for_a_while(store: Path) -> None:
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        return str((await ctx.ask(il.Confirm("Go on?"))).approved)

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "True"}
    assert entries == 1


async def test_a_long_sleep_holds_no_memory_and_survives_a_restart(store: Path) -> None:
    entries = 0

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        await ctx.sleep(0.4)
        return "woken"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await parked(eng, run.id)
    async with engine(store, agent) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "woken"}
        events = await log(eng, run.id)
        assert events[-1].time - events[0].time >= 400_000
    assert entries >= 2


async def test_an_old_owner_cannot_write(store: Path) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("mine")
        reached.set()
        await go.wait()
        return "from the old owner"

    from interlingua.store.rows import WorkerRow
    from interlingua.store.sql.store import SqlStore

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await reached.wait()
        await eng.core.worker.execution(run.id).log.flush()  # type: ignore[union-attr]
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        await sqlite.claims.enter(WorkerRow("other", "elsewhere", 1, 0, []))
        await sqlite.database.write(
            lambda c: c.execute("UPDATE runs SET epoch=epoch+1, worker='other' WHERE id=?", (run.id,))
        )
        before = await sqlite.runs.event_rows(run.id, 0, 100)
        go.set()
        await parked(eng, run.id)
        assert await sqlite.runs.event_rows(run.id, 0, 100) == before
        row = await sqlite.runs.get(run.id)
        assert row is not None
        assert row.worker == "other"


async def test_recorded_values_are_events_of_the_log(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None]) -> int:
        return await ctx.step("answer", lambda: 42, key="the-answer")

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        (record,) = await bodies(eng, run.id, Recorded)
        assert (record.key, record.value) == ("step:the-answer", 42)
        assert run.output == {"value": 42}


async def test_a_step_whose_result_is_no_json_fails_with_what_to_do(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.step("odd", lambda: object())
        return "?"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert "cannot be recorded as JSON" in run.error.message


@pytest.mark.parametrize("kind", ["asks", "listens"])
async def test_a_run_that_only_waits_outlives_any_number_of_crashes(store: Path, kind: str) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        if kind == "asks":
            return str((await ctx.ask(il.Confirm("Go on?"))).approved)
        return (await ctx.receive()).text

    run_id = ""
    for _ in range(5):
        eng = engine(store, agent, settings=PATIENT)
        await eng.start()
        if not run_id:
            run_id = (await submit(eng, "agent")).id
        async with asyncio.timeout(10):
            while not ((here := eng.core.worker.execution(run_id)) and here.waits.blocked and here.log.settled):
                await asyncio.sleep(0.001)
        await crash(eng)
    async with engine(store, agent, settings=PATIENT) as eng:
        if kind == "asks":
            await eng.questions.answer((await question(eng, run_id)).id, {"approved": True})
        else:
            await eng.runs.send(run_id, "True")
        assert (await eng.runs.wait(run_id, timeout=10)).output == {"text": "True"}
