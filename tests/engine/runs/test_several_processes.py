"""Several processes on one store file: wake-ups cross them, and each run stays in one worker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import AgentNotFound
from interlingua.model.events import RunStarted
from interlingua.model.filters import RunFilter
from tests.faults.agents import quick
from tests.kit import processes
from tests.kit.engines import bodies, engine, finish, kinds, question, submit


def traces(store: Path | str) -> Path:
    """Where the agents there say what they did."""
    name = f"{store}.traces" if isinstance(store, Path) else hashlib.sha256(store.encode()).hexdigest()
    return Path(tempfile.gettempdir()) / name


@asynccontextmanager
async def server(store: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that has the agents of tests/faults/agents.py."""
    process = await processes.start("faults.server", store, 0, TRACES=str(traces(store)))
    async with processes.ended(process, gently=True):
        assert await processes.said(process) == "ready"
        yield process


async def test_a_run_submitted_here_is_run_by_the_process_that_has_the_agent(store: Path) -> None:
    async with server(store), engine(store) as eng:
        run = await finish(eng, "quick", {"n": 5})
        assert run.output == {"value": 5}
        (started,) = await bodies(eng, run.id, RunStarted)
        assert started.worker != eng.core.worker.id


async def test_a_process_checks_input_by_the_card_also_without_the_code(store: Path) -> None:
    async with server(store), engine(store) as eng:
        with pytest.raises(il.InterlinguaError, match="/n"):
            await submit(eng, "quick", {"n": "five"})
        with pytest.raises(AgentNotFound):
            await submit(eng, "nobody")


async def test_events_stream_across_processes(store: Path) -> None:
    async with server(store), engine(store) as eng:
        run = await submit(eng, "stream", {"n": 500})
        text, seen = "", 0
        async for event in eng.runs.events(run.id):
            assert event.first == seen + 1
            seen = event.seq
            if event.kind == "delta":
                text += event.body.delta["text"]  # type: ignore[union-attr]
        assert text == "".join(f"{n} " for n in range(500))


async def test_a_question_asked_there_is_answered_here_and_a_run_there_is_cancelled_from_here(store: Path) -> None:
    async with server(store), engine(store) as eng:
        run = await submit(eng, "asker", {"n": 1})
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "1 True"}
        endless = await submit(eng, "endless")
        async for event in eng.runs.events(endless.id):
            if event.kind == "thought":
                await eng.runs.cancel(endless.id, reason="from afar")
        assert (await eng.runs.get(endless.id)).status is il.Status.CANCELLED


async def test_messages_sent_from_here_arrive_there(store: Path) -> None:
    async with server(store), engine(store) as eng:
        run = await submit(eng, "listener", {"n": 2})
        await eng.runs.send(run.id, "a")
        await eng.runs.send(run.id, "b")
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "a b"}


async def test_a_killed_process_is_noticed_and_another_takes_over(store: Path) -> None:
    async with server(store) as first, engine(store) as eng:
        run = await submit(eng, "asker", {"n": 7})
        asked = await question(eng, run.id)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        await eng.questions.answer(asked.id, {"approved": True})
        async with server(store):
            assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "7 True"}


async def test_a_stopped_process_is_not_dead_and_keeps_its_runs(store: Path) -> None:
    """Liveness is a lock, not a clock: a laptop that slept has not died."""
    async with server(store) as first, engine(store, settings=il.Settings(sweep_every=0.02, stall_warning=0)) as eng:
        run = await submit(eng, "endless")
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                break
        first.send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                assert await eng.core.store.claims.bury() == []
            row = await eng.core.store.runs.get(run.id)
            assert row is not None
            assert row.crashes == 0
        finally:
            first.send_signal(signal.SIGCONT)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED


async def test_two_workers_share_the_work_and_each_run_is_run_once(store: Path) -> None:
    async with server(store), server(store), engine(store) as eng:
        runs = [await submit(eng, "steps", {"n": 3}) for _ in range(40)]
        for run in runs:
            assert len((await eng.runs.wait(run.id, timeout=30)).output["value"]) == 3
            assert (await kinds(eng, run.id)).count("started") == 1
        lines = [line.split()[:2] for line in traces(store).read_text().splitlines()]
        assert len(lines) == len({tuple(line) for line in lines}) == 120


async def test_a_worker_leaves_alone_what_it_has_no_code_for(store: Path) -> None:
    async with server(store):
        pass  # its cards stay known
    async with engine(store, quick) as eng:
        waiting = await submit(eng, "steps", {"n": 1})
        assert (await finish(eng, "quick", {"n": 1})).output == {"value": 1}
        assert (await eng.runs.get(waiting.id)).status is il.Status.PENDING
        async with server(store):
            assert (await eng.runs.wait(waiting.id, timeout=20)).status is il.Status.SUCCEEDED


async def test_a_run_whose_code_nobody_has_can_still_be_cancelled(store: Path) -> None:
    async with server(store):
        pass
    async with engine(store) as eng:
        run = await submit(eng, "steps", {"n": 1})
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.CANCELLED


async def test_a_key_is_one_run_also_when_two_processes_use_it_at_once(store: Path) -> None:
    async with server(store) as one, server(store) as two, engine(store) as eng:
        order: dict[str, Any] = {"do": "submit", "tag": 1, "request": {"agent": "quick", "input": {"n": 1}, "key": "k"}}
        line = (json.dumps(order) + "\n").encode()
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write(line * 5)
        ids = set()
        for process in (one, two):
            assert process.stdout is not None
            for _ in range(5):
                ids.add(json.loads(await process.stdout.readline())["ok"])
        assert len(ids) == 1
        assert len(await eng.runs.search(RunFilter())) == 1
