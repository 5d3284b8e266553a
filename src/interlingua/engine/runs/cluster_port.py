"""The port to other processes: what a worker tells them of its runs, and where it reads theirs."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ...model.events import Event, RunCreated
from ...store.changes import Sealed
from ...store.rows import EventRow, RunRow

ANYBODY = ""
"""The owner of a run where it is not known."""


class PublishedLog(Protocol):
    """The log of a run in another process, as far as its owner published it."""

    looks: int  # raised when readers should look in the store
    submitted: tuple[RunRow, RunCreated] | None  # its row and first event, where it was submitted here

    @property
    def last(self) -> Event | None: ...

    def since(self, seq: int) -> list[Event] | None:
        """Returns the events after `seq`; None where some of those before them were not published."""

    def changed(self) -> asyncio.Future[None]:
        """Resolves at new events, or when it is time to read the store."""

    def release(self) -> None:
        """Stops keeping it open for a reader to come."""

    def leave(self) -> None:
        """Counts one reader less."""


class ClusterPort(Protocol):
    """Everything here is a hint, and may be lost: the store has it all."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def committed(self, run: str, sealed: Sealed | None) -> None:
        """Something of a run that is here is on disk; None: it was refused."""

    def offer(self, row: RunRow) -> None:
        """A run is due, and was not entered here."""

    def tell_owner(self, run: str, owner: str | None) -> None:
        """Something is in the inbox of a run that is not here. `owner`: its worker, ANYBODY, or None for no worker."""

    def handed_back(self) -> None:
        """This worker gave its runs back as it left."""

    def slot_free(self) -> None: ...

    def agents_changed(self) -> None: ...

    def questions_changed(self) -> None: ...

    def follow_new(self, row: RunRow, created: RunCreated, first: EventRow) -> PublishedLog | None:
        """Listen to a run before it is written here and runs elsewhere, so that nothing of it need be looked for."""

    def followed(self, run: str) -> PublishedLog | None:
        """The log of a run that was submitted so, a moment ago."""

    async def remote_log(self, run: str) -> PublishedLog | None:
        """The log of a run that is elsewhere, for one reader, who leaves it in the end. None: no process would tell."""
