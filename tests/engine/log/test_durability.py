"""Durable before visible: nothing leaves a run before what it said earlier is committed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.bus.local import LocalBus
from interlingua.engine.handler.child_runs import ChildCall, ChildRuns
from interlingua.engine.ids import new_id
from interlingua.model.errors import Overloaded
from interlingua.model.events import OutputDelta, RunBlocked
from interlingua.model.filters import RunFilter
from interlingua.store.sql.store import SqlStore
from tests.kit.databases import disk_is_busy
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, kinds, question, settle, submit


@il.agent
async def quick(n: int) -> int:
    return n


async def test_nothing_is_acknowledged_before_it_is_committed(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def asker(ctx: il.Context[None, None]) -> str:
        return str((await ctx.ask(il.Confirm("Go on?"))).approved)

    async with engine(store, quick, asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        with disk_is_busy(store):
            waiting = [
                asyncio.ensure_future(work)
                for work in (
                    submit(eng, "quick", {"n": 1}),
                    submit(eng, "quick", {"n": 1}, key="k"),
                    eng.questions.answer(asked.id, {"approved": True}),
                    eng.runs.send(run.id, "hello"),
                    eng.runs.cancel(run.id),
                    eng.threads.create(),
                )
            ]
            await settle()
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_reader_sees_only_what_is_committed(store: Path) -> None:
    go = asyncio.Event()

    @il.agent
    async def talker(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        yield "first"
        await ctx.thought("waiting")
        await go.wait()
        yield "second"

    async with engine(store, talker) as eng:
        run = await submit(eng, "talker")
        seen: list[str] = []
        thought = asyncio.Event()

        async def read() -> None:
            async for event in eng.runs.events(run.id):
                seen.append(event.kind)
                if event.kind == "thought":
                    thought.set()

        reader = asyncio.ensure_future(read())
        await thought.wait()
        with disk_is_busy(store):
            go.set()
            await settle()
            assert seen[-1] == "thought"
            assert (await eng.runs.get(run.id)).status is il.Status.RUNNING
        await reader
        assert seen[-2:] == ["delta", "finished"]


async def test_a_run_that_was_taken_up_again_ends_for_others_only_when_that_is_committed(store: Path) -> None:
    go, entered = asyncio.Event(), asyncio.Event()

    @il.agent
    async def agent() -> str:
        entered.set()
        await go.wait()
        return "done"

    first = engine(store, agent)
    await first.start()
    run = await submit(first, "agent")
    await entered.wait()
    await crash(first)
    entered.clear()
    async with engine(store, agent) as eng:
        await entered.wait()
        with disk_is_busy(store):
            waiting = asyncio.ensure_future(eng.runs.wait(run.id))
            go.set()
            await settle()
            assert not waiting.done()
            assert (await eng.runs.get(run.id)).status is il.Status.RUNNING
        assert (await waiting).output == {"text": "done"}


async def test_a_step_is_entered_only_after_what_was_said_before_is_committed(store: Path) -> None:
    entered = asyncio.Event()
    go, ready = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        entered.set()

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        ready.set()
        await go.wait()
        yield "said before"
        await ctx.step("s", step)

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await ready.wait()
        with disk_is_busy(store):
            go.set()
            await settle()
            assert not entered.is_set()
        await eng.runs.wait(run.id, timeout=10)
        assert entered.is_set()


async def test_a_child_exists_only_after_the_record_of_calling_it_is_committed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_child, settled = ChildRuns._submit, list[bool]()

    async def watched(children: ChildRuns, call: ChildCall, child: str) -> None:
        settled.append(children._data.log.settled)
        await submit_child(children, call, child)

    monkeypatch.setattr(ChildRuns, "_submit", watched)
    entered = asyncio.Event()
    go, ready = asyncio.Event(), asyncio.Event()

    @il.agent
    async def child() -> str:
        entered.set()
        return "done"

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        ready.set()
        await go.wait()
        return str(await ctx.call(child))

    async with engine(store, child, parent) as eng:
        run = await submit(eng, "parent")
        await ready.wait()
        with disk_is_busy(store):
            go.set()
            await settle()
            assert not entered.is_set()
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "done"}
    assert settled == [True]


@pytest.mark.parametrize("clients", [1, 8])
async def test_a_short_run_is_two_commits_and_clients_share_them(store: Path, clients: int) -> None:
    async with engine(store, quick) as eng:
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        await finish(eng, "quick", {"n": 0})
        before = sqlite.batches

        async def client() -> None:
            for n in range(10):
                await finish(eng, "quick", {"n": n})

        await asyncio.gather(*(client() for _ in range(clients)))
        assert sqlite.batches - before <= 10 * 2.5


async def test_fragments_that_meet_in_one_transaction_become_one_event(store: Path) -> None:
    @il.agent
    async def talker() -> AsyncIterator[dict[str, Any]]:
        for n in range(50):
            yield {"text": f"{n} ", "list": [None, n], "sum": 1}

    async with engine(store, talker) as eng:
        run = await finish(eng, "talker")
        deltas = await bodies(eng, run.id, OutputDelta)
        assert len(deltas) < 50
        assert run.output == {"text": "".join(f"{n} " for n in range(50)), "list": list(range(50)), "sum": 50}


async def test_ids_are_uuids_of_version_seven_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(uuid.UUID(i).version == 7 and uuid.UUID(i).variant == uuid.RFC_4122 for i in ids[:100])


def test_a_process_that_is_split_off_makes_ids_of_its_own() -> None:
    code = """
