"""The process behind `editor:COMMAND`: one for many runs, and nothing of it is left in any way of ending."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import interlingua as il
from tests.kit.engines import bodies, finish, submit
from tests.kit.mounts.editor import AGENT, agent_of, alive, command, gone, mount, mounted, script
from tests.kit.mounts.watch import seen
from tests.kit.wait_for import wait_for


def wrapper(tmp_path: Path, given: dict[str, object]) -> tuple[str, Path]:
    """A script that starts the agent as a child of its own, as package runners do; and where the pids will stand."""
    pids = tmp_path / "pids"
    path = tmp_path / "wrapper.sh"
    inner = command({"pidfile": str(pids), **given})
    path.write_text(f'#!/bin/sh\necho $$ >> {shlex.quote(str(pids))}\n{inner} <&0\necho "$?" >/dev/null\n')
    path.chmod(0o755)
    return str(path), pids


def pids_of(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


async def test_one_process_serves_many_runs_at_once(store: Path) -> None:
    async with mounted(store) as (eng, made):
        runs = [await submit(eng, AGENT, script(f"say {n} ", "pid")) for n in range(5)]
        outputs = [(await eng.runs.wait(run.id, timeout=20)).output for run in runs]
        words = [output["text"].split() for output in outputs if output is not None]
        assert [number for number, _ in words] == ["0", "1", "2", "3", "4"]
        assert len({pid for _, pid in words}) == 1
        assert made.keeper.starts == 1


async def test_letting_go_ends_the_agent_behind_a_wrapper_too(tmp_path: Path) -> None:
    line, pids = wrapper(tmp_path, {})
    made = mount(line=line)
    await agent_of(made)
    shell, agent = pids_of(pids)
    assert alive(shell)
    assert alive(agent)
    await made.close()
    assert not alive(shell)
    assert not alive(agent)


async def test_an_agent_that_does_not_end_with_its_input_is_made_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.transports.process.child_process._PATIENCE", (0.2, 2.0))
    line, pids = wrapper(tmp_path, {"deaf": True})
    made = mount(line=line)
    await agent_of(made)
    await made.close()
    assert not any(alive(pid) for pid in pids_of(pids))


async def test_when_the_wrapper_dies_the_agent_does_too(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.transports.process.child_process._PATIENCE", (0.2, 2.0))
    line, pids = wrapper(tmp_path, {"deaf": True})
    async with mounted(store, line=line) as (eng, made):
        shell, agent = pids_of(pids)
        os.kill(shell, signal.SIGKILL)
        await gone(agent)
        assert made.keeper._reading is not None
        await asyncio.wait([made.keeper._reading])  # until its end is heard, too
        run = await finish(eng, AGENT, script("say back"))
        assert run.output == {"text": "back"}
        assert made.keeper.starts == 2
    assert not any(alive(pid) for pid in pids_of(pids))


async def test_an_idle_agent_is_ended_and_started_again_when_needed(tmp_path: Path, store: Path) -> None:
    line, pids = wrapper(tmp_path, {})
    async with mounted(store, line=line, idle_timeout=0.1) as (eng, made):
        await asyncio.gather(*(gone(pid) for pid in pids_of(pids)))
        run = await finish(eng, AGENT, script("say awake"))
        assert run.output == {"text": "awake"}
        assert made.keeper.starts == 2


HOLDER = """
import asyncio, sys
from interlingua.mounts.loader import local_agents
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.editor.mount.server import EditorServer
from interlingua.protocols.editor.mount.sessions import source_of
from interlingua.transports.process import child_process

child_process._PATIENCE = (0.2, 2.0)

async def main():
    mount = EditorServer(source_of("editor", sys.argv[1], MountSettings()), MountSettings())
    await local_agents(mount)
    print("ready", flush=True)
    if sys.argv[2] == "stay":
        await asyncio.sleep(600)
    if sys.argv[2] == "raise":
        raise SystemExit(5)

