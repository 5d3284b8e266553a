"""Ends what nobody uses: a process or a connection that is kept for those who come again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator


class Use:
    """Counts who uses something, and says so when nobody has for a while."""

    def __init__(self, seconds: float, idle: Callable[[], None]) -> None:
        self.seconds = seconds
        self._tell = idle
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """As long as this lasts, it is in use."""
        self._users += 1
        self.stop()
        try:
            yield
        finally:
            self._users -= 1
            self.rest()

    def rest(self) -> None:
        """It is there, and maybe nobody uses it."""
        if not self._users and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._idle)

    def stop(self) -> None:
        """Say nothing any more, until it is used again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _idle(self) -> None:
        self._timer = None
        if not self._users:
            self._tell()
