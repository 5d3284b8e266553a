"""Any signals, in any order, at `serve`, `worker`, `run` and a program that embeds an engine: no run fails by them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.model.status import FINAL
from tests.kit.commands import PATIENCE, Result, store_of

Cli = Callable[..., Result]

AGENTS = str(Path(__file__).with_name("signalled.py"))
NAMES = ["waiting", "stubborn", "group", "busy", "thread", "step", "asking"]
REPO = Path(__file__).parents[2]
WATCHER = il.Settings(max_running=0, sweep_every=0.05, stall_warning=0)

COMMANDS: dict[str, list[str]] = {
    "serve": ["-m", "interlingua", "serve", AGENTS, "--port", "0"],
    "worker": ["-m", "interlingua", "worker", AGENTS],
    "embedded": ["-m", "tests.cli.embedded"],
}


@contextlib.contextmanager
def process(kind: str, env: dict[str, str], grace: float, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A process with the agents."""
    words = [sys.executable, *COMMANDS[kind]]
    if kind == "embedded":
        words += [env["INTERLINGUA_STORE"], str(grace)]
    else:
        words += ["--limits-shutdown-grace", str(grace), "--limits-cancel-grace", "0.2"]
    where = {**env, **extra, "PYTHONPATH": os.pathsep.join([str(REPO), env["PYTHONPATH"]])}
    with subprocess.Popen(words, env=where, cwd=REPO, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_until_up(running: subprocess.Popen[str]) -> None:
    assert running.stderr is not None
    for line in running.stderr:
        if "Ctrl-C stops." in line:
            return
    raise AssertionError(f"it ended with {running.wait()}")


@contextlib.asynccontextmanager
async def looking(env: dict[str, str]) -> AsyncIterator[il.Engine]:
    """Somebody else on the same store, who executes nothing."""
    async with il.Engine(store_of(env), settings=WATCHER) as eng:
        yield eng


async def begin(eng: il.Engine, names: list[str]) -> dict[str, str]:
    """Start a run of each, and come back when all are at it."""
    runs = {name: (await eng.runs.submit(il.RunRequest(name, input={}))).id for name in names}
    for run in runs.values():
        async for event in eng.runs.events(run):
            if event.kind == "thought":
                break
    await eng.runs.wait(runs["asking"], timeout=PATIENCE, settled=True)
    return runs


def send_until_it_ends(running: subprocess.Popen[str], numbers: list[signal.Signals]) -> int:
    """Send signals one after the other, and the last one again and again: one that is pending twice comes once."""
    for number in numbers:
        running.send_signal(number)
        time.sleep(0.05)
    deadline = time.monotonic() + PATIENCE
    while running.poll() is None and time.monotonic() < deadline:
        if len(numbers) > 1:
            running.send_signal(numbers[-1])
        time.sleep(0.02)
    return running.wait(timeout=1)


async def nobody_is_hurt(env: dict[str, str], kind: str, runs: dict[str, str], *, blamed: bool) -> None:
    """All of them are as they were, and come to their end in the next process of that kind."""
    async with looking(env) as eng:
        for name, run in runs.items():
            row = await eng.core.store.runs.get(run)
            assert row is not None
            assert row.status not in FINAL, (name, (await eng.runs.get(run)).error)
            assert blamed or row.crashes == 0, name
        with process(kind, env, 1.0, GO="1") as running:
            wait_until_up(running)
            for question in await eng.questions.open():
                await eng.questions.answer(question.id, {"approved": True})
            for name, run in runs.items():
                done = await eng.runs.wait(run, timeout=PATIENCE)
                assert done.output == {"text": "done"}, (name, done.error)
                assert await eng.runs.verify(run) is None


INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.mark.parametrize(
    ("kind", "numbers", "code"),
    [
        ("serve", [INT], 0),
        ("serve", [HUP, TERM], 0),
        ("serve", [INT, INT], 130),
        ("worker", [TERM], 0),
        ("worker", [TERM, INT], 130),
        ("worker", [INT, HUP, TERM], 143),
        ("embedded", [INT], -2),
        ("embedded", [INT, INT], -2),
        ("embedded", [TERM], -15),
    ],
    ids=str,
)
async def test_signals_at_a_process_fail_none_of_its_runs(
    env: dict[str, str], kind: str, numbers: list[signal.Signals], code: int
) -> None:
    several = len([number for number in numbers if number is not HUP]) > 1
    with process(kind, env, 60.0 if several else 0.2) as running:
        wait_until_up(running)
        async with looking(env) as eng:
            # A loop ends only when all its tasks do; one that cannot be cancelled is nothing for every case here.
            runs = await begin(eng, NAMES if kind == "serve" else [name for name in NAMES if name != "stubborn"])
            last = [number for number in numbers if not (number is HUP and len(numbers) > 1 and not several)]
            if HUP in numbers and not several:
                running.send_signal(HUP)
            began = time.monotonic()
            ended = await asyncio.to_thread(send_until_it_ends, running, last)
        took = time.monotonic() - began
    assert ended == code
    assert took < 30, "the second signal ends it fast"
    await nobody_is_hurt(env, kind, runs, blamed=several or kind == "embedded")  # handing back may have taken too long


@pytest.mark.parametrize(("number", "code"), [(INT, 130), (TERM, 143)])
def test_a_server_that_is_told_to_end_before_it_is_up_ends(
    env: dict[str, str], number: signal.Signals, code: int
) -> None:
    with process("serve", env, 60.0, SIGNAL=number.name) as running:
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == code
    assert "Traceback" not in err
    assert "Serving on" not in err


def test_a_hangup_while_a_server_starts_does_not_end_it(env: dict[str, str]) -> None:
    with process("serve", env, 60.0, SIGNAL="SIGHUP") as running:
        wait_until_up(running)
        assert send_until_it_ends(running, [TERM]) == 0


async def test_a_callback_that_calls_sys_exit_ends_neither_a_server_nor_its_runs(env: dict[str, str]) -> None:
    with process("serve", env, 0.2) as running:
        wait_until_up(running)
        async with looking(env) as eng:
            other = (await eng.runs.submit(il.RunRequest("waiting", input={}))).id
            for _ in range(2):
                run = (await eng.runs.submit(il.RunRequest("callback", input={}))).id
                assert (await eng.runs.wait(run, timeout=PATIENCE)).output == {"text": "done"}
            row = await eng.core.store.runs.get(other)
            assert row is not None
            assert (row.status, row.crashes) == (il.Status.RUNNING, 0)
        assert await asyncio.to_thread(send_until_it_ends, running, [TERM]) == 0


# -- run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [INT, TERM, HUP])
def test_a_signal_cancels_the_run_that_is_followed(env: dict[str, str], cli: Cli, number: signal.Signals) -> None:
    with _run(env, "waiting") as running:
        assert send_until_it_ends(running, [number]) == 130
    (run,) = cli("runs", "list", "--json").json
    assert run["status"] == "cancelled"
    events = cli("runs", "show", run["id"], "--json").json
    assert events["status"] == "cancelled"


@pytest.mark.parametrize("numbers", [[INT, INT], [TERM, TERM], [HUP, TERM], [INT, TERM], [HUP, INT]], ids=str)
async def test_a_second_signal_ends_the_command_and_leaves_its_runs(
    env: dict[str, str], numbers: list[signal.Signals]
) -> None:
    with _run(env, "stubborn") as running:
        async with looking(env) as eng:
            (own,) = await eng.runs.search(RunFilter())
            other = (await eng.runs.submit(il.RunRequest("waiting", input={}))).id
            async for event in eng.runs.events(other):
                if event.kind == "thought":
                    break
            code = await asyncio.to_thread(send_until_it_ends, running, numbers)
            assert code == 128 + numbers[-1]
            row, another = await eng.core.store.runs.get(own.id), await eng.core.store.runs.get(other)
    assert row is not None
    assert another is not None
    assert row.status in (il.Status.CANCELLING, il.Status.CANCELLED)
    assert another.status is il.Status.RUNNING


@contextlib.contextmanager
def _run(env: dict[str, str], agent: str) -> Iterator[subprocess.Popen[Any]]:
    words = [sys.executable, "-m", "interlingua", "run", f"{AGENTS}:{agent}"]
    with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            assert running.stderr.readline().startswith("store: ")
            assert "here" in running.stderr.readline()
            yield running
        finally:
            running.kill()


TWO_HANGUPS = """
import asyncio, signal
from interlingua.terminal.signals import Signals

async def main():
    ended, hangups = asyncio.Event(), []

    def hangup():
        hangups.append(1)
        if len(hangups) == 1:
            signal.raise_signal(signal.SIGHUP)
        return True

    with Signals(ended.set, hangup=hangup):
        signal.raise_signal(signal.SIGHUP)
        await ended.wait()
    print("in order", len(hangups))

asyncio.run(main())
"""


def test_a_second_hangup_while_the_first_is_handled_does_not_insist(env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_HANGUPS], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout) == (0, "in order 2\n"), done.stderr
