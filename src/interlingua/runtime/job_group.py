"""Groups of background jobs. A job that fails is logged, and its neighbours go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any, TypeVar

log = logging.getLogger("interlingua.jobs")

T = TypeVar("T")


class JobGroup:
    """Owns tasks until they end. Unlike `asyncio.TaskGroup`, it may be opened and closed by different tasks, and one
    failure does not cancel the rest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a background job failed", self.name, exc_info=error)

    @property
    def is_cancelling(self) -> bool:
        """Whether one of the jobs is being cancelled, by `close` or as when the event loop ends."""
        return any(task.cancelling() for task in self._tasks)

    async def wait(self, timeout: float) -> None:
        """Wait until all jobs have ended, for so many seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def close(self) -> None:
        """Cancel the jobs, and those that they start meanwhile, and return when all have ended."""
        own = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not own and not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)
