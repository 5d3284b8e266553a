"""Parking a handler: it is suspended where it waits, which is no cancellation and no error, and resumes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.handler.suspension import Suspended
from tests.kit.engines import PATIENT, QUICK, engine, finish, parked, question, submit

Context = il.Context[None, None]


async def _asked_and_parked(eng: il.Engine, agent: str = "agent") -> Any:
    run = await submit(eng, agent)
    asked = await question(eng, run.id)
    await parked(eng, run.id)
    return asked


async def _answered(eng: il.Engine, asked: Any) -> il.Run:
    await eng.questions.answer(asked.id, {"approved": True})
    return await eng.runs.wait(asked.run, timeout=20)


async def _ask(ctx: Context) -> None:
    await ctx.ask(il.Confirm("Good?"))


async def _catching_errors(ctx: Context, caught: list[str]) -> None:
    try:
        await _ask(ctx)
    except Exception as error:
        caught.append(repr(error))


async def _catching_cancellation(ctx: Context, caught: list[str]) -> None:
    try:
        await _ask(ctx)
    except asyncio.CancelledError as error:
        caught.append(repr(error))
        raise


async def _in_a_group(ctx: Context, caught: list[str]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_catching_cancellation(ctx, caught))
            group.create_task(_ask_later(ctx, caught))
    except* Exception as errors:
        caught.append(repr(errors))


async def _ask_later(ctx: Context, caught: list[str]) -> None:
    try:
        await ctx.sleep(3600 if not PASSED else 0)
    except asyncio.CancelledError as error:
        caught.append(repr(error))
        raise


async def _gathered(ctx: Context, caught: list[str]) -> None:
    await asyncio.gather(_catching_errors(ctx, caught), _catching_cancellation(ctx, caught))


async def _with_results(ctx: Context, caught: list[str]) -> None:
    results = await asyncio.gather(_ask(ctx), return_exceptions=True)
    caught.extend(repr(one) for one in results if isinstance(one, Exception | asyncio.CancelledError))


async def _waited_for(ctx: Context, caught: list[str]) -> None:
    task = asyncio.create_task(_catching_errors(ctx, caught))
    await asyncio.wait([task])
    await task


async def _within_a_time(ctx: Context, caught: list[str]) -> None:
    try:
        async with asyncio.timeout(3600):
            await _catching_cancellation(ctx, caught)
    except TimeoutError as error:
        caught.append(repr(error))


async def _awaited_within_a_time(ctx: Context, caught: list[str]) -> None:
    await asyncio.wait_for(_catching_cancellation(ctx, caught), 3600)


PASSED: list[bool] = []
WAITS: dict[str, Callable[[Context, list[str]], Awaitable[None]]] = {
    "except Exception": _catching_errors,
    "except CancelledError": _catching_cancellation,
    "a group": _in_a_group,
    "gather": _gathered,
    "gather with results": _with_results,
    "wait": _waited_for,
    "timeout": _within_a_time,
    "wait_for": _awaited_within_a_time,
}


@pytest.mark.parametrize("how", WAITS)
async def test_parking_does_not_look_like_cancellation(store: Path, how: str) -> None:
    caught, ends = list[str](), list[bool]()
    PASSED.clear()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        try:
            await WAITS[how](ctx, caught)
        finally:
            ends.append(ctx.parking)
        return "done"

    async with engine(store, agent) as eng:
        asked = await _asked_and_parked(eng)
        assert ends == [True]
        PASSED.append(True)
        for one in await eng.questions.open():
            await eng.questions.answer(one.id, {"approved": True})
        if how == "a group":
            await eng.runs.cancel(asked.run)  # the other task of the group would sleep on
            assert (await eng.runs.wait(asked.run, timeout=20)).status is il.Status.CANCELLED
        else:
            assert (await eng.runs.wait(asked.run, timeout=20)).output == {"text": "done"}
            assert not [one for one in caught if "Cancelled" in one]
            assert ends[-1] is False
    assert not [one for one in caught if "Suspended" in one]


async def test_a_plain_handler_is_suspended_too(store: Path) -> None:
    caught, ends = list[BaseException](), list[bool]()

    @il.agent(asks=[il.Confirm])
    def agent(ctx: il.SyncContext[None, None]) -> str:
        try:
            ctx.ask(il.Confirm("Good?"))
        except Exception as error:
            caught.append(error)
        finally:
            ends.append(ctx.parking)
        return "done"

    async with engine(store, agent) as eng:
        asked = await _asked_and_parked(eng)
        assert (await _answered(eng, asked)).output == {"text": "done"}
    assert caught == []
    assert ends == [True, False]


async def test_cancelling_is_still_cancelling(store: Path) -> None:
    caught: list[BaseException] = []

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        try:
            await _ask(ctx)
        except BaseException as error:
            caught.append(error)
            assert ctx.cancelled
            assert not ctx.parking
            raise
        return "done"

    settings = il.Settings(park_after=60, cancel_grace=0.5, sweep_every=0.05, stall_warning=0)
    async with engine(store, agent, settings=settings) as eng:
        run = await submit(eng, "agent")
        await question(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
    assert [type(error) for error in caught] == [asyncio.CancelledError]


@pytest.mark.parametrize("where", ["beside", "before the wait for it"])
async def test_a_run_is_parked_only_while_all_its_tasks_wait_in_its_context(store: Path, where: str) -> None:
    working, go_on, cut = asyncio.Event(), asyncio.Event(), list[BaseException]()

    async def work() -> None:
        working.set()
        try:
            await go_on.wait()  # not in ctx: parking would cut it short
        except BaseException as error:
            cut.append(error)
            raise

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        if where == "beside":
            await asyncio.gather(_ask(ctx), work())
        else:
            asking = asyncio.create_task(_ask(ctx))
            await work()
            await asking
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await working.wait()
        execution = eng.core.worker.execution(run.id)
        assert execution is not None
        execution.clock.active_at -= 3600
        for _ in range(3):  # as if it had waited for long
            execution.parking.park_if_idle()
            assert execution.leaving is None
        go_on.set()
        await parked(eng, run.id)
        assert (await _answered(eng, asked)).output == {"text": "done"}
    assert cut == []


@pytest.mark.parametrize("how", ["swallows it", "waits for ever"])
async def test_a_handler_that_does_not_leave_is_bounded_by_the_grace(store: Path, how: str) -> None:
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        nonlocal entries
        entries += 1
        try:
            await _ask(ctx)
        except BaseException:
            if how == "swallows it":
                await asyncio.gather(ctx.thought("still here"), return_exceptions=True)
            await asyncio.Event().wait()
        return "done"

    settings = il.Settings(park_after=0, cancel_grace=0.05, sweep_every=0.05, stall_warning=0)
    async with engine(store, agent, settings=settings) as eng:
        asked = await _asked_and_parked(eng)
        assert (await _answered(eng, asked)).output == {"text": "done"}
        assert eng.core.worker.abandoned == 1
    assert entries == 2


async def test_a_handler_that_returns_while_it_is_parked_is_parked(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        try:
            await _ask(ctx)
        except Suspended:
            return "never"
        return "done"

    async with engine(store, agent) as eng:
        asked = await _asked_and_parked(eng)
        assert (await _answered(eng, asked)).output == {"text": "done"}


async def test_tasks_that_nobody_awaits_are_suspended_with_the_others(store: Path) -> None:
    ends: list[bool] = []

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        async def listen() -> None:
            try:
                await ctx.receive()
            finally:
                ends.append(ctx.parking)

        task = asyncio.create_task(listen())
        await _ask(ctx)
        task.cancel()
        return "done"

    async with engine(store, agent) as eng:
        asked = await _asked_and_parked(eng)
        assert ends == [True]
        assert (await _answered(eng, asked)).output == {"text": "done"}


@pytest.mark.parametrize("how", ["gather", "group", "wait"])
async def test_generators_and_groups_of_waits_are_parked(store: Path, how: str) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> AsyncIterator[str]:
        if how == "gather":
            await asyncio.gather(_ask(ctx), _ask(ctx))
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(_ask(ctx))
                group.create_task(_ask(ctx))
        else:
            for task in (await asyncio.wait([asyncio.create_task(_ask(ctx)) for _ in range(2)]))[0]:
                task.result()
        yield "done"

    async with engine(store, agent) as eng:
        asked = await _asked_and_parked(eng)
        for one in await eng.questions.open():
            await eng.questions.answer(one.id, {"approved": True})
        assert (await eng.runs.wait(asked.run, timeout=20)).output == {"text": "done"}


async def _in_group(ctx: Context, *works: Callable[[], Awaitable[None]]) -> None:
    """The last of these within the group itself, the others as its tasks."""
    async with asyncio.TaskGroup() as group:
        for work in works[:-1]:
            group.create_task(_awaiting(work))
        await works[-1]()


async def _awaiting(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _wait_for_all(*works: Callable[[], Awaitable[None]]) -> None:
    for task in (await asyncio.wait([asyncio.create_task(_awaiting(work)) for work in works]))[0]:
        task.result()


IN_GROUPS: dict[str, Callable[[Context, Callable[[], Awaitable[None]]], Awaitable[None]]] = {
    "a wait": lambda ctx, ask: _in_group(ctx, ask, ask, ask),
    "a group": lambda ctx, ask: _in_group(ctx, lambda: _in_group(ctx, ask, ask), ask, ask),
    "a group that only waits for its tasks": lambda ctx, ask: _in_group(
        ctx, ask, lambda: _in_group(ctx, ask, ask, lambda: asyncio.sleep(0))
    ),
    "asyncio.wait": lambda ctx, ask: _in_group(ctx, lambda: _wait_for_all(ask, ask), ask, ask),
    "wait_for": lambda ctx, ask: _in_group(ctx, lambda: asyncio.wait_for(ask(), 3600), ask),
    "gather": lambda ctx, ask: _in_group(ctx, ask, lambda: _awaiting(lambda: asyncio.gather(ask(), ask()))),  # type: ignore[arg-type, return-value]
    "timeout": lambda ctx, ask: asyncio.wait_for(_in_group(ctx, ask, ask), 3600),
}


@pytest.mark.parametrize("what", IN_GROUPS)
async def test_parking_does_not_look_like_cancellation_beside_tasks_of_a_group(store: Path, what: str) -> None:
    """A group cancels its tasks as soon as one of them, or its own body, is suspended."""
    caught, ends = list[str](), list[bool]()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        async def ask() -> None:
            try:
                await _catching_cancellation(ctx, caught)
            finally:
                ends.append(ctx.parking)

        try:
            await IN_GROUPS[what](ctx, ask)
        except asyncio.CancelledError as error:
            caught.append(repr(error))
            raise
        return "done"

    async with engine(store, agent) as eng:
        asked = await _asked_and_parked(eng)
        assert ends
        assert all(ends)
        for one in await eng.questions.open():
            await eng.questions.answer(one.id, {"approved": True})
        assert (await eng.runs.wait(asked.run, timeout=20)).output == {"text": "done"}
        assert eng.core.worker.abandoned == 0
    assert caught == []


async def test_a_cancel_is_one_also_for_what_is_about_to_be_suspended(store: Path) -> None:
    caught: list[BaseException] = []

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        try:
            await _ask(ctx)
        except BaseException as error:
            caught.append(error)
            raise
        return "done"

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, "agent")
        await question(eng, run.id)
        execution = eng.core.worker.execution(run.id)
        assert execution is not None
        execution.leave("park")
        execution.leave("cancel")
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
    assert [type(error) for error in caught] == [asyncio.CancelledError]


async def test_a_stop_suspends_what_waits_and_cancels_what_works(store: Path) -> None:
    ends: dict[str, BaseException] = {}
    begun = asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context, text: str) -> str:
        try:
            if text == "wait" or begun.is_set():
                await _ask(ctx)
            else:
                begun.set()
                await asyncio.Event().wait()
        except BaseException as error:
            ends[text] = error
            assert ctx.parking
            raise
        return "done"

    settings = il.Settings(park_after=60, cancel_grace=1, shutdown_grace=0, sweep_every=0.05, stall_warning=0)
    async with engine(store, agent, settings=settings) as eng:
        await submit(eng, "agent", {"text": "work"})
        await begun.wait()
        run = await submit(eng, "agent", {"text": "wait"})
        await question(eng, run.id)
    assert {name: type(error) for name, error in ends.items()} == {
        "work": asyncio.CancelledError, "wait": Suspended
    }  # fmt: skip
    async with engine(store, agent, settings=QUICK) as eng:
        assert (await eng.runs.get(run.id)).status is il.Status.WAITING


async def test_a_task_that_is_left_behind_by_a_handler_that_ended_ends_too(store: Path) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @il.agent
    async def agent(ctx: Context) -> str:
        tasks.append(asyncio.create_task(ctx.sleep(3600)))
        await asyncio.sleep(0)
        return "done"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.output == {"text": "done"}
        async with asyncio.timeout(20):
            await asyncio.wait(tasks)
