"""Worker processes of `process=True`: none outlives its server or its run, and one that is killed counts as a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlingua as il
from tests.kit.engines import QUICK, engine, finish, submit
from tests.kit.processes import lives, wait_for_end

REPO = Path(__file__).parents[3]


@il.agent(process=True)
def family() -> Iterator[str]:
    """Starts a process of its own, says who they are, and keeps its CPU busy."""
    child = subprocess.Popen(["sleep", "3600"])
    yield f"{os.getpid()} {child.pid}\n"
    while True:
        time.sleep(0.01)


@il.agent(process=True, retries=2)
def killed(file: str, times: int) -> str:
    """As by a system that has no memory left."""
    path = Path(file)
    count = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (count + 1))
    if count < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"at attempt {count + 1}"


@il.agent(process=True, retries=0)
def killed_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@il.agent(process=True)
def leaves() -> None:
    sys.exit(2)


@il.agent(process=True)
def fine() -> int:
    return os.getpid()


async def members(eng: il.Engine, run: str) -> tuple[int, int]:
    async for event in eng.runs.events(run):
        if event.kind == "delta":
            one, other = event.body.delta["text"].split()  # type: ignore[union-attr]
            return int(one), int(other)
    raise AssertionError("it ended")


async def test_cancelling_ends_all_that_the_process_started(store: Path) -> None:
    async with engine(store, family) as eng:
        run = await submit(eng, "family")
        pids = await members(eng, run.id)
        assert all(map(lives, pids))
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        await wait_for_end(*pids)


async def test_stopping_the_engine_ends_its_processes(store: Path) -> None:
    async with engine(store, family, fine) as eng:
        pid = (await finish(eng, "fine")).output["value"]
        run = await submit(eng, "family")
        pids = await members(eng, run.id)
    await wait_for_end(pid, *pids)


PROGRAM = """
import asyncio, sys
from pathlib import Path
import interlingua as il
from tests.engine.agents.test_process_pool import family

async def main():
    async with il.Engine(Path(sys.argv[1]), agents=[family]) as eng:
        run = await eng.runs.submit(il.RunRequest("family", input={}))
        async for event in eng.runs.events(run.id):
            if event.kind == "delta":
                print(event.body.delta["text"], flush=True)
                await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=str)
async def test_the_processes_of_a_server_that_is_killed_die_with_it(tmp_path: Path, number: signal.Signals) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(tmp_path / "store.db"), cwd=REPO, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "src")])},
    )  # fmt: skip
    assert server.stdout is not None
    pids = [int(pid) for pid in (await server.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(map(lives, pids))
    server.send_signal(number)
    await server.wait()
    await wait_for_end(*pids)


async def test_a_process_that_is_killed_counts_as_a_crash_and_is_tried_again(store: Path, tmp_path: Path) -> None:
    async with engine(store, killed) as eng:
        run = await finish(eng, "killed", {"file": str(tmp_path / "count"), "times": 1})
        assert run.output == {"text": "at attempt 2"}
        assert await eng.runs.verify(run.id) is None


async def test_a_process_that_is_killed_every_time_fails_its_run_and_the_signal_is_named(
    store: Path, tmp_path: Path
) -> None:
    async with engine(store, killed, killed_once, fine, settings=QUICK) as eng:
        file = tmp_path / "count"
        run = await finish(eng, "killed", {"file": str(file), "times": 100})
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("run_lost", False)
        assert "ended by SIGKILL" in run.error.message
        assert "2 times" in run.error.message
        assert len(file.read_text()) == 2
        once = await finish(eng, "killed_once")
        assert once.error is not None
        assert (once.error.code, once.error.transient) == ("run_lost", True)
        assert "SIGKILL" in once.error.message
        assert (await finish(eng, "fine")).status is il.Status.SUCCEEDED


async def test_sys_exit_in_a_process_fails_its_run_and_the_process_goes_on(store: Path) -> None:
    async with engine(store, leaves, fine, settings=il.Settings(processes=1, stall_warning=0)) as eng:
        before = (await finish(eng, "fine")).output
        run = await finish(eng, "leaves")
        assert run.error is not None
        assert (run.error.code, run.error.message) == ("agent_crashed", "the agent called sys.exit(2)")
        assert (await finish(eng, "fine")).output == before
