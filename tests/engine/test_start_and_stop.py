"""An engine that cannot start, or cannot stop in order, leaves nothing open and loses no run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.agents import mount_path
from interlingua.engine.agents.catalog import AgentCatalog
from interlingua.engine.agents.process_pool import ProcessPool
from interlingua.engine.cluster.no_cluster import NoCluster
from interlingua.engine.cluster.remote_agents import RemoteAgents
from interlingua.engine.runs.admission import Admission
from interlingua.engine.runs.inbox_router import InboxRouter
from interlingua.engine.runs.lease import Lease
from interlingua.engine.runs.worker import Worker
from interlingua.engine.services import store_owner
from interlingua.engine.services.callbacks import Callbacks
from interlingua.engine.services.reminders import Reminders
from interlingua.runtime.closing import close_all
from interlingua.runtime.job_group import JobGroup
from tests.kit.engines import PATIENT, engine, finish, submit


def broken(*args: Any, **more: Any) -> Any:
    raise OSError("it broke")


def agent_that_waits() -> tuple[il.Agent[..., Any], asyncio.Event, asyncio.Event]:
    entered, go = asyncio.Event(), asyncio.Event()

    @il.agent(name="agent")
    async def agent() -> str:
        entered.set()
        await go.wait()
        return "done"

    return agent, entered, go


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RemoteAgents, "stop"),
        (Reminders, "stop"),
        (Callbacks, "stop"),
        (Worker, "_stop_looking"),
        (Worker, "_leave_runs"),
        (NoCluster, "stop"),
        (JobGroup, "close"),
        (ProcessPool, "close"),
    ],
)
async def test_an_engine_stops_whatever_fails_on_the_way(
    store: Path, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, entered, go = agent_that_waits()
    eng = engine(store, agent, settings=il.Settings(shutdown_grace=0, cancel_grace=0.1, stall_warning=0))
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, broken)
        await eng.start()
        run = await submit(eng, "agent")
        await entered.wait()
        with pytest.raises(OSError, match="it broke"):
            await eng.stop()
    for task in [*eng.core.worker._loops, *eng.core.worker._jobs]:  # what the broken step would have ended
        task.cancel()
    assert not eng.running
    await eng.stop()  # once is enough
    go.set()
    async with engine(store, agent, settings=PATIENT) as other:
        row = await other.core.store.runs.get(run.id)
        assert row is not None
        assert row.crashes == 0
        assert (await other.runs.wait(run.id, timeout=20)).output == {"text": "done"}


async def test_the_first_error_counts_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def step(name: str, error: BaseException | None) -> None:
        closed.append(name)
        if error is not None:
            raise error

    steps = [
        lambda: step("a", None),
        lambda: step("b", asyncio.CancelledError()),
        lambda: step("c", ValueError("second")),
        lambda: closed.append("d"),
    ]
    with pytest.raises(asyncio.CancelledError):
        await close_all(steps)
    assert closed == ["a", "b", "c", "d"]
    assert [record.getMessage() for record in caplog.records] == ["while stopping: second"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (store_owner, "join"),
        (mount_path, "server_id"),
        (AgentCatalog, "publish_cards"),
        (Admission, "count_waiting"),
        (Lease, "enter"),
        (Worker, "start"),
        (NoCluster, "start"),
        (Callbacks, "start"),
        (Reminders, "start"),
    ],
)
async def test_an_engine_that_cannot_start_closes_what_it_opened(
    store: Path, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    agent, _, go = agent_that_waits()
    go.set()
    eng = engine(store, agent)
    closed = 0
    close = eng.core.store.close

    async def counted() -> None:
        nonlocal closed
        closed += 1
        await close()

    monkeypatch.setattr(eng.core.store, "close", counted)
    before = asyncio.all_tasks()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, broken)
        with pytest.raises(OSError, match="it broke"):
            await eng.start()
    assert closed == 1
    assert asyncio.all_tasks() <= before
    await eng.start()  # it can still begin
    run = await submit(eng, "agent")
    assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
    await eng.stop()
    assert closed == 2


async def test_a_loop_of_the_worker_that_fails_is_logged_and_the_others_go_on(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(self: InboxRouter) -> None:
        raise OSError("it broke")

    monkeypatch.setattr(InboxRouter, "follow_store", fails)
    agent, _, go = agent_that_waits()
    go.set()
    async with engine(store, agent) as eng:
        for _ in range(3):
            run = await submit(eng, "agent", delay=0.05)  # claimed later, by another loop
            assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
    assert [record.getMessage() for record in caplog.records if record.name == "interlingua.jobs"] == [
        "worker: a background job failed"
    ]


async def test_a_run_begins_also_where_a_loop_of_the_worker_times_out_at_that_moment(store: Path) -> None:
    @il.agent
    async def quick() -> str:
        return "done"

    async def times_out_all_the_time() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()

    async with engine(store, quick) as eng:
        eng.core.worker._loops.spawn(times_out_all_the_time())
        async with asyncio.timeout(8):  # a run that does not begin is looked for after ten seconds
            for _ in range(20):
                assert (await finish(eng, "quick")).output == {"text": "done"}
