"""The port to other processes: what a worker tells them of its runs, and where it reads theirs."""

from __future__ import annotations

from typing import Protocol

from ...model.events import RunCreated
from ...store.changes import Sealed
from ...store.rows import EventRow, RunRow
from ..cluster.remote_log import About, RemoteLog

ANYBODY = ""
"""The owner of a run where it is not known."""


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

    def follow_new(self, row: RunRow, created: RunCreated, first: EventRow) -> RemoteLog | None:
        """Listen to a run before it is written here and runs elsewhere, so that nothing of it need be looked for."""

    def followed(self, run: str) -> RemoteLog | None:
        """The log of a run that was submitted so, a moment ago."""

    async def remote_log(self, run: str, about: About | None = None) -> RemoteLog | None:
        """The log of a run that is elsewhere, for one reader, who leaves it in the end. None: no process would tell.
        `about`: whose run it is, where that is known."""
