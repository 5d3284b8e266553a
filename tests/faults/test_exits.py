"""Processes that end in every way, under load and for long: no run but the one to blame is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.events import OutputDelta
from tests.engine.agents.test_process_pool import members
from tests.kit import processes
from tests.kit.commands import clean_env
from tests.kit.processes import lives, wait_for_end

from ..cli.test_signals import NAMES, begin, looking, nobody_is_hurt, process, wait_until_up

pytestmark = pytest.mark.faults

WATCHER = il.Settings(max_running=0, sweep_every=0.05, stall_warning=0)


@contextlib.asynccontextmanager
async def server(where: Path | str) -> AsyncIterator[asyncio.subprocess.Process]:
    async with processes.ended(await processes.start("faults.leaving", where)) as running:
        assert await processes.said(running) == "ready"
        yield running


async def test_a_slow_poison_dies_alone(each_store: Path | str) -> None:
    async with il.Engine(each_store, settings=WATCHER) as eng:
        runs: dict[str, str] = {}
        poison = ""
        for _ in range(12):
            async with server(each_store) as running:
                if not poison:
                    poison = (await eng.runs.submit(il.RunRequest("poison", input={"after": 6.0}))).id
                    for n in range(4):
                        name = f"innocent-{n}"
                        runs[name] = (await eng.runs.submit(il.RunRequest("innocent", input={"seconds": 8.0}))).id
                ended = asyncio.create_task(running.wait())
                over = asyncio.create_task(eng.runs.wait(poison, timeout=600))
                await asyncio.wait([ended, over], return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                over.cancel()
                if running.returncode is not None:
                    continue
                done = await eng.runs.wait(poison, timeout=1)
                assert done.error is not None
                assert done.error.code == "run_lost"
                for name, run in runs.items():
                    assert (await eng.runs.wait(run, timeout=120)).output == {"text": "done"}, name
                return
        raise AssertionError("the poison never ended")


async def test_agents_that_call_sys_exit_harm_nobody_else(each_store: Path | str) -> None:
    async with server(each_store) as running, il.Engine(each_store, settings=WATCHER) as eng:
        others = [await eng.runs.submit(il.RunRequest("innocent", input={"seconds": 5.0})) for _ in range(20)]
        bad = [
            await eng.runs.submit(il.RunRequest("leaves", input={"how": how}))
            for how in ["task", "group", "interrupt", "2"] * 25
        ]
        bad += [await eng.runs.submit(il.RunRequest("leaves_in_a_thread", input={})) for _ in range(25)]
        for run in bad:
            done = await eng.runs.wait(run.id, timeout=120)
            assert done.error is not None
            assert done.error.code == "agent_crashed"
        for run in others:
            assert (await eng.runs.wait(run.id, timeout=120)).output == {"text": "done"}
        assert running.returncode is None


async def test_no_worker_process_outlives_a_server_that_is_killed(each_store: Path | str) -> None:
    seen: set[int] = set()
    async with il.Engine(each_store, settings=WATCHER) as eng:
        for _ in range(10):
            async with server(each_store) as running:
                run = await eng.runs.submit(il.RunRequest("family", input={}))
                pids = await members(eng, run.id)
                assert all(map(lives, pids))
                seen |= set(pids)
                running.send_signal(random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
                await running.wait()
            await wait_for_end(*seen)
            await eng.runs.cancel(run.id)  # else it would have the place of the next one


async def its_process(eng: il.Engine, run: str) -> int:
    async for event in eng.runs.events(run):
        if isinstance(event.body, OutputDelta):
            return int(event.body.delta["text"].split()[0])
    raise AssertionError("it ended")


async def test_worker_processes_that_are_killed_lose_no_run(each_store: Path | str) -> None:
    """Runs whose worker process is killed are entered again, and come to their end."""
    async with server(each_store) as running, il.Engine(each_store, settings=WATCHER) as eng:
        runs = [(await eng.runs.submit(il.RunRequest("counts", input={"to": 50}))).id for _ in range(10)]
        beside = (await eng.runs.submit(il.RunRequest("innocent", input={"seconds": 1.0}))).id
        for run in runs:
            with contextlib.suppress(ProcessLookupError):  # it may be gone, or work on the next run already
                os.kill(await its_process(eng, run), signal.SIGKILL)
        for run in runs:
            done = await eng.runs.wait(run, timeout=120)
            assert done.status is il.Status.SUCCEEDED, done.error
            assert done.output is not None
            assert done.output["text"].endswith("50 counted")
            assert await eng.runs.verify(run) is None
        assert (await eng.runs.wait(beside, timeout=120)).output == {"text": "done"}
        assert running.returncode is None


@pytest.mark.parametrize("kind", ["serve", "worker", "embedded"])
async def test_any_signals_at_any_time_fail_no_run(each_store: Path | str, kind: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    env = {**clean_env(), "INTERLINGUA_STORE": str(each_store)}
    names = [name for name in NAMES if name != "stubborn" or kind != "embedded"]
    with process(kind, env, 1.0) as running:
        wait_until_up(running)
        async with looking(env) as eng:
            runs = await begin(eng, names)
        running.kill()
    for _ in range(15):
        with process(kind, env, 1.0) as running:
            if chance.random() < 0.6:
                await asyncio.to_thread(wait_until_up, running)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            for _ in range(chance.randint(1, 3)):
                running.send_signal(chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
                await asyncio.sleep(chance.uniform(0.0, 0.3))
            if chance.random() < 0.2:
                running.kill()
            running.send_signal(signal.SIGTERM)  # whatever came before, it is to end
            await asyncio.to_thread(running.communicate, None, 60)
    await nobody_is_hurt(env, kind, runs, blamed=True)
