"""Ends a process or a connection that was not used for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator


class Use:
    """Counts the users of a resource, and calls back when it was unused for a while."""

    def __init__(self, seconds: float, idle: Callable[[], None]) -> None:
        self.seconds = seconds
        self._tell = idle
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts as one use for the time of this context."""
        self._users += 1
        self.stop()
        try:
            yield
        finally:
            self._users -= 1
            self.rest()

    def rest(self) -> None:
        """Notes that the resource is there, and may be unused."""
        if not self._users and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._idle)

    def stop(self) -> None:
        """Stops the callback, until the next use."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _idle(self) -> None:
        self._timer = None
        if not self._users:
            self._tell()
