"""Entries: everything that is known of a run on its way into this process."""

from __future__ import annotations

from dataclasses import dataclass

from ...model.errors import ErrorInfo
from ...model.events import Event
from ...model.run import Thread
from ...store.rows import RunRow
from ..log.run_log import TransactionParticipant


@dataclass(slots=True)
class Entry:
    """A run that is being written or claimed, until its execution starts."""

    row: RunRow
    events: list[Event] | None = None  # all of its log; None: they are in the store
    thread: Thread | None = None  # its thread as it was when the run took it; None: none, or it is in the store
    inbox_empty: bool = False  # nothing was in its inbox, and nothing has come since
    fail_with: ErrorInfo | None = None  # end the run with this error, and call no handler
    participant: TransactionParticipant | None = None

    @property
    def claimed(self) -> bool:
        return self.row.worker is not None
