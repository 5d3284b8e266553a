"""Calling the four shapes of a handler: coroutine, async generator, function and generator (these two in a thread)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ...model import json_values
from ...model.delta import Joiner
from ...model.errors import InvalidOutput
from ...model.events import OutputDelta
from ..log import run_log
from .branches import thread_of

if TYPE_CHECKING:
    from ..runs.execution import Execution

T = TypeVar("T")


async def invoke(run: Execution) -> Any:
    """The handler's output as a JSON object, or None where it is the join of what was emitted."""
    agent = run.agent
    assert agent is not None
    kwargs = agent.bind(json_values.copy(run.request.input), run.ctx)  # a copy: the request is part of the log
    run.bound = True
    if agent.process:
        return await run.worker.processes.run(run, kwargs)
    match agent.shape:
        case "async":
            result = await agent.fn(**kwargs)
            return encode_result(run, result)
        case "async_generator":
            await drain(run, agent.fn(**kwargs))
            return None
        case "sync":
            result = await in_thread(run, lambda: agent.fn(**kwargs))
            return encode_result(run, result)
        case "sync_generator":
            result = await in_thread(run, lambda: drain_in_thread(run, agent.fn(**kwargs)))
            return encode_result(run, result)


def encode_result(run: Execution, result: Any) -> Any:
    if result is None:
        return None
    assert run.agent is not None
    if run.agent.output is None:
        return result
    return run.agent.output.encode(result)


async def drain(run: Execution, generator: AsyncIterator[Any], step: str | None = None) -> None:
    """Each yield extends the output."""
    try:
        async for item in generator:
            run.emit(OutputDelta(delta_of(run, item), step))
            await run.log.breathe()
    finally:
        close = getattr(generator, "aclose", None)
        if close is not None:
            await close()


def delta_of(run: Execution, item: Any) -> dict[str, Any]:
    agent = run.agent
    delta = agent.output.encode(item) if agent is not None and agent.output is not None else item
    if type(delta) is not dict:
        raise InvalidOutput(f"a yield extends the output, which is an object; {type(delta).__name__} cannot")
    if json_values.check(delta, InvalidOutput, what="output", halves=True):
        run.join_pieces()
    return delta if type(item) is str else json_values.copy(delta)  # the agent may change its own, and yield it again


def drain_in_thread(
    run: Execution, generator: Iterator[Any], step: str | None = None, joined: Joiner | None = None
) -> Any:
    """As `drain`, from the agent's thread. Gives back what the generator returns; `joined` gathers what it yields."""
    pending = list[Any]()
    room = threading.Semaphore(256)

    def emit() -> None:
        while pending:
            item = pending.pop(0)
            room.release()
            try:
                run.emit(OutputDelta(item, step))
            except BaseException as error:
                failure.append(error)

    failure: list[BaseException] = []
    weight = 0
    while True:
        try:
            item = next(generator)
        except StopIteration as stop:
            run.block(_nothing())  # everything that was yielded before has been emitted then
            if failure:
                raise failure[0] from None
            return stop.value
        if failure or run.over or run.leaving is not None:
            getattr(generator, "close", lambda: None)()
            run.block(_nothing())  # raises where the run is being left
            raise failure[0]
        delta = delta_of(run, item)
        if joined is not None:
            joined.add(delta)
        weight += run_log.weight(delta)
        if weight > run.log.recent.most_bytes:
            run.block(run.log.breathe())  # everything that was yielded before has been emitted then
            weight = 0
        if not room.acquire(blocking=False):
            run.block(run.log.flush())
            room.acquire()
        pending.append(delta)
        run.loop.call_soon_threadsafe(emit)


async def _nothing() -> None:
    pass


async def in_thread(run: Execution, fn: Callable[[], T], threads: set[asyncio.Future[None]] | None = None) -> T:
    """Call a plain function in a thread of its own. `threads` has what is done when it ends, as long as it runs.

    Daemon threads rather than an executor: a function that never returns must not keep the process from ending.
    """
    async with run.worker.thread_slots:  # given back when the run is left, even where the function goes on
        return await _in_new_thread(run, fn, threads)


async def _in_new_thread(run: Execution, fn: Callable[[], T], threads: set[asyncio.Future[None]] | None) -> T:
    worker, loop = run.worker, run.loop
    future: asyncio.Future[T] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()
    if threads is not None:
        threads.add(ended)
        ended.add_done_callback(threads.discard)
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        worker.threads -= 1
        if not ended.done():
            ended.set_result(None)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def target() -> None:
        result = None
        failure: BaseException | None = None
        try:
            with thread_of(run.branches):
                result = context.run(fn)
        except StopIteration as error:  # cannot be set on a future
            failure = RuntimeError(f"the function raised {error!r}")
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            loop.call_soon_threadsafe(settle, result, failure)

    worker.threads += 1
    threading.Thread(target=target, name=f"interlingua-{run.log.row.agent}", daemon=True).start()
    return await future
