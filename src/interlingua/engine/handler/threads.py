"""Threads of a handler that is a plain function, and of the plain functions that its steps call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ...model.errors import InvalidRequest
from . import process_exits
from .branches import engine_works, is_thread_of, thread_of
from .run_data import RunData
from .waits import Waits

T = TypeVar("T")


class HandlerThreads:
    __slots__ = ("_blocking", "_data", "_loop_thread", "_waits")

    def __init__(self, data: RunData, waits: Waits) -> None:
        self._data = data
        self._waits = waits
        self._loop_thread = threading.get_ident()
        self._blocking: set[Future[Any]] | None = None  # what an agent's own thread waits for

    @property
    def on_loop(self) -> bool:
        """True in the thread of the event loop."""
        return threading.get_ident() == self._loop_thread

    def release(self) -> None:
        """End the waits of the agent's threads."""
        for future in list(self._blocking or ()):
            future.cancel()

    def block(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something of the event loop from an agent's own thread, and wait for it there."""
        waits = self._waits
        if self.on_loop:
            work.close()
            raise RuntimeError("a SyncContext was used on the event loop; use it in the agent's own thread")
        if not is_thread_of(waits.branches):
            work.close()
            raise InvalidRequest(
                "the context of a run was used in a thread that its handler started itself; use it in the thread of "
                "the handler, and give the other thread what it needs"
            )
        if waits.over or waits.leaving is not None:
            work.close()
            raise waits.left()
        with engine_works():  # the task that works is no branch
            future = asyncio.run_coroutine_threadsafe(_settled(work), waits.loop)
        if self._blocking is None:
            self._blocking = set()
        self._blocking.add(future)
        try:
            result, error = future.result()
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # there is one where there is no error
        except (asyncio.CancelledError, CancelledError):
            raise waits.left() from None
        finally:
            self._blocking.discard(future)

    async def call(self, fn: Callable[[], T], threads: set[asyncio.Future[None]] | None = None) -> T:
        """Call a plain function in a thread of its own. `threads` has what is done when it ends, as long as it runs.

        Daemon threads rather than an executor: a function that never returns must not keep the process from ending.
        """
        async with self._data.host.thread_slots:  # given back when the run is left, even where the function goes on
            return await self._call(fn, threads)

    async def _call(self, fn: Callable[[], T], threads: set[asyncio.Future[None]] | None) -> T:
        host, loop, branches = self._data.host, self._waits.loop, self._waits.branches
        future: asyncio.Future[T] = loop.create_future()
        ended: asyncio.Future[None] = loop.create_future()
        if threads is not None:
            threads.add(ended)
            ended.add_done_callback(threads.discard)
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            host.threads -= 1
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
                with thread_of(branches):
                    result = context.run(fn)
            except StopIteration as error:  # cannot be set on a future
                failure = RuntimeError(f"the function raised {error!r}")
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(settle, result, failure)

        host.threads += 1
        threading.Thread(target=target, name=f"interlingua-{self._data.row.agent}", daemon=True).start()
        return await future


async def _settled(work: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """The result of work, or how it tries to end the process: that is raised where it was called, and in no task."""
    try:
        return await work, None
    except process_exits.EXITS as error:
        if process_exits.is_signal(error):
            raise
        return None, error
