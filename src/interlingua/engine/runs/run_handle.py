"""The handle of a run: all that a caller does with one run, whichever process executes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ...model.content import Message, Part
from ...model.events import Event
from ...model.run import OWNER, Caller, Run

if TYPE_CHECKING:
    from ..log.log_reader import LogReader
    from .service import RunService


class RunHandle:
    """One run. `run` is the run as it was when the handle was made; `wait` and `get` tell what it is later."""

    __slots__ = ("_sealed", "_service", "run")

    def __init__(self, service: RunService, run: Run, *, sealed: bool = False) -> None:
        self._service = service
        self._sealed = sealed
        self.run = run

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}>"

    @property
    def id(self) -> str:
        return self.run.id

    async def get(self) -> Run:
        """Returns the run as it is now."""
        return await self._service.get(self.id, sealed=self._sealed)

    def events(self, after: int = 0, *, follow: bool = True) -> AsyncIterator[Event]:
        """Yields the log after event `after`, and on as it grows, to its end."""
        return self._service.events(self.id, after=after, follow=follow, sealed=self._sealed)

    def reader(self, after: int = 0) -> LogReader:
        """Returns a reader of the log: read piece by piece, and with a time to wait."""
        return self._service.reader(self.id, after, sealed=self._sealed)

    def committed_events(self) -> list[Event] | None:
        """Returns all events where they are in memory; None where they must be read."""
        return self._service.committed_events(self.id)

    async def wait(self, *, timeout: float | None = None, settled: bool = False) -> Run:
        """Waits until the run has ended (`settled`: or waits for an answer). Raises TimeoutError."""
        return await self._service.wait(self.id, timeout=timeout, settled=settled, sealed=self._sealed)

    async def wait_briefly(self) -> Run:
        """Returns the run when it has ended, where it executes here and ends soon; else as it was."""
        return await self._service.wait_briefly(self.run)

    async def answer(self, question: str, value: Any, *, by: Caller = OWNER, door: str = "") -> None:
        """Answers a question of the run. The first valid answer wins."""
        await self._service.questions.answer(question, value, by=by, door=door)

    async def send(self, message: Message | str | Part | list[Part]) -> None:
        """Puts a message into the run's mailbox."""
        await self._service.send(self.id, message, sealed=self._sealed)

    async def cancel(self, *, reason: str = "", by: Caller = OWNER, rollback: bool = False) -> None:
        """Asks the run to stop. Returns when that is on disk, not when the run has stopped."""
        await self._service.cancel(self.id, reason=reason, by=by, rollback=rollback, sealed=self._sealed)
