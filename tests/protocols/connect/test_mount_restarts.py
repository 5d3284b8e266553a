"""Mounted runs that are parked, killed with their process or cancelled meanwhile: the remote run is found or told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import OutputDelta, RunRestarted, Thought
from interlingua.server.app import Server
from tests.kit.engines import bodies, engine, question, submit
from tests.kit.mounts.connect import door, local, parked, remote_runs
from tests.kit.mounts.watch import Gate, asked_question, shown

from .mount_process import MountProcess
from .reference import Proxy


async def asked_and_parked(eng: il.Engine) -> tuple[str, Any]:
    run = await submit(eng, "careful", {"text": "hello"})
    asked = await question(eng, run.id)
    await parked(eng, run.id)
    return run.id, asked


async def only_remote_run_is_cancelled(server: Server) -> bool:
    (remote,) = await remote_runs(server)
    return (await server.engine.runs.wait(remote.id, timeout=20)).status is il.Status.CANCELLED


async def test_a_run_that_waits_is_parked_and_goes_on_with_its_answer(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run, asked = await asked_and_parked(eng)
        assert eng.core.worker.execution(run) is None
        await eng.questions.answer(asked.id, {"approved": True})
        await eng.questions.answer((await asked_question(eng, run, "ask_text")).id, {"text": "bye"})
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "hello True bye"}
        assert await bodies(eng, run, RunRestarted) == []
        assert len(await remote_runs(server)) == 1


async def test_cancelling_a_parked_run_cancels_there(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run, _ = await asked_and_parked(eng)
        await eng.runs.cancel(run)
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
        assert await only_remote_run_is_cancelled(server)


async def test_cancelling_a_parked_run_on_a_thread_cancels_there(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "careful", {"text": "hello"}, thread=thread.id)
        await question(eng, run.id)
        await parked(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert await only_remote_run_is_cancelled(server)


async def test_cancelling_a_parked_run_tries_again_where_the_connection_is_cut(tmp_path: Path, store: Path) -> None:
    async with (
        door(tmp_path) as server,
        Proxy(server.address) as proxy,
        local(store, proxy.address + "/connect") as eng,
    ):
        run, _ = await asked_and_parked(eng)
        proxy.refuse = 2
        proxy.cut()  # what is kept for the next request
        await eng.runs.cancel(run)
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
        assert proxy.refuse == 0
        assert await only_remote_run_is_cancelled(server)


async def test_cancelling_a_parked_run_that_is_gone_there_is_no_trouble(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run, _ = await asked_and_parked(eng)
        (remote,) = await remote_runs(server)
        await server.engine.runs.cancel(remote.id)
        await server.engine.runs.wait(remote.id, timeout=20)
        await server.engine.runs.delete(remote.id)
        await eng.runs.cancel(run)
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
    assert [r.getMessage() for r in caplog.records if "could not be told" in r.getMessage()] == []


@pytest.mark.parametrize("when", ["while it is down", "when it is up again"])
async def test_a_run_that_is_cancelled_from_outside_after_a_kill_is_cancelled_there(
    tmp_path: Path, store: Path, when: str
) -> None:
    """Another process, without the agents' code, cancels: what the command line does."""
    async with (
        door(tmp_path) as server,
        MountProcess(store, server.address + "/connect") as process,
        engine(store) as outside,
    ):
        run, _ = await asked_and_parked(outside)
        await process.kill()
        if when == "while it is down":
            await outside.runs.cancel(run)
            await parked(outside, run)
            assert [r.status for r in await remote_runs(server)] == [il.Status.WAITING]
            await process.start()
        else:
            await process.start()
            await outside.runs.cancel(run)
        assert (await outside.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
        assert await only_remote_run_is_cancelled(server)


async def test_a_run_that_waits_survives_a_kill_and_its_answer_reaches_the_remote_run(
    tmp_path: Path, store: Path
) -> None:
    async with door(tmp_path) as server, MountProcess(store, server.address + "/connect") as process:
        async with engine(store) as outside:
            run, asked = await asked_and_parked(outside)
            await process.kill()
            await outside.questions.answer(asked.id, {"approved": True})
            await process.start()
            await outside.questions.answer((await asked_question(outside, run, "ask_text")).id, {"text": "bye"})
            assert (await outside.runs.wait(run, timeout=20)).output == {"text": "hello True bye"}
            deltas = await bodies(outside, run, OutputDelta)
            assert "".join(d.delta["text"] for d in deltas) == "hello True bye"
            assert await bodies(outside, run, RunRestarted) == []
        assert len(await remote_runs(server)) == 1


async def test_a_run_in_the_middle_of_its_stream_survives_a_kill_and_shows_nothing_twice(
    tmp_path: Path, store: Path
) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server, MountProcess(store, server.address + "/connect") as process:
        async with engine(store) as outside:
            run = await submit(outside, "thinking")
            await shown(outside, run.id, "so ")
            await process.kill()
            gate.open.set()
            await process.start()
            assert (await outside.runs.wait(run.id, timeout=20)).output == {"text": "so done"}
            assert [t.text for t in await bodies(outside, run.id, Thought)] == ["hm", "aha"]
            assert "".join(d.delta["text"] for d in await bodies(outside, run.id, OutputDelta)) == "so done"
            assert await bodies(outside, run.id, RunRestarted) == []
        assert len(await remote_runs(server)) == 1
