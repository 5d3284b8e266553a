"""Code that ends the process (sys.exit, Ctrl-C, the end of the event loop) harms no run but its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.agents.question_types import Verdict
from interlingua.engine.handler.mounted_run import LeftRun
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.engines import PATIENT, engine, finish, kinds, parked, question, settle, submit

from .test_mounted_run import Far, asking

EXITS = {
    "sys.exit(2)": lambda: sys.exit(2),
    "sys.exit()": lambda: sys.exit(),
    "sys.exit('no such option')": lambda: sys.exit("no such option"),
    "KeyboardInterrupt": lambda: _interrupt(),
}


def _interrupt() -> None:
    raise KeyboardInterrupt


def leave_() -> None:
    sys.exit(2)


def shapes(exit_: Callable[[], object]) -> dict[str, il.Agent[..., Any]]:
    """The ways in which code of an agent can end the process, as agents."""

    @il.agent(name="bad")
    async def coroutine() -> str:
        exit_()
        return "never"

    @il.agent(name="bad")
    async def generator() -> AsyncIterator[str]:
        yield "a"
        exit_()

    @il.agent(name="bad")
    def function() -> str:
        exit_()
        return "never"

    @il.agent(name="bad")
    def plain_generator() -> Iterator[str]:
        yield "a"
        exit_()

    async def in_a_step() -> None:
        await asyncio.sleep(0)
        exit_()

    @il.agent(name="bad")
    async def step(ctx: il.Context[None, None]) -> str:
        await ctx.step("leave", in_a_step)
        return "never"

    @il.agent(name="bad")
    async def step_with_retries(ctx: il.Context[None, None]) -> str:
        await ctx.step("leave", in_a_step, retries=3)
        return "never"

    @il.agent(name="bad")
    async def step_in_a_thread(ctx: il.Context[None, None]) -> str:
        await ctx.step("leave", exit_)
        return "never"

    @il.agent(name="bad")
    def step_of_a_thread(ctx: il.SyncContext[None, None]) -> str:
        ctx.step("leave", exit_)
        return "never"

    @il.agent(name="bad")
    async def task() -> str:
        return str(await asyncio.create_task(in_a_step()))

    @il.agent(name="bad")
    async def task_of_a_task() -> str:
        async def outer() -> None:
            await asyncio.create_task(in_a_step())

        return str(await asyncio.create_task(outer()))

    @il.agent(name="bad")
    async def task_in_a_context_of_its_own() -> str:
        import contextvars

        return str(await asyncio.create_task(in_a_step(), context=contextvars.copy_context(), name="mine"))

    @il.agent(name="bad")
    async def group() -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_a_step())
            tasks.create_task(asyncio.sleep(3600))
        return "never"

    @il.agent(name="bad")
    async def gathered() -> str:
        return str(await asyncio.gather(in_a_step(), asyncio.sleep(3600), return_exceptions=True))

    @il.agent(name="bad")
    async def task_that_nobody_awaits() -> str:
        task = asyncio.create_task(in_a_step())
        await asyncio.Event().wait()
        return str(task)

    @il.agent(name="bad")
    async def cleanup() -> str:
        try:
            raise ValueError("first")
        finally:
            exit_()

    agents = locals().copy()
    return {name: value for name, value in agents.items() if isinstance(value, il.Agent)}


@il.agent
async def patient(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    return (await ctx.receive()).text


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("shape", shapes(leave_))
async def test_code_that_ends_the_process_fails_its_own_run_only(store: Path, shape: str, how: str) -> None:
    bad = shapes(EXITS[how])[shape]
    async with engine(store, bad, patient, settings=PATIENT) as eng:
        other = await submit(eng, "patient")
        run = await finish(eng, "bad")
        assert run.status is il.Status.FAILED
        assert run.error is not None
        expected = f"the agent called {how}" if how.startswith("sys") else "KeyboardInterrupt"
        assert (run.error.code, run.error.message) == ("agent_crashed", expected)
        await eng.runs.send(other.id, "well")
        assert (await eng.runs.wait(other.id, timeout=20)).output == {"text": "well"}
        assert (await kinds(eng, other.id)).count("started") == 1
        assert await eng.runs.verify(run.id) is None


async def test_another_task_factory_still_makes_the_tasks(store: Path) -> None:
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **more)
        made.append(task.get_name())
        return task

    async def leave() -> None:
        sys.exit(2)

    @il.agent
    async def bad() -> str:
        return str(await asyncio.create_task(leave(), name="mine"))

    asyncio.get_running_loop().set_task_factory(factory)
    async with engine(store, bad) as eng:
        run = await finish(eng, "bad")
        assert run.error is not None
        assert run.error.message == "the agent called sys.exit(2)"
    assert made


async def test_an_agent_that_cancels_itself_still_fails(store: Path) -> None:
    @il.agent
    async def bad() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    async with engine(store, bad) as eng:
        run = await finish(eng, "bad")
        assert run.error is not None
        assert (run.error.code, run.error.message) == ("agent_crashed", "the agent cancelled itself")


async def test_what_an_agent_brings_along_ends_no_process_either(store: Path) -> None:
    """Its question shows itself, and its remote side is told of a cancellation."""

    class Odd(il.Question[Verdict]):
        message: str

        def __prompt__(self) -> str:
            sys.exit(2)

    @il.agent(asks=[Odd])
    async def asks(ctx: il.Context[None, None]) -> str:
        await ctx.ask(Odd("?"))
        return "never"

    calls = 0

    async def leaves(left: LeftRun) -> None:
        nonlocal calls
        calls += 1
        sys.exit(2)

    async with engine(store, asks, asking(Far(), leaves)) as eng:
        run = await finish(eng, "asks")
        assert run.error is not None
        assert run.error.message == "the agent called sys.exit(2)"
        far = await submit(eng, "far")
        await question(eng, far.id)
        await parked(eng, far.id)
        await eng.runs.cancel(far.id)
        assert (await eng.runs.wait(far.id, timeout=20)).status is il.Status.CANCELLED
    assert calls == 1


@pytest.mark.parametrize("what", ["error", "state", "output"])
async def test_what_is_made_of_the_end_of_an_agent_ends_no_process(store: Path, what: str) -> None:
    """Its error is printed, its state and its output are encoded, when the handler itself is over."""

    class Odd(Exception):
        def __str__(self) -> str:
            sys.exit(2)

    class State(msgspec.Struct):
        said: str = ""

    class Shown(dict[str, str]):
        def items(self) -> Any:
            sys.exit(2)

        __iter__ = keys = values = items

    @il.agent
    async def bad(ctx: il.Context[State, None]) -> dict[str, str]:
        if what == "error":
            raise Odd
        if what == "state":
            ctx.state.said = Shown(a="b")  # type: ignore[assignment]
            return {}
        return Shown(a="b")

    async with engine(store, bad, patient, settings=PATIENT) as eng:
        other = await submit(eng, "patient")
        run = await finish(eng, "bad", thread="t", create_thread=True)
        assert run.status is il.Status.FAILED
        assert run.error is not None
        await eng.runs.send(other.id, "well")
        assert (await eng.runs.wait(other.id, timeout=20)).output == {"text": "well"}


# -- the end of the event loop ------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[], il.Agent[..., Any]]] = {}


def ending(make: Callable[[], il.Agent[..., Any]]) -> Callable[[], il.Agent[..., Any]]:
    ENDINGS[make.__name__] = make
    return make


FIRST = True


@ending
def waits() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        if FIRST:
            await asyncio.Event().wait()
        return "done"

    return agent


@ending
def returns_when_it_is_cancelled() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        if FIRST:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "cut short"
        return "done"

    return agent


@ending
def raises_when_it_is_cancelled() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        if FIRST:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("cut short") from None
        return "done"

    return agent


@ending
def group() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        if FIRST:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.Event().wait())
                tasks.create_task(asyncio.sleep(3600))
        return "done"

    return agent


@ending
def in_a_step() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    async def agent(ctx: il.Context[None, None]) -> str:
        async def work() -> None:
            await ctx.thought("here")
            if FIRST:
                await asyncio.Event().wait()

        await ctx.step("work", work, retries=2)
        return "done"

    return agent


@ending
def in_a_thread() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    def agent(ctx: il.SyncContext[None, None]) -> str:
        ctx.thought("here")
        if FIRST:
            ctx.step("work", lambda: __import__("time").sleep(3600))
        return "done"

    return agent


@ending
def records_when_it_is_cancelled() -> il.Agent[..., Any]:
    @il.agent(name="agent")
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        if FIRST:
            try:
                await asyncio.Event().wait()
            finally:
                with contextlib.suppress(asyncio.CancelledError):
                    await ctx.thought("cut short")
                await ctx.step("clean up", lambda: None)
        return "done"

    return agent


@ending
def asks() -> il.Agent[..., Any]:
    @il.agent(name="agent", asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        with contextlib.suppress(il.QuestionExpired):
            await ctx.ask(il.Confirm("Go on?"), deadline=2)
        return "done"

    return agent


async def _begin(eng: il.Engine, agent: str = "agent") -> str:
    """Start a run, and come back when it is at it."""
    run = await submit(eng, agent)
    async for event in eng.runs.events(run.id):
        if event.kind == "thought":
            break
    await settle()
    return run.id


async def _end_of(store: Path | str, agent: il.Agent[..., Any], run: str) -> il.Run:
    async with engine(store, agent) as eng:
        assert (await eng.runs.get(run)).status in (il.Status.RUNNING, il.Status.WAITING)
        return await eng.runs.wait(run, timeout=20)


async def _told(store: Path | str, run: str) -> list[str]:
    async with engine(store) as eng:
        shown = await kinds(eng, run)
    assert shown.count("thought") == 1
    return shown


@pytest.mark.parametrize("make", ENDINGS)
@pytest.mark.parametrize("how", ["the loop ends", "stopping is cancelled", "everything is cancelled"])
def test_a_cancellation_that_nobody_asked_for_writes_nothing_when_the_process_ends(
    tmp_path: Path, make: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    agent = ENDINGS[make]()
    store = tmp_path / "store.db"  # of a process that lives on, no lease of a database would run out
    run, open_ = "", None

    async def main() -> None:
        nonlocal run, open_
        settings = msgspec.structs.replace(PATIENT, shutdown_grace=60.0)
        eng = open_ = engine(store, agent, settings=settings)
        await eng.start()
        run = await _begin(eng)
        if how == "stopping is cancelled":
            stopping = asyncio.create_task(eng.stop())
            await settle()
            stopping.cancel()
        elif how == "everything is cancelled":
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await settle()

    asyncio.run(main())
    _forget(open_)
    monkeypatch.setitem(globals(), "FIRST", False)
    assert asyncio.run(_told(store, run))[:3] == ["created", "started", "thought"]
    assert not {"finished", "recorded"} & set(asyncio.run(_told(store, run)))
    done = asyncio.run(_end_of(store, agent, run))
    assert done.output == {"text": "done"}


def _forget(eng: il.Engine | None) -> None:
    """What the system does with a process that has ended: its locks are gone."""
    if eng is not None and isinstance(eng.core.store, SQLiteStore):
        eng.core.store.liveness.release_all()


async def test_runs_that_are_abandoned_are_handed_back_and_blame_nobody(store: Path | str) -> None:
    eng = engine(store, ENDINGS["waits"](), settings=PATIENT)
    await eng.start()
    run = await _begin(eng)
    await eng.abandon()
    async with engine(store) as other:
        row = await other.core.store.runs.get(run)
        assert row is not None
        assert (row.status, row.worker, row.crashes) == (il.Status.RUNNING, None, 0)
    await eng.core.store.close()
