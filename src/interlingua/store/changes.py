"""Changes: what is written in one transaction with the events of a log, or decided in one of its own."""

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
    remind: list[int] = []  # when somebody is to be reminded of it, in order


class CloseQuestion(msgspec.Struct):
    """For questions that end without an answer: withdrawn, or expired."""

    id: str
    state: Literal["withdrawn", "expired"]
    reason: str = ""


class DropInbox(msgspec.Struct):
    ids: list[int]


class PutInbox(msgspec.Struct):
    """News for another run (a parent)."""

    run: str
    kind: str
    body: bytes
    id: int = 0  # told by the store: of the item in the inbox; 0 where the run had ended


class ChildNews(msgspec.Struct):
    """The end of a child, for its parent. Becomes a PutInbox when the log is sealed and its last hash is known."""

    parent: str
    status: Status
    output: Any
    error: ErrorInfo | None


class DeleteRun(msgspec.Struct):
    """Forget the run with its own end, and what it did to its thread (a rollback)."""

    run: str


class CommitThread(msgspec.Struct):
    """The end of a run on a thread: a new checkpoint where `values` is not UNSET, and the next run in line."""

    thread: str
    run: str
    version: int
    values: Any = msgspec.UNSET
    checkpoint: str | None = None
    messages: list[Message] = []
    failed: bool = False
    agent: str | None = None  # NAME@VERSION of whoever leaves this state: known also when the run is gone
    passed_on: bool = False  # told by the store: another run has the thread now


class BlockRun(msgspec.Struct):
    """Set the run aside: code with this digest cannot go on with it."""

    run: str
    code: str
    reason: str  # as JSON: reason, message, details


class PutCallback(msgspec.Struct):
    """A change of status that somebody wants to be told of."""

    run: str
    url: str
    format: str
    status: Status


class Tally(Protocol):
    """What counts of a task, within the transaction that counts one more."""

    def started(self, runs: Sequence[str]) -> list[int]:
        """How many were started below each of these runs."""
        ...

    def last(self, agent: str) -> int:
        """The highest number of an instance of an agent; 0 where there is none."""
        ...


Admit = Callable[[Tally], int]


class CountDelegation(msgspec.Struct):
    """One more run of a task, counted once. `admit` says which instance of its agent that is, or raises an error.

    It gets the next label below that of the task that it is part of; where it is part of none, a new one; or the one
    that is given. As a change of a log, it is left out where `admit` raises: whoever delegates is told by `delegate`.
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
    started: int  # how many others were started below the same run, all levels together


Change = (
    PutQuestion | CloseQuestion | DropInbox | PutInbox | CommitThread | PutCallback | ChildNews | DeleteRun
    | CountDelegation | BlockRun
)  # fmt: skip


class Sealed(msgspec.Struct):
    """What one log adds in one transaction. Written only `where epoch = mine and next_seq = expected`."""

    log: Appender
    row: RunRow  # a copy, as it is after this
    expected_seq: int
    events: list[EventRow]
    changes: list[Change]
    mark: int  # how much of the log's appends this covers
    bodies: list[Body] = []  # of the events, decoded
    forgotten: bool = False  # told by the store: a rollback that nobody had read was waiting, and the run is gone


class Appender(Protocol):
    """A log with something to write. All methods are called on the event loop."""

    def seal(self) -> Sealed: ...

    def committed(self, sealed: Sealed) -> None: ...

    def refused(self, sealed: Sealed | None, error: BaseException) -> None: ...


class Fenced(Exception):
    """The log has another owner now."""


class Submission(msgspec.Struct):
    """A new run: its row, its first event, and what decides whether and where it starts."""

    row: RunRow
    request: RunRequest
    digest: str  # of the request: a key that comes again must mean the same
    events: list[EventRow]
    take: str | None  # the worker that would start it at once if it may start
    now: int
    continues: str | None = None  # the failed run that it goes on with, which has one continuation

    @property
    def key(self) -> tuple[str, str] | None:
        """The caller and the idempotency key. A continuation has that of no caller."""
        if self.continues is not None:
            return "", self.continues
        return (self.row.caller, self.request.key) if self.request.key is not None else None


class Submitted(msgspec.Struct):
    row: RunRow
    existing: bool = False  # the key or the id was used before: this is the run from then
    thread: Thread | None = None
    cancel: str | None = None  # a run that must give way; it has been told