asyncio.run(main())
"""


def holder(line: str, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), line, how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("how", ["return", "raise"])
async def test_our_own_exit_ends_it(tmp_path: Path, how: str) -> None:
    line, pids = wrapper(tmp_path, {"deaf": True})
    process = await asyncio.to_thread(holder, line, how)
    await asyncio.to_thread(process.communicate)
    assert process.returncode == (5 if how == "raise" else 0)
    await asyncio.gather(*(gone(pid) for pid in pids_of(pids)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_our_being_killed_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """The agent is deaf: the end of its input does not end it."""
    line, pids = wrapper(tmp_path, {"deaf": True})
    process = await asyncio.to_thread(holder, line, "stay")
    process.send_signal(number)
    await asyncio.to_thread(process.communicate)
    await asyncio.gather(*(gone(pid) for pid in pids_of(pids)))


async def test_its_stderr_is_always_read_and_logged_without_secrets(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "interlingua.editor.agent")
    async with mounted(store, {"stderr": 1000}) as (eng, _):  # a megabyte: a pipe holds 64 kB
        run = await finish(eng, AGENT, script("say here"))
        assert run.output == {"text": "here"}
    lines = [record.getMessage() for record in caplog.records if record.name == "interlingua.editor.agent"]
    assert sum("of the log" in line for line in lines) == 1000


async def test_it_has_our_environment_but_not_what_is_meant_for_us(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "k")
    monkeypatch.setenv("INTERLINGUA_EDITOR_KEY", "secret")
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script("env SOME_API_KEY", "say  ", "env INTERLINGUA_EDITOR_KEY"))
        assert run.output == {"text": "k unset"}


async def test_an_agent_that_dies_fails_its_runs_as_transient_and_serves_the_next(store: Path) -> None:
    async with mounted(store) as (eng, made):
        run = await finish(eng, AGENT, script("say half", "die"))
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("run_lost", True)
        assert "status 3" in run.error.message
        again = await finish(eng, AGENT, script("say whole"))
        assert again.output == {"text": "whole"}
        assert made.keeper.starts == 2


async def test_a_flood_of_updates_arrives_whole_and_in_order(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script(*(f"say {n}," for n in range(3000))))
        assert run.output == {"text": "".join(f"{n}," for n in range(3000))}


async def test_a_line_of_megabytes_is_one_message(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script("say " + "x" * 3_000_000))
        assert run.output is not None
        assert len(run.output["text"]) == 3_000_000


async def test_a_thread_is_one_session_also_after_the_agent_was_restarted(tmp_path: Path, store: Path) -> None:
    given = {"state": str(tmp_path / "state")}
    async with mounted(store, given, idle_timeout=60) as (eng, made):
        first = await finish(eng, AGENT, script("say one"), thread="t", create_thread=True)
        second = await finish(eng, AGENT, script("seen"), thread="t")
        assert second.output is not None
        asked = [method for method, _ in json.loads(second.output["text"])]
        assert asked.count("session/new") == 1
        assert "session/load" not in asked
        await finish(eng, AGENT, script("die"), thread="t")
        third = await finish(eng, AGENT, script("seen"), thread="t")
        assert third.output is not None
        assert "replayed" not in third.output["text"], "what was said before is not told again"
        asked = [method for method, _ in json.loads(third.output["text"])]
        assert asked.count("session/load") == 1
        assert asked.count("session/new") == 0
        assert made.keeper.starts == 2
        assert first.output == {"text": "one"}
    async with mounted(store, given | {"able": {"sessionCapabilities": {"resume": {}}}}) as (eng, _):
        fourth = await finish(eng, AGENT, script("seen"), thread="t")
        assert fourth.output is not None
        told = json.loads(fourth.output["text"])
        session = next(params["sessionId"] for method, params in told if method == "session/resume")
        assert session == json.loads(second.output["text"])[-1][1]["sessionId"]


async def test_an_agent_that_forgot_a_thread_starts_anew_and_says_so(store: Path) -> None:
    from interlingua.model.events import Warned

    async with mounted(store) as (eng, _):
        await finish(eng, AGENT, script("say one"), thread="t", create_thread=True)
    forgot = {"code": -32602, "message": "unknown", "data": {"details": "it was archived"}}
    async with mounted(store, {"errors": {"session/load": forgot}}) as (eng, _):
        run = await finish(eng, AGENT, script("say two"), thread="t")
        assert run.output == {"text": "two"}
        (warning,) = await bodies(eng, run.id, Warned)
        assert "does not remember this thread" in warning.message
        assert "unknown: it was archived" in warning.message
        again = await finish(eng, AGENT, script("say three"), thread="t")
        assert await bodies(eng, again.id, Warned) == []


async def test_a_turn_that_is_under_way_does_not_count_as_idle(store: Path) -> None:
    async with mounted(store, idle_timeout=0.05) as (eng, made):
        run = await submit(eng, AGENT, script("say begun", "wait"))
        await seen(eng, run.id, "delta")
        starts = made.keeper.starts
        await asyncio.sleep(0.3)  # longer than it may be idle: nothing may happen
        assert not (await eng.runs.get(run.id)).status.final
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert made.keeper.starts == starts


async def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    line, pids = wrapper(tmp_path, {"hang": True})
    starting = asyncio.ensure_future(agent_of(mount(line=line)))
    await wait_for(lambda: pids.exists() and len(pids_of(pids)) >= 2)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    assert not any(alive(pid) for pid in pids_of(pids))
