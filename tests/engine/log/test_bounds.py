"""What a run may take is bounded: bytes in memory, bytes in its log, and the threads of its steps."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import AlreadyFinished, Unavailable
from interlingua.model.events import MessageReceived, QuestionAsked
from tests.kit.databases import disk_is_busy
from tests.kit.engines import PATIENT, QUICK, engine, finish, parked, question, settle, submit
from tests.kit.wait_for import wait_for

MB = 1024 * 1024
SMALL = msgspec.structs.replace(PATIENT, keep_live_bytes=2 * MB)


class Memory:
    def __init__(self) -> None:
        gc.collect()
        tracemalloc.reset_peak()
        self.before = tracemalloc.get_traced_memory()[0]

    @property
    def held(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - self.before

    @property
    def peak(self) -> int:
        return tracemalloc.get_traced_memory()[1] - self.before


@contextmanager
def measured() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@il.agent(asks=[il.Confirm])
async def collects(ctx: il.Context[None, None], count: int) -> str:
    """Waits for an answer first, and reads its messages then."""
    await ctx.ask(il.Confirm("Read them?"))
    seen = []
    for _ in range(count):
        message = await ctx.receive()
        (part,) = message.parts
        assert isinstance(part, il.TextPart)
        assert len(part.text) == MB
        seen.append(part.text[0])
    return "".join(seen)


async def test_messages_that_nobody_reads_take_no_memory(store: Path) -> None:
    letters = [chr(ord("a") + n % 26) for n in range(40)]
    with measured():
        async with engine(store, collects, settings=SMALL) as eng:
            run = await submit(eng, "collects", {"count": len(letters)})
            asked = await question(eng, run.id)
            memory = Memory()
            for letter in letters:
                await eng.runs.send(run.id, letter * MB)
            received = 0
            async for event in eng.runs.events(run.id):
                received += isinstance(event.body, MessageReceived)
                del event
                if received == len(letters):
                    break
            assert memory.held < 12 * MB
            assert memory.peak < 60 * MB
            await eng.questions.answer(asked.id, {"approved": True})
            view = await eng.runs.wait(run.id, timeout=20)
            assert view.output == {"text": "".join(letters)}
            assert memory.held < 12 * MB


async def test_messages_come_in_order_from_memory_and_from_the_store(store: Path) -> None:
    settings = msgspec.structs.replace(QUICK, keep_live_bytes=3000)

    @il.agent(asks=[il.Confirm])
    async def reads(ctx: il.Context[None, None]) -> str:
        said = []
        for _ in range(30):
            message = await ctx.receive()
            (part,) = message.parts
            assert isinstance(part, il.TextPart)
            said.append(part.text.strip())
        await ctx.ask(il.Confirm("Go on?"))
        return " ".join(said)

    async with engine(store, reads, settings=settings) as eng:
        run = await submit(eng, "reads")
        for number in range(30):
            await eng.runs.send(run.id, f"{number}" + " " * 400)
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        await eng.questions.answer(asked.id, {"approved": True})
        view = await eng.runs.wait(run.id, timeout=20)
        assert view.output == {"text": " ".join(map(str, range(30)))}


async def test_output_that_nobody_reads_takes_no_memory(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def talks(ctx: il.Context[None, None]) -> str:
        for number in range(40):
            await ctx.thought(f"{number}" + "x" * MB)
        await ctx.ask(il.Confirm("Done?"))
        return "done"

    with measured():
        async with engine(store, talks, settings=SMALL) as eng:
            memory = Memory()
            run = await submit(eng, "talks")
            await question(eng, run.id)
            assert memory.held < 12 * MB
            assert memory.peak < 60 * MB
            seen = [event.kind async for event in _until_asked(eng, run.id)]
            assert seen.count("thought") == 40
            assert memory.peak < 60 * MB


async def _until_asked(eng: il.Engine, run: str) -> AsyncIterator[Any]:
    async for event in eng.runs.events(run):
        yield event
        if isinstance(event.body, QuestionAsked):
            return


@pytest.mark.parametrize("shape", ["async", "thread"])
async def test_output_waits_for_the_disk_by_its_bytes(store: Path, shape: str) -> None:
    said = 0
    go = asyncio.Event()

    def parts() -> Iterator[dict[str, str]]:
        nonlocal said
        for number in range(50):
            said += 1
            yield {f"part{number}": "x" * 100_000}

    @il.agent
    async def pours(ctx: il.Context[None, None]) -> AsyncIterator[dict[str, str]]:
        await ctx.thought("ready")
        await go.wait()
        for part in parts():
            yield part

    @il.agent
    def pours_in_a_thread(ctx: il.SyncContext[None, None]) -> Iterator[dict[str, str]]:
        ctx.thought("ready")
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        yield from parts()

    loop = asyncio.get_running_loop()
    settings = msgspec.structs.replace(PATIENT, keep_live_bytes=500_000)
    async with engine(store, pours, pours_in_a_thread, settings=settings) as eng:
        run = await submit(eng, "pours" if shape == "async" else "pours_in_a_thread")
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                break
        with disk_is_busy(store):
            go.set()
            await wait_for(lambda: said >= 5)
            await settle()
            assert said < 20
        view = await eng.runs.wait(run.id, timeout=20)
        assert view.error is None
        assert len(view.output) == 50


async def test_the_size_of_a_log_counts_over_all_entries(store: Path) -> None:
    settings = msgspec.structs.replace(QUICK, max_log_bytes=50_000)

    @il.agent(asks=[il.Confirm])
    async def says(ctx: il.Context[None, None]) -> str:
        for number in range(8):
            await ctx.thought("x" * 10_000)
            await ctx.ask(il.Confirm(f"Go on {number}?"))
        return "done"

    async with engine(store, says, settings=settings) as eng:
        run = await submit(eng, "says")
        entries = 0
        while not (view := await eng.runs.wait(run.id, timeout=20, settled=True)).status.final:
            entries += 1
            await parked(eng, run.id)
            await eng.questions.answer(view.questions[0].id, {"approved": True})
        assert view.error is not None
        assert view.error.code == "too_large"
        assert "50000" in view.error.message
        assert 3 <= entries <= 5


@pytest.mark.parametrize("what", ["step", "message", "question"])
async def test_records_count_for_the_size_of_a_log(store: Path, what: str) -> None:
    settings = msgspec.structs.replace(PATIENT, max_log_bytes=50_000)
    done = 0

    @il.agent(asks=[il.Confirm])
    async def records(ctx: il.Context[None, None]) -> str:
        nonlocal done
        for number in range(20):
            if what == "step":
                await ctx.step("large", lambda: "x" * 10_000)
            elif what == "message":
                await ctx.receive()
            else:
                await ctx.ask(il.Confirm("x" * 10_000))
            done = number + 1
        return "done"

    async with engine(store, records, settings=settings) as eng:
        run = await submit(eng, "records")
        for _ in range(20):
            view = await eng.runs.wait(run.id, timeout=20, settled=what == "question") if what == "question" else None
            if what == "message":
                try:
                    await eng.runs.send(run.id, "x" * 10_000)
                except AlreadyFinished:
                    break
            elif view is not None:
                if view.status.final:
                    break
                await eng.questions.answer(view.questions[0].id, {"approved": True})
        view = await eng.runs.wait(run.id, timeout=20)
        assert view.error is not None
        assert view.error.code == "too_large"
        assert done < 6
        assert sum(event.size for event in await _rows(eng, run.id)) < 70_000


async def _rows(eng: il.Engine, run: str) -> list[il.Event]:
    return await eng.core.store.runs.events(run, 0, 1000)


@pytest.mark.parametrize("shape", ["function", "generator"])
async def test_a_step_that_timed_out_in_its_thread_is_tried_again_when_it_has_returned(store: Path, shape: str) -> None:
    at_work, most, go_on, second = 0, 0, threading.Event(), threading.Event()
    attempts: list[int] = []

    def slow() -> str:
        nonlocal at_work, most
        attempts.append(len(attempts))
        at_work += 1
        most = max(most, at_work)
        try:
            if len(attempts) == 1:
                go_on.wait(20)
            else:
                second.set()
        finally:
            at_work -= 1
        return "done"

    def slow_generator() -> Iterator[str]:
        yield slow()

    @il.agent
    async def works(ctx: il.Context[None, None]) -> str:
        await ctx.step("slow", slow if shape == "function" else slow_generator, retries=10, backoff=0, timeout=0.2)
        return "done"

    async with engine(store, works, settings=PATIENT) as eng:
        run = await submit(eng, "works")
        assert not await asyncio.to_thread(second.wait, 0.6)
        go_on.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
    assert most == 1
    assert len(attempts) >= 2


async def test_a_run_that_is_resumed_takes_no_memory_for_its_messages(store: Path) -> None:
    letters = [chr(ord("a") + n % 26) for n in range(40)]
    settings = msgspec.structs.replace(QUICK, keep_live_bytes=2 * MB)
    async with engine(store, collects, settings=settings) as eng:
        run = await submit(eng, "collects", {"count": len(letters)})
        asked = await question(eng, run.id)
        for letter in letters:
            await eng.runs.send(run.id, letter * MB)
            await parked(eng, run.id)
    with measured():
        memory = Memory()
        async with engine(store, collects, settings=settings) as eng:
            await eng.questions.answer(asked.id, {"approved": True})
            view = await eng.runs.wait(run.id, timeout=60)
            assert view.output == {"text": "".join(letters)}
            assert memory.peak < 60 * MB


@il.agent(asks=[il.Confirm])
async def makes(ctx: il.Context[None, None], count: int) -> str:
    """Makes results that it does not keep, and waits for an answer then."""
    made = []
    for number in range(count):
        made.append((await ctx.step("make", lambda n: chr(ord("a") + n % 26) * MB, number))[0])
    await ctx.ask(il.Confirm("Done?"))
    return "".join(made)


async def test_results_of_steps_take_no_memory_once_the_handler_has_them(store: Path) -> None:
    with measured():
        async with engine(store, makes, settings=SMALL) as eng:
            memory = Memory()
            run = await submit(eng, "makes", {"count": 40})
            asked = await question(eng, run.id)
            assert memory.held < 12 * MB
        memory = Memory()
        async with engine(store, makes, settings=SMALL) as eng:
            await eng.questions.answer(asked.id, {"approved": True})
            view = await eng.runs.wait(run.id, timeout=60)
            assert view.output == {"text": "".join(chr(ord("a") + n % 26) for n in range(40))}
            assert memory.held < 12 * MB
            assert memory.peak < 30 * MB


async def test_results_from_the_store_come_to_branches_in_the_order_of_the_log(store: Path) -> None:
    settings = msgspec.structs.replace(QUICK, keep_live_bytes=3000)
    seen: list[list[str]] = []

    @il.agent(asks=[il.Confirm])
    async def races(ctx: il.Context[None, None]) -> str:
        order: list[str] = []

        async def branch(name: str) -> None:
            for number in range(10):
                text = await ctx.step("make", lambda n: f"{name}{n} " + "x" * (5000 if name == "a" else 1), number)
                order.append(text.split()[0])

        await asyncio.gather(branch("a"), branch("b"), branch("c"))
        seen.append(order)
        await ctx.ask(il.Confirm("Done?"))
        return "done"

    async with engine(store, races, settings=settings) as eng:
        run = await submit(eng, "races")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).error is None
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_result_that_is_read_while_the_store_is_away_is_waited_for(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = msgspec.structs.replace(QUICK, keep_live_bytes=2 * MB)
    failures = 0
    async with engine(store, makes, settings=settings) as eng:
        run = await submit(eng, "makes", {"count": 5})
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        events = eng.core.store.runs.events

        async def away(run_id: str, after: int, limit: int) -> list[il.Event]:
            nonlocal failures
            if limit == 1 and failures < 3:
                failures += 1
                raise Unavailable("the store is away")
            return await events(run_id, after, limit)

        monkeypatch.setattr(eng.core.store.runs, "events", away)
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "abcde"}
    assert failures == 3


@il.agent
async def large(n: int) -> str:
    return chr(ord("a") + n % 26) * MB


@il.agent(asks=[il.Confirm])
async def calls(ctx: il.Context[None, None], count: int) -> str:
    """Calls others for results that it does not keep, and waits for an answer then."""
    made = [(await ctx.call(large, n=number))[0] for number in range(count)]
    await ctx.ask(il.Confirm("Done?"))
    return "".join(made)


async def test_results_of_children_take_no_memory_once_the_handler_has_them(store: Path) -> None:
    with measured():
        async with engine(store, calls, large, settings=SMALL) as eng:
            memory = Memory()
            run = await submit(eng, "calls", {"count": 60})
            asked = await question(eng, run.id)
            assert memory.held < 25 * MB
        memory = Memory()
        async with engine(store, calls, large, settings=SMALL) as eng:
            await eng.questions.answer(asked.id, {"approved": True})
            view = await eng.runs.wait(run.id, timeout=60)
            assert view.output == {"text": "".join(chr(ord("a") + n % 26) for n in range(60))}
            assert memory.held < 25 * MB
            assert memory.peak < 40 * MB


@il.agent
async def recites(mb: int) -> AsyncIterator[str]:
    """Says as many megabytes as it is told."""
    for _ in range(mb):
        yield "x" * MB


async def test_a_reader_that_waits_does_not_hold_the_end_of_a_run(store: Path) -> None:
    forgetful = msgspec.structs.replace(SMALL, keep_finished=0)
    with measured():
        async with engine(store, recites, settings=forgetful) as eng:
            await finish(eng, "recites", {"mb": 1})
            memory, readers = Memory(), []
            for _ in range(4):
                run = await submit(eng, "recites", {"mb": 10})
                reader = eng.runs.reader(run.id)
                await reader.read()
                await eng.runs.wait(run.id, timeout=20)
                readers.append(reader)
            await finish(eng, "recites", {"mb": 1})  # the writer forgets the batch of the last one
            assert memory.held < 12 * MB  # of 40 MB that were said
            for reader in readers:
                while not reader.over:
                    events = await reader.read()
                assert len(events[-1].body.output["text"]) == 10 * MB


async def test_a_run_that_has_ended_leaves_memory_without_the_collector(store: Path) -> None:
    gone: list[weakref.ref[object]] = []

    @il.agent
    async def steps(ctx: il.Context[None, None], fails: bool = False) -> str:
        gone.append(weakref.ref(ctx._run))
        await ctx.step("add", lambda: 1)
        await ctx.message("done")
        if fails:
            raise il.AgentError("no")
        return "x"

    @il.agent
    def plain(ctx: il.SyncContext[None, None]) -> str:
        gone.append(weakref.ref(ctx._run))
        ctx.step("add", lambda: 1)
        return "x"

    async with engine(store, steps, plain) as eng:
        gc.collect()
        gc.disable()
        try:
            for agent, given in (("steps", {}), ("steps", {"fails": True}), ("plain", {})):
                await finish(eng, agent, given)
            await wait_for(lambda: all(ref() is None for ref in gone))
        finally:
            gc.enable()
    assert len(gone) == 3
