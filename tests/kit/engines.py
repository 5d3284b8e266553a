"""Engines for tests: one that parks at once, short ways to run something, and to wait for what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

import interlingua as il
from interlingua.engine.execution.execution import Execution
from interlingua.engine.execution.inbox import Inbox
from interlingua.model.events import Body
from interlingua.model.filters import RunFilter

from .wait_for import PATIENCE, wait_for

QUICK = il.Settings(
    park_after=0, max_listening=0, cancel_grace=0.5, shutdown_grace=0.5, sweep_every=0.05, stall_warning=0
)
PATIENT = il.Settings(park_after=60, cancel_grace=0.5, shutdown_grace=0.5, sweep_every=0.05, stall_warning=0)


def engine(store: Path | str, *agents: il.Agent[..., Any], settings: il.Settings = QUICK) -> il.Engine:
    return il.Engine(store, agents=agents, settings=settings)


def with_settings(settings: il.Settings, **changes: Any) -> il.Settings:
    return msgspec.structs.replace(settings, **changes)


@contextlib.asynccontextmanager
async def served(
    store: Path | str, *agents: il.Agent[..., Any], settings: il.Settings = QUICK
) -> AsyncIterator[il.Engine]:
    """An engine of a process that serves: it reminds."""
    eng = engine(store, *agents, settings=settings)
    eng.reminders.serves = True
    async with eng:
        yield eng


async def submit(eng: il.Engine, agent: str, input_: dict[str, Any] | None = None, **options: Any) -> il.Run:
    return (await eng.runs.submit(il.RunRequest(agent, input=input_ or {}, **options))).run


async def finish(eng: il.Engine, agent: str, input_: dict[str, Any] | None = None, **options: Any) -> il.Run:
    run = await submit(eng, agent, input_, **options)
    return await eng.runs.wait(run.id, timeout=20)


async def question(eng: il.Engine, run: str) -> Any:
    """Wait until the run asks, and give back the oldest open question."""
    view = await eng.runs.wait(run, timeout=20, settled=True)
    assert view.status is il.Status.WAITING, (view.status, view.error)
    return view.questions[0]


async def parked(eng: il.Engine, run: str) -> None:
    """Wait until nobody owns the run."""
    async with asyncio.timeout(PATIENCE):
        while eng.core.worker.execution(run) is not None:
            await eng.runs.next_hint(run)


async def waits(eng: il.Engine, run: str) -> None:
    """Wait until the handler of the run waits in memory."""

    def here() -> bool:
        execution = eng.core.worker.execution(run)
        return execution is not None and execution.waits.blocked

    await wait_for(here)


async def listens(eng: il.Engine, run: str) -> None:
    """Wait until it is decided that a waiting run stays in memory."""

    def here() -> bool:
        execution = eng.core.worker.execution(run)
        return execution is not None and execution.parking in eng.core.worker.listeners

    await wait_for(here)


async def blocked(eng: il.Engine, run: str) -> il.Run:
    """Wait until the code cannot go on with the run."""
    async with asyncio.timeout(PATIENCE):
        while (view := await eng.runs.get(run)).blocked is None:
            assert not view.status.final, (view.status, view.error)
            await eng.runs.next_hint(run)
    return view


async def gone(eng: il.Engine, run: str) -> None:
    """Wait until the store does not know the run any more."""

    async def forgotten() -> bool:
        return all(row.id != run for row in await eng.runs.search(RunFilter()))

    await wait_for(forgotten)


async def log(eng: il.Engine, run: str) -> list[il.Event]:
    return [event async for event in eng.runs.events(run, follow=False)]


async def kinds(eng: il.Engine, run: str) -> list[str]:
    return [event.kind for event in await log(eng, run)]


async def bodies(eng: il.Engine, run: str, kind: type[Body]) -> list[Any]:
    return [event.body for event in await log(eng, run) if isinstance(event.body, kind)]


async def crash(eng: il.Engine) -> None:
    """End an engine as `kill -9` would: nothing is finished, nothing is handed back, its lock is gone."""
    eng.core.admission.is_open = False
    eng.core._opened.clear()
    worker = eng.core.worker
    for execution in worker._executions.values():
        execution.waits.over = True
        if execution.task is not None:
            execution.task.cancel()
    tasks = [*worker._loops, *worker._jobs]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    eng.core.watchdog.close()
    await worker.processes.close()
    await eng.core.store.close()


class _Unread(Inbox):
    __slots__ = ()

    async def _pull_all(self) -> None:
        await asyncio.Event().wait()


def never_reads_its_inbox(execution: Execution) -> None:
    """Let a run take in nothing more of what is put into its inbox."""
    execution.inbox.__class__ = _Unread


async def settle() -> None:
    """Give every task many turns, and the writer's thread time to try."""
    for _ in range(200):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
