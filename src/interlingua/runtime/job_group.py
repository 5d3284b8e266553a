"""Groups of background jobs. A job that fails is logged, and its neighbours go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, TypeVar

log = logging.getLogger("interlingua.jobs")

T = TypeVar("T")


class JobGroup:
    """Owns tasks until they end. Unlike `asyncio.TaskGroup`, it may be opened and closed by different tasks, and one
    failure does not cancel the rest."""

    def __init__(self, name: str, failed: Callable[[BaseException], None] | None = None) -> None:
        """`failed`: called with the error of a job, instead of logging it."""
        self._name = name
        self._failed = failed or self._log
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancelled = False

    def spawn(self, work: Coroutine[Any, Any, T], *, context: Context | None = None) -> asyncio.Task[T]:
        """Start a job."""
        task = self.share(work, context=context)
        task.add_done_callback(self._done)
        return task

    def share(self, work: Coroutine[Any, Any, T], *, context: Context | None = None) -> asyncio.Task[T]:
        """Start a job that others await: its failure is theirs, and is not logged."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._cancelled = self._cancelled or task.cancelled()

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _log(self, error: BaseException) -> None:
        log.error("%s: a background job failed", self._name, exc_info=error)

    @property
    def was_cancelled(self) -> bool:
        """Tells whether the jobs were cancelled, by `close` or because the event loop ends. Both cancel all of them; a
        timeout inside a job cancels that job alone, for a turn of the loop."""
        if self._cancelled or any(task.cancelled() for task in self._tasks):
            return True
        living = [task for task in self._tasks if not task.done()]
        return bool(living) and all(task.cancelling() for task in living)

    async def wait(self, timeout: float) -> None:
        """Wait until all jobs have ended, for so many seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def close(self, again: float | None = None) -> None:
        """Cancel the jobs, and those that they start meanwhile, and return when all have ended.

        `again`: seconds after which a job that goes on is cancelled once more. Some libraries swallow a cancellation.
        """
        own = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not own and not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=again)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)
