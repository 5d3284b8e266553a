"""Rows that the ports of a store return, and the sizes of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from ..model.card import AgentCard
from ..model.events import Event
from ..model.run import QuestionRecord
from ..model.run_identity import queue
from ..model.status import Status


class RunRow(msgspec.Struct):
    """A run's row: the columns to find, claim and order it by. Everything else is in its log."""

    id: str
    agent: str
    version: str
    status: Status
    caller: str
    thread: str | None
    parent: str | None
    path: str  # of its ancestors, "/first/…/parent/"; empty for a run without a caller among runs
    metadata: bytes
    created_at: int
    updated_at: int
    worker: str | None  # the owner; None: it was not started, is parked, or was handed back
    epoch: int  # raised by every claim: an owner from before cannot write any more
    next_seq: int
    head: bytes
    wake_at: int | None  # when an unowned run should be claimed; 0 is now, None is not until something comes in
    crashes: int  # since the last new record
    ran: int  # microseconds of running so far
    queued: int | None  # place in its thread's queue; None: it has the thread, or needs none
    tag: str | None = None  # of the door that submitted it, for its own searches: `mark` in the request's `extra`
    sealed: int = 0  # 1: of an overseen agent, or called by one; only its overseer and the owner may read it
    turn: int = 0  # place in its line, of a run that is due; given by the store
    origin: str = ""  # project and source of the code that began it
    queue: str = ""  # origin, agent and version: workers that serve this queue claim the run
    blocked: str | None = None  # digests of the last 50 codes that could not go on with it, separated by blanks
    blocked_reason: str | None = None  # why it is blocked, as JSON: reason, message, details


class EventRow(msgspec.Struct, array_like=True, gc=False):
    run: str
    seq: int
    kind: str
    time: int
    hash: bytes
    body: bytes | None
    erased: bytes | None = None  # the hash of a body that was erased


EVENT_COLUMNS = EventRow.__struct_fields__[:6]


class DelegationRow(msgspec.Struct, array_like=True):
    """A run that was started under a task of a team. It counts as long as the task is remembered."""

    run: str
    task: str
    path: str  # of its ancestors, as in its row
    agent: str  # by its id in the team
    instance: int  # the how-manieth of that agent in the task
    label: str = ""  # what the part of the task that was handed over is called
    review: int = 0  # 1: it only judges, and counts for no budget


SUSPECT = 2  # crashes after which a run is suspected, and executed with no other suspect beside it


class MoveTo(msgspec.Struct, frozen=True):
    origin: str
    version: str
    by: str
    now: int


class Tombstone(msgspec.Struct, frozen=True):
    """The rest of a run that was deleted."""

    run: str
    agent: str
    status: Status
    seq: int  # of its last event
    head: bytes
    deleted_at: int


class InboxItem(msgspec.Struct):
    id: int
    run: str
    kind: str
    body: bytes


PAGE_BYTES = 4 * 1024 * 1024
"""The size at which a page of a log or an inbox ends. The last entry of it may go beyond."""


TOLD_BYTES = 256 * 1024
"""The size at which a page of a feed ends: its readers are many. The last entry of it may go beyond."""


PAGE_ITEMS = 500
"""The number of entries at which a page of an inbox ends."""


def is_last_page(sizes: Sequence[int], limit: int) -> bool:
    """Returns true if neither the number of entries nor the bytes ended a page."""
    return len(sizes) < limit and sum(sizes) < PAGE_BYTES


class BlockedLine(msgspec.Struct):
    """Unfinished runs of one queue that the same code could not go on with."""

    queue: str
    codes: str  # digests of that code, separated by blanks
    ending: bool  # they are being cancelled: any code will do
    reason: str | None  # why they wait for other code, of one of them; None: other code goes on with them
    wake_at: int | None  # when the first of them is due
    runs: int


class Found(msgspec.Struct):
    """The log of a run at the moment of its claim, so that it need not be read."""

    events: list[Event]  # all of its log
    news: bool  # whether something is in its inbox


class Reminder(msgspec.Struct):
    """A reminder of a question that is due now."""

    record: QuestionRecord
    agent: str  # that asks
    number: int
    of: int


Standing = Literal["good", "new", "failing"]  # of a receiver: it answers well, is not known to, or is silent


class CallbackRow(msgspec.Struct):
    id: int
    run: str
    url: str
    format: str
    status: str
    time: int
    state: str  # due, sent, failed (given up)
    attempts: int
    next_at: int
    error: str | None
    receiver: str
    standing: Standing = "new"  # of its receiver, when it was claimed
    failures: int = 0  # of its receiver in a row, when it was claimed


class Places(msgspec.Struct, frozen=True):
    """The number of callbacks that may be claimed: in all, and of these for new and for failing receivers."""

    all: int
    new: int
    failing: int


def receiver_of(url: str) -> str:
    """Returns the receiver of a callback: the host and port of its address."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return url


class WorkerRow(msgspec.Struct):
    id: str
    host: str
    pid: int
    started_at: int
    queues: list[str]  # whose runs it claims


class ProjectRow(msgspec.Struct, array_like=True):
    """The project that a store belongs to."""

    id: str
    root: str  # the folder from which it was opened last
    seen_at: int


class StoredCard(msgspec.Struct, array_like=True):
    """A card, and the origin of its agent's code."""

    origin: str
    card: AgentCard

    @property
    def queue(self) -> str:
        return queue(self.origin, self.card.name, self.card.version)


class QueueCount(msgspec.Struct, array_like=True):
    """The unfinished runs of one queue."""

    origin: str
    agent: str
    version: str
    runs: int

    @property
    def queue(self) -> str:
        return queue(self.origin, self.agent, self.version)
