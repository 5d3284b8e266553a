"""Changes: writes in the transaction of a log's events, and decisions in a transaction of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from ..model.content import Message
from ..model.errors import ErrorInfo
from ..model.events import Body
from ..model.run import Question, RunRequest, Thread
from ..model.status import Status
from .rows import DelegationRow, EventRow, RunRow


class PutQuestion(msgspec.Struct):
    question: Question
    path: str  # "/first/…/run/": every run on whose log the question shows
    remind: list[int] = []  # the times of its reminders, in order


class CloseQuestion(msgspec.Struct):
    """Closes a question without an answer: it was withdrawn, or expired."""

    id: str
    state: Literal["withdrawn", "expired"]
    reason: str = ""


class DropInbox(msgspec.Struct):
    ids: list[int]


class PutInbox(msgspec.Struct):
    """Puts an item into the inbox of another run (a parent)."""

    run: str
    kind: str
    body: bytes
    id: int = 0  # set by the store: of the item in the inbox; 0 if the run had ended


class ChildNews(msgspec.Struct):
    """Reports the end of a child to its parent. Becomes a PutInbox when the log is sealed, and its last hash known."""

    parent: str
    status: Status
    output: Any
    error: ErrorInfo | None


class DeleteRun(msgspec.Struct):
    """Deletes the run at its own end, and takes back its changes of its thread (a rollback)."""

    run: str


class CommitThread(msgspec.Struct):
    """Ends the turn of a run on a thread: writes a checkpoint if `values` is set, and passes on to the next run."""

    thread: str
    run: str
    version: int
    values: Any = msgspec.UNSET
    checkpoint: str | None = None
    messages: list[Message] = []
    failed: bool = False
    agent: str | None = None  # NAME@VERSION of the agent that leaves this state: known also when the run is gone
    passed_on: bool = False  # set by the store: another run has the thread now


class BlockRun(msgspec.Struct):
    """Blocks the run: code with this digest cannot continue it."""

    run: str
    code: str
    reason: str  # as JSON: reason, message, details


class PutCallback(msgspec.Struct):
    """Queues a callback for a change of a run's status."""

    run: str
    url: str
    format: str
    status: Status


class Tally(Protocol):
    """Counts the delegations of a task, within the transaction that adds one."""

    def started(self, runs: Sequence[str]) -> list[int]:
        """Counts the runs that were started below each of these."""
        ...

    def last(self, agent: str) -> int:
        """Returns the highest instance number of an agent; 0 if there is none."""
        ...


Admit = Callable[[Tally], int]


class CountDelegation(msgspec.Struct):
    """Counts one more run of a task, once. `admit` returns the number of its agent's instance, or raises an error.

    The run gets the given label, or the next one below the task that it is part of, or a new one if it is part of
    none. As a change of a log it is skipped if `admit` raises: the delegating run learns that from `delegations.count`.
    """

    task: str
    path: str
    agent: str
    admit: Admit
    part_of: str = ""
    label: str = ""
    review: bool = False
    run: str = ""


class Counted(msgspec.Struct):
    row: DelegationRow
    started: int  # other runs that were started below the same run, all levels together


Change = (
    PutQuestion | CloseQuestion | DropInbox | PutInbox | CommitThread | PutCallback | ChildNews | DeleteRun
    | CountDelegation | BlockRun
)  # fmt: skip


class Sealed(msgspec.Struct):
    """The part of a log that one transaction adds. Written only `where epoch = mine and next_seq = expected`."""

    log: Appender
    row: RunRow  # a copy, as it is after this
    expected_seq: int
    events: list[EventRow]
    changes: list[Change]
    mark: int  # the number of the log's appends that this covers
    bodies: list[Body] = []  # of the events, decoded
    forgotten: bool = False  # set by the store: an unread rollback was in the inbox, and the run is deleted


class Appender(Protocol):
    """A log with something to write. The store calls its methods on the event loop."""

    def seal(self) -> Sealed: ...

    def committed(self, sealed: Sealed) -> None: ...

    def refused(self, sealed: Sealed | None, error: BaseException) -> None: ...


class Fenced(Exception):
    """Another worker owns the log now."""


class Submission(msgspec.Struct):
    """A new run: its row, its first event, and the conditions under which it starts."""

    row: RunRow
    request: RunRequest
    digest: str  # of the request: a key that is used again must come with the same
    events: list[EventRow]
    take: str | None  # the worker that would start it at once if it may start
    now: int
    continues: str | None = None  # the failed run that it continues; each has one continuation

    @property
    def key(self) -> tuple[str, str] | None:
        """Returns the caller and the idempotency key. The key of a continuation belongs to no caller."""
        if self.continues is not None:
            return "", self.continues
        return (self.row.caller, self.request.key) if self.request.key is not None else None


class Submitted(msgspec.Struct):
    row: RunRow
    existing: bool = False  # the key or the id was used before: this is the run from then
    thread: Thread | None = None
    cancel: str | None = None  # a run that was asked to give way