import os
from interlingua.engine.ids import new_id
new_id()
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, new_id().encode())
    os._exit(0)
print(new_id()[19:] != os.read(reads, 36).decode()[19:])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


async def test_the_result_of_a_child_is_reused_only_for_the_same_input(store: Path) -> None:
    calls: list[int] = []
    numbers = iter([1, 2])

    @il.agent
    async def child(n: int) -> int:
        calls.append(n)
        return n * 10

    @il.agent(asks=[il.Confirm])
    async def parent(ctx: il.Context[None, None]) -> int:
        result = await ctx.call(child, n=next(numbers))
        await ctx.ask(il.Confirm("Go on?"))
        return int(result)

    eng = await engine(store, child, parent, settings=PATIENT).__aenter__()
    run = await submit(eng, "parent")
    await question(eng, run.id)
    await crash(eng)
    async with engine(store, child, parent) as eng:
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if isinstance(event.body, RunBlocked):
                    break
        assert event.body.message == (
            "the history has call 'child' ({\"n\":1}) here; the code calls call 'child' ({\"n\":2})"
        )
    assert calls == [1]


class DeafBus(LocalBus):
    """Loses everything."""

    def publish(self, topic: str) -> None:
        pass

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


async def test_when_every_hint_is_lost_everything_still_happens(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def asker(ctx: il.Context[None, None]) -> str:
        return str((await ctx.ask(il.Confirm("Go on?"))).approved)

    def deaf(*agents: il.Agent[..., Any]) -> il.Engine:
        return il.Engine(store, agents=agents, bus=DeafBus(), settings=QUICK)

    async with deaf(asker, quick) as working, deaf() as watching:
        working.core.store.on_change = lambda: None  # not even the file tells
        watching.core.store.on_change = lambda: None
        run = await watching.runs.submit(il.RunRequest("asker"))
        asked = await question(watching, run.id)
        await watching.questions.answer(asked.id, {"approved": True})
        seen = [event.kind async for event in watching.runs.events(run.id)]
        assert seen[-1] == "finished"
        delayed = await submit(working, "quick", {"n": 1}, delay=0.1)
        assert (await working.runs.wait(delayed.id, timeout=10)).output == {"value": 1}


async def test_submissions_beyond_what_the_store_can_keep_up_with_are_refused(store: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("interlingua.engine.runs.admission._BACKLOG", 20)
    async with engine(store, quick) as eng:
        with disk_is_busy(store):
            tasks = [asyncio.ensure_future(submit(eng, "quick", {"n": n})) for n in range(200)]
            await settle()
            refused = [t for t in tasks if t.done()]
            assert refused
            assert all(isinstance(t.exception(), Overloaded) for t in refused)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        accepted = [r for r in done if isinstance(r, il.Run)]
        assert len(accepted) + len(refused) == 200
        assert len(await eng.runs.search(RunFilter(limit=1000))) == len(accepted)


async def test_a_run_ends_once_and_nothing_follows(store: Path) -> None:
    finishing = asyncio.Event()

    @il.agent
    async def racer(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        finishing.set()
        return "done"

    async with engine(store, racer, settings=PATIENT) as eng:
        for _ in range(30):
            finishing.clear()
            run = await submit(eng, "racer")
            await finishing.wait()
            await asyncio.gather(
                *(eng.runs.cancel(run.id) for _ in range(3)), eng.runs.send(run.id, "x"), return_exceptions=True
            )
            done = await eng.runs.wait(run.id, timeout=10)
            names = await kinds(eng, run.id)
            assert names.count("finished") == 1
            assert names[-1] == "finished"
            assert done.status.final
            assert await eng.runs.verify(run.id) is None


async def test_an_acknowledged_cancel_survives_a_crash(store: Path) -> None:
    @il.agent
    async def endless(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        await asyncio.Event().wait()
        return "never"

    first = engine(store, endless)
    await first.start()
    run = await submit(first, "endless")
    async for event in first.runs.events(run.id):
        if event.kind == "thought":
            break
    await first.core.store.runs.deliver(run.id, "cancel", b'{"by":"me","reason":"x"}', 1)
    await crash(first)
    async with engine(store, endless) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.CANCELLED


async def test_reading_many_times_at_once_gives_everyone_the_same(store: Path) -> None:
    @il.agent
    async def talker() -> AsyncIterator[str]:
        for n in range(300):
            yield f"{n} "
            if n % 10 == 0:
                await asyncio.sleep(0)

    async def read(eng: il.Engine, run: str) -> str:
        text = ""
        async for event in eng.runs.events(run):
            if isinstance(event.body, OutputDelta):
                text += event.body.delta["text"]
        return text

    async with engine(store, talker) as eng:
        run = await submit(eng, "talker")
        texts = await asyncio.gather(*(read(eng, run.id) for _ in range(50)))
        assert set(texts) == {"".join(f"{n} " for n in range(300))}
