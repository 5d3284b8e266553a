"""What one run, call or reader does must not reach another; and what ends at the wrong moment must still end well."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.handler import steps
from interlingua.model.content import Message, TextPart
from interlingua.model.errors import InterlinguaError, KeyReused, RunNotFound, StoreError
from interlingua.model.events import OutputDelta, RunCreated
from interlingua.store.changes import Fenced
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite import connection as sqlite_connection
from interlingua.store.sqlite.worker_locks import Locks
from tests.engine.handler.test_misbehaviour import burn
from tests.engine.log.test_replay import output_of
from tests.kit.databases import sql
from tests.kit.engines import (
    PATIENT,
    QUICK,
    bodies,
    crash,
    engine,
    finish,
    kinds,
    log,
    never_reads_its_inbox,
    question,
    settle,
    submit,
)
from tests.kit.wait_for import wait_for


@il.agent
async def echo(text: str) -> str:
    return text


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None]) -> str:
    return str((await ctx.ask(il.Confirm("Go on?"))).approved)


# -- the writer ------------------------------------------------------------------------------------------------


async def test_a_call_that_cannot_be_written_does_not_mix_up_its_neighbours(store: Path) -> None:
    async with engine(store) as eng:
        await eng.threads.create("one")
        await eng.threads.create("three")
        results = await asyncio.gather(
            eng.threads.patch("one", metadata={"n": 1}),
            eng.runs.cancel("\ud800"),
            eng.threads.patch("three", metadata={"n": 3}),
            return_exceptions=True,
        )
        assert isinstance(results[0], il.Thread)
        assert isinstance(results[1], InterlinguaError)
        assert isinstance(results[2], il.Thread)
        assert (results[0].metadata, results[2].metadata) == ({"n": 1}, {"n": 3})


async def test_a_submission_that_is_tried_again_still_gets_its_thread(store: Path) -> None:
    @il.agent
    async def counting(ctx: il.Context[None, None]) -> str:
        ctx.state["n"] = 1  # type: ignore[index]
        return "x"

    async with engine(store, counting) as eng:
        await eng.threads.create("t")
        real, neighbours = eng.core.store.runs.submit, list[asyncio.Future[Any]]()

        def beside(*given: Any) -> Any:
            submitting = real(*given)
            assert isinstance(eng.core.store, SqlStore)
            # In the same transaction, and behind it.
            neighbours.append(
                eng.core.store.database.write(lambda conn: conn.execute("INSERT INTO nowhere VALUES (1)"))
            )
            return submitting

        eng.core.store.runs.submit = beside  # type: ignore[method-assign]
        assert (await finish(eng, "counting", thread="t")).status is il.Status.SUCCEEDED
        assert (await eng.threads.get("t")).values == {"n": 1}
        (neighbour,) = neighbours
        assert isinstance(neighbour.exception(), StoreError)


@pytest.mark.parametrize("what", ["messages", "caller", "trace"])
async def test_a_request_that_cannot_be_written_down_is_refused_alone(store: Path, what: str) -> None:
    bad: dict[str, Any] = {
        "messages": {"messages": [Message("user", [TextPart("\ud800")])]},
        "caller": {"caller": il.Caller("\ud800")},
        "trace": {"trace": {"a": "\ud800"}},
    }[what]
    async with engine(store, echo) as eng:
        results = await asyncio.gather(
            *(finish(eng, "echo", {"text": str(n)}) for n in range(3)), finish(eng, "echo", {"text": "x"}, **bad),
            return_exceptions=True,
        )  # fmt: skip
        assert [r.output for r in results[:3] if isinstance(r, il.Run)] == [{"text": str(n)} for n in range(3)]
        assert isinstance(results[3], InterlinguaError)


async def test_a_step_or_question_that_cannot_be_written_down_fails_only_its_run(store: Path) -> None:
    class Odd(il.Question[il.Verdict]):
        def __prompt__(self) -> str:
            return "\ud800"

    @il.agent(asks=[Odd])
    async def odd(ctx: il.Context[None, None], kind: str) -> str:
        if kind == "step":
            await ctx.step("\ud800", lambda: 1)
        else:
            await ctx.ask(Odd())
        return "?"

    async with engine(store, odd, echo) as eng:
        for kind in ("step", "ask"):
            run, other = await asyncio.gather(finish(eng, "odd", {"kind": kind}), finish(eng, "echo", {"text": "x"}))
            assert run.status is il.Status.FAILED
            assert other.status is il.Status.SUCCEEDED


async def test_a_lock_that_is_held_too_long_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store.db"
    async with engine(store, echo) as eng:
        monkeypatch.setattr(sqlite_connection, "_LOCK_PATIENCE", 0.5)
        conn = sqlite3.connect(store, isolation_level=None)
        conn.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        runs = [submit(eng, "echo", {"text": "x"}) for _ in range(20)]
        results = await asyncio.gather(*runs, return_exceptions=True)
        took = time.monotonic() - began
        conn.execute("ROLLBACK")
        conn.close()
        assert all(isinstance(result, InterlinguaError) and result.transient for result in results)
        assert took < 5  # and not ten, as one after the other


# -- claims, crashes and shutdown ---------------------------------------------------------------------------


async def test_a_child_that_ends_after_its_parent_does_not_wake_it(store: Path) -> None:
    entered, leaving = asyncio.Event(), asyncio.Event()

    @il.agent
    async def child() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await leaving.wait()
        return "x"

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        calling = asyncio.ensure_future(ctx.call(child))
        await entered.wait()
        calling.cancel()
        return "done"

    async with engine(store, child, parent, settings=PATIENT) as eng:
        run = await finish(eng, "parent")
        leaving.set()
        (child_run,) = sql(store, "SELECT id FROM runs WHERE parent=?", run.id)[0]
        assert (await eng.runs.wait(child_run, timeout=10)).status is il.Status.CANCELLED
        assert sql(store, "SELECT wake_at FROM runs WHERE id=?", run.id) == [(None,)]
        assert sql(store, "SELECT count(*) FROM inbox") == [(0,)]


async def test_a_cancel_under_way_survives_a_crash_and_the_agent_is_not_run_again(store: Path) -> None:
    entered: list[int] = []
    settings = msgspec.structs.replace(PATIENT, cancel_grace=20)

    @il.agent
    async def slow(ctx: il.Context[None, None]) -> str:
        entered.append(1)
        if len(entered) > 1:
            return "ran to its end"
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()
        return "?"

    first = engine(store, slow, settings=settings)
    await first.start()
    run = await submit(first, "slow")
    await wait_for(lambda: entered)
    await first.runs.cancel(run.id)
    async for event in first.runs.events(run.id):
        if event.kind == "cancel_requested":
            break
    await crash(first)
    async with engine(store, slow, settings=settings) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.CANCELLED
    assert entered == [1]


async def test_an_unreadable_run_does_not_stop_the_others(store: Path) -> None:
    async with engine(store, echo) as eng:
        bad = await submit(eng, "echo", {"text": "bad"}, delay=0.2)
        good = await submit(eng, "echo", {"text": "good"}, delay=0.3)
        sql(store, "UPDATE events SET body=? WHERE run=?", b'{"kind":"of a newer version"}', bad.id)
        assert (await eng.runs.wait(good.id, timeout=10)).output == {"text": "good"}


@pytest.mark.parametrize(
    "name", ["claims.next_wake", "claims.bury", "runs.inbox", "claims.owned_with_news", "claims.owned"]
)
async def test_a_store_that_fails_once_does_not_stop_the_engine(store: Path, name: str) -> None:
    async with engine(store, asker) as eng:
        port, method = operator.attrgetter(name.partition(".")[0])(eng.core.store), name.partition(".")[2]
        real, failed = getattr(port, method), []

        async def once(*args: Any, **kwargs: Any) -> Any:
            if not failed:
                failed.append(name)
                error = sqlite3.OperationalError("disk I/O error")
                raise StoreError("the store could not be read", why=error) if method == "inbox" else error
            return await real(*args, **kwargs)

        setattr(port, method, once)
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "True"}
        await wait_for(lambda: failed)


async def test_claimed_runs_on_their_way_in_are_not_taken_for_orphans(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.engine.runs.claims._ORPHANED", 0.0)
    calls: list[int] = []

    async def effect(n: int) -> int:
        calls.append(n)
        return n

    @il.agent
    async def work(ctx: il.Context[None, None], n: int) -> int:
        return await ctx.step("effect", effect, n)

    async with engine(store, work) as eng:
        runs = [await submit(eng, "work", {"n": n}, delay=0.5) for n in range(60)]
    sql(store, "UPDATE runs SET updated_at=updated_at-60000000")
    async with engine(store, work, settings=msgspec.structs.replace(QUICK, sweep_every=0.002)) as eng:
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert sorted(calls) == list(range(60))


async def test_an_agent_that_must_not_be_repeated_is_not_even_after_a_graceful_stop(store: Path) -> None:
    entered: list[int] = []

    @il.agent(retries=0)
    async def once() -> str:
        entered.append(1)
        await asyncio.Event().wait()
        return "never"

    async with engine(store, once) as eng:
        run = await submit(eng, "once")
        await wait_for(lambda: entered)
    async with engine(store, once) as eng:
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.error is not None
        assert (done.error.code, done.error.transient) == ("run_lost", True)
    assert entered == [1]


async def test_a_caller_that_goes_away_while_submitting_takes_no_slot_with_it(store: Path) -> None:
    @il.agent
    async def plain(ctx: il.Context[None, None]) -> str:
        return "x"

    async with engine(store, plain) as eng:
        real, entered = eng.core.store.runs.submit, asyncio.Event()

        def noted(*given: Any) -> Any:
            entered.set()
            return real(*given)

        eng.core.store.runs.submit = noted  # type: ignore[method-assign]
        for n in range(5):
            entered.clear()
            task = asyncio.create_task(submit(eng, "plain", thread=f"t{n}", create_thread=True))
            await entered.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await wait_for(lambda: sql(store, "SELECT DISTINCT status FROM runs") == [("succeeded",)])
        await wait_for(lambda: eng.core.worker.running == 0)


async def test_a_run_of_a_worker_that_left_no_trace_is_found(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await submit(eng, "echo", {"text": "x"}, delay=3600)
    sql(store, "UPDATE runs SET worker='nobody', wake_at=NULL, created_at=0")
    async with engine(store, echo) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "x"}


def test_a_forked_child_does_not_keep_a_dead_worker_alive(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from interlingua.store.sqlite.worker_locks import Locks
locks = Locks(Path({str(tmp_path / "w")!r}))
locks.hold("me")
heard, says = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(1)
    os.write(says, b"x")
    signal.pause()
os.read(heard, 1)  # the child is up
print(pid, flush=True)
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        assert Locks(tmp_path / "w").dead("me")
    finally:
        parent.stdout.close()
        os.kill(child, signal.SIGKILL)


# -- what was said stays said ---------------------------------------------------------------------------------


async def test_changing_what_a_step_gave_does_not_change_what_was_recorded(store: Path) -> None:
    def fetch():  # type: ignore[no-untyped-def]
        return ["a"]

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        items: Any = await ctx.step("fetch", fetch)
        items.append("b")
        await ctx.ask(il.Confirm("Go on?"))
        return ",".join(items)

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "a,b"}


async def test_changing_what_was_yielded_or_given_does_not_change_the_log(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None], data) -> AsyncIterator[dict[str, Any]]:  # type: ignore[no-untyped-def]
        data["seen"] = True
        delta = {"text": "a"}
        yield delta
        await ctx.thought("between")
        delta["text"] = "b"
        yield delta

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent", {"data": {}})
        assert run.output == {"text": "ab"}
        assert [d.delta["text"] for d in await bodies(eng, run.id, OutputDelta)] == ["a", "b"]
        (created,) = await bodies(eng, run.id, RunCreated)
        assert created.request.input == {"data": {}}


async def test_a_question_that_expires_while_the_run_is_parked_has_expired(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        async def short() -> str:
            try:
                await ctx.ask(il.Confirm("x"), deadline=0.2, key="x")
            except il.QuestionExpired:
                return "expired"
            return "answered"

        first, _ = await asyncio.gather(short(), ctx.ask(il.Confirm("y"), key="y"))
        return first

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        async for event in eng.runs.events(run.id):
            if event.kind == "withdrawn":
                break
        (asked,) = [q for q in await eng.questions.open() if q.key == "ask:y"]
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "expired"}


async def test_a_question_that_expired_just_before_a_crash_has_expired(store: Path) -> None:
    closed = asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.ask(il.Confirm("x"), deadline=0.1)
        except il.QuestionExpired:
            return "expired"
        return "?"

    first = engine(store, agent, settings=PATIENT)
    await first.start()
    real = first.core.store.questions.close

    async def and_then_nothing(*args: Any) -> bool:
        await real(*args)
        closed.set()
        await asyncio.Event().wait()
        return True

    first.core.store.questions.close = and_then_nothing  # type: ignore[method-assign]
    run = await submit(first, "agent")
    await closed.wait()
    await crash(first)
    async with engine(store, agent) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "expired"}


async def test_a_step_that_is_said_again_twice_keeps_its_output(store: Path) -> None:
    path = {"first": "1", "second": "x"}

    async def stream() -> AsyncIterator[str]:
        yield "STEP "

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        yield path["first"] + " "
        await ctx.step("g", stream)
        yield path["second"] + " "
        await ctx.ask(il.Confirm("x"))
        yield "end"

    for change in ({"first": "2"}, {"second": "y"}):
        eng = engine(store, agent, settings=PATIENT)
        await eng.start()
        runs = sql(store, "SELECT id FROM runs")
        run = runs[0][0] if runs else (await submit(eng, "agent")).id
        await question(eng, run)
        await wait_for(
            lambda eng=eng, run=run: (e := eng.core.worker.execution(run)) and e.waits.blocked and e.log.settled
        )
        await crash(eng)
        path |= change
    async with engine(store, agent) as eng:
        asked = await question(eng, run)
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run, timeout=10)
        assert done.output == {"text": "2 STEP y end"}
        assert output_of(await log(eng, run)) == done.output


async def test_text_that_changed_before_a_record_is_in_the_log_while_the_run_waits(store: Path) -> None:
    said = {"text": "Hello"}

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        yield said["text"]
        await ctx.ask(il.Confirm("one"), key="1")
        await ctx.ask(il.Confirm("two"), key="2")
        yield "!"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await wait_for(lambda: eng.core.worker.execution(run.id) is None)
        said["text"] = "He"
        await eng.questions.answer(asked.id, {"approved": True})
        await question(eng, run.id)
        assert output_of(await log(eng, run.id)) == {"text": "He"}


async def test_empty_output_does_not_look_like_a_difference(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        yield "a"
        yield ""
        await ctx.message("hi")
        await ctx.ask(il.Confirm("x"))
        yield "b"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "ab"}
        assert "restarted" not in await kinds(eng, run.id)


async def test_output_of_an_attempt_that_failed_is_taken_back(store: Path) -> None:
    attempts: list[int] = []

    async def stream() -> AsyncIterator[str]:
        attempts.append(1)
        yield "a"
        if len(attempts) == 1:
            raise ValueError("once")
        yield "b"

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> None:
        await ctx.emit("> ")
        await ctx.step("g", stream, retries=1, backoff=0)

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.output == {"text": "> ab"}
        assert output_of(await log(eng, run.id)) == run.output


@pytest.mark.parametrize("plain", [False, True])
async def test_a_generator_step_gives_back_what_it_yielded(store: Path, plain: bool) -> None:
    async def stream() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    def stream_plainly() -> Iterator[str]:
        yield from ("a", "b")

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> Any:
        return {"got": await ctx.step("g", stream_plainly if plain else stream)}

    async with engine(store, agent) as eng:
        assert (await finish(eng, "agent")).output == {"got": {"text": "ab"}}


async def test_the_same_key_is_done_asked_and_called_once(store: Path) -> None:
    done: list[str] = []

    @il.agent
    async def child() -> str:
        done.append("child")
        return "c"

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        for _ in range(2):
            await ctx.step("pay", lambda: done.append("paid"), key="order-1")
            await ctx.ask(il.Confirm("x"), key="q")
            await ctx.call(child, key="k")
        return "x"

    async with engine(store, agent, child, settings=PATIENT) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "x"}
    assert sorted(done) == ["child", "paid"]


# -- children, parking, slots ---------------------------------------------------------------------------------


async def test_an_agent_that_works_beside_a_wait_is_not_parked(store: Path) -> None:
    beat = asyncio.Event()

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        mail = asyncio.ensure_future(ctx.receive())
        try:
            while not mail.done():
                await beat.wait()
                beat.clear()
                yield "x"
        finally:
            mail.cancel()

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, "agent")
        execution = eng.core.worker.execution(run.id)
        assert execution is not None
        await wait_for(lambda: execution.waits.blocked)
        beat.set()
        async for event in eng.runs.events(run.id):
            if event.kind == "delta":
                break
        execution.parking.park_if_idle()  # as if it had waited long enough: but it has just said something
        assert execution.leaving is None
        execution.clock.active_at -= 3600
        execution.parking.park_if_idle()  # and now it has been silent for an hour, but may still do something
        assert execution.leaving is None


async def test_work_beside_a_wait_counts_as_running(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        mail = asyncio.ensure_future(ctx.receive())
        try:
            while True:
                await asyncio.sleep(0.01)
                yield "x"
        finally:
            mail.cancel()

    async with engine(store, agent, settings=PATIENT) as eng:
        assert (await finish(eng, "agent", timeout=0.2)).status is il.Status.TIMED_OUT


async def test_a_child_that_was_rolled_back_is_not_run_again(store: Path) -> None:
    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.call(asker)
        except il.ChildFailed:
            return "child gone"
        return "?"

    async with engine(store, asker, parent) as eng:
        run = await submit(eng, "parent")
        asked = await question(eng, run.id)
        await wait_for(lambda: not eng.core.worker._executions)
        await eng.runs.cancel(asked.run, rollback=True)
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "child gone"}
        with pytest.raises(RunNotFound):
            await eng.runs.get(asked.run)


async def test_children_of_a_cancelled_run_are_cancelled_in_the_same_transaction(store: Path) -> None:
    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        return str(await ctx.call(asker))

    first = engine(store, asker, parent)
    await first.start()
    run = await submit(first, "parent")
    asked = await question(first, run.id)
    await wait_for(lambda: not first.core.worker._executions)
    first.core.worker.notify_run = lambda *news: None  # type: ignore[method-assign, assignment]
    first.core.worker.claims.wake = lambda: None  # type: ignore[method-assign]
    await first.runs.cancel(run.id)
    await first.runs.wait(run.id, timeout=10)
    await crash(first)
    async with engine(store, asker, parent) as eng:
        assert (await eng.runs.wait(asked.run, timeout=10)).status is il.Status.CANCELLED


async def test_mail_does_not_start_a_delayed_run_and_a_cancel_ends_it(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await submit(eng, "echo", {"text": "x"}, delay=3600)
        await eng.runs.send(run.id, "hello")
        assert (await finish(eng, "echo", {"text": "y"}, delay=0.1)).status is il.Status.SUCCEEDED
        assert (await eng.runs.get(run.id)).status is il.Status.PENDING
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.CANCELLED


async def test_plain_functions_beyond_the_threads_wait_their_turn(store: Path) -> None:
    @il.agent
    def plain(n: int) -> int:
        return n

    async with engine(store, plain, settings=msgspec.structs.replace(PATIENT, max_sync_threads=2)) as eng:
        done = await asyncio.gather(*(finish(eng, "plain", {"n": n}) for n in range(20)))
        assert [run.output for run in done] == [{"value": n} for n in range(20)]


async def test_a_waiting_parent_leaves_its_slot_to_its_child(store: Path) -> None:
    @il.agent(retries=0)
    async def parent(ctx: il.Context[None, None]) -> str:
        return str(await ctx.call(echo, text="from the child"))

    async with engine(store, parent, echo, settings=msgspec.structs.replace(PATIENT, max_running=1)) as eng:
        assert (await finish(eng, "parent")).output == {"text": "from the child"}


async def test_a_message_is_not_overlooked_when_a_pull_was_given_up(store: Path) -> None:
    @il.agent(retries=0)
    async def parent(ctx: il.Context[None, None]) -> str:
        try:
            async with asyncio.timeout(0.1):
                await ctx.call(echo, text="x")
        except TimeoutError:
            pass
        return (await ctx.receive()).text

    async with engine(store, echo, parent, settings=PATIENT) as eng:
        real = eng.core.store.runs.inbox

        async def slow(*where: Any) -> Any:
            found = await real(*where)
            await asyncio.sleep(0.15)
            return found

        eng.core.store.runs.inbox = slow  # type: ignore[method-assign]
        run = await submit(eng, "parent")
        await asyncio.sleep(0.08)
        await eng.runs.send(run.id, "hello")
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "hello"}


async def test_a_worker_process_that_died_in_its_sleep_is_replaced(store: Path) -> None:
    async with engine(store, burn) as eng:
        await finish(eng, "burn", {"seconds": 0.001})
        (idle,) = eng.core.worker.processes._free
        os.kill(idle.process.pid, signal.SIGKILL)
        await idle.process.wait()
        assert (await finish(eng, "burn", {"seconds": 0.001})).status is il.Status.SUCCEEDED


# -- small promises ---------------------------------------------------------------------------------------------


async def test_a_key_covers_the_whole_request(store: Path) -> None:
    @il.agent
    async def first(ctx: il.Context[None, None]) -> str:
        return ctx.messages[0].text

    async with engine(store, first) as eng:
        await finish(eng, "first", key="k", messages=[Message("user", [TextPart("one")])])
        with pytest.raises(KeyReused):
            await finish(eng, "first", key="k", messages=[Message("user", [TextPart("two")])])


async def test_an_error_that_cannot_even_be_printed_still_ends_its_run(store: Path) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    @il.agent
    async def agent() -> str:
        raise Silent

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert run.error.code == "agent_crashed"


async def test_functions_of_steps_are_not_kept(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        return str(await ctx.step("s", lambda: 1 if ctx.run_id else 0))

    async with engine(store, agent, settings=msgspec.structs.replace(QUICK, keep_finished=0)) as eng:
        before = len(steps._codecs)
        for _ in range(20):
            await finish(eng, "agent")
        assert len(steps._codecs) - before <= 2


async def test_waiting_in_vain_leaves_nothing_behind(store: Path) -> None:
    async with engine(store, asker, settings=PATIENT) as eng:
        run = await submit(eng, "asker")
        await question(eng, run.id)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await eng.runs.wait(run.id, timeout=0.001)
        live = eng.core.worker.log_of(run.id)
        assert live is not None
        assert len(live._readers) < 5


async def test_deleted_runs_are_gone_also_from_memory(store: Path) -> None:
    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        return str(await ctx.call(echo, text="x"))

    async with engine(store, parent, echo) as eng:
        run = await finish(eng, "parent")
        (child,) = sql(store, "SELECT id FROM runs WHERE parent=?", run.id)[0]
        await eng.runs.delete(run.id)
        for gone in (run.id, child):
            with pytest.raises(RunNotFound):
                await eng.runs.get(gone)


async def test_a_log_whose_tail_was_cut_off_does_not_verify(store: Path) -> None:
    async with engine(store, echo) as eng:
        run = await finish(eng, "echo", {"text": "x"})
        sql(store, "DELETE FROM events WHERE run=? AND kind='finished'", run.id)
        assert await eng.runs.verify(run.id) == 3


async def test_a_thread_that_is_still_needed_does_not_keep_others_from_expiring(store: Path) -> None:
    settings = msgspec.structs.replace(QUICK, ttl_threads=0.05, sweep_every=0.02)
    async with engine(store, echo, settings=settings) as eng:
        await eng.threads.create("needed")
        await submit(eng, "echo", {"text": "x"}, thread="needed", delay=3600)
        await eng.threads.create("unused")
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        async with asyncio.timeout(10):
            while await sqlite.threads.get("unused") is not None:
                await asyncio.sleep(0.01)
        assert await sqlite.threads.get("needed") is not None


async def test_the_messages_before_the_first_are_none(store: Path) -> None:
    async with engine(store, echo) as eng:
        await eng.threads.create("t")
        await eng.threads.patch("t", values_={"a": 1})
        await finish(eng, "echo", {"text": "x"}, thread="t")
        assert await eng.threads.messages("t", upto=(await eng.threads.history("t"))[-1].messages) == []


async def test_a_rollback_that_comes_too_late_to_be_read_still_forgets_the_run(store: Path) -> None:
    @il.agent
    async def quick(ctx: il.Context[None, None]) -> str:
        await asyncio.get_running_loop().run_in_executor(None, going.wait)
        return "x"

    async with engine(store, quick) as eng:
        for _ in range(5):
            going = threading.Event()
            run = await submit(eng, "quick")
            execution = eng.core.worker.execution(run.id)
            assert execution is not None
            never_reads_its_inbox(execution)
            await eng.runs.cancel(run.id, rollback=True)
            going.set()
            await wait_for(lambda run=run: sql(store, "SELECT count(*) FROM runs WHERE id=?", run.id) == [(0,)])


async def test_a_log_that_is_refused_while_fragments_wait_is_given_up_without_another_error(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accepted, begun, more, refuse = asyncio.Event(), asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @il.agent
    async def talks() -> AsyncIterator[str]:
        await accepted.wait()
        yield "first "
        await begun.wait()  # its first words are being written
        for word in ("second ", "third ", "fourth "):
            yield word
        more.set()
        await asyncio.Event().wait()

    async with engine(store, talks, settings=PATIENT) as eng:
        writer = eng.core.store.database.writer  # type: ignore[attr-defined]
        write = writer._transaction

        def refused(sealed: list[Any], calls: list[Any], results: list[Any]) -> None:
            if any(row.kind == "delta" for one in sealed for row in one.events) and not refuse.is_set():
                loop.call_soon_threadsafe(begun.set)
                refuse.wait(20)
                raise StoreError("the disk is full")
            write(sealed, calls, results)

        monkeypatch.setattr(writer, "_transaction", refused)
        run = await submit(eng, "talks")
        accepted.set()
        await asyncio.wait_for(more.wait(), 20)
        written = eng.core.worker.log_of(run.id)
        assert written is not None
        refuse.set()
        with pytest.raises((StoreError, Fenced)):
            await asyncio.wait_for(written.flush(), 20)
        await settle()
    assert "list index out of range" not in caplog.text
