"""The port to the store: what the engine asks of a database, in the engine's words.

Two ways to write. `append` is the hot path: a run's owner queues its log, and the store seals whatever is queued
into one transaction. Everything else (`submit`, `deliver`, `answer`, `claim` …) is a call of its own that shares
the same transactions. Nothing is acknowledged before it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from ..model.card import AgentCard
from ..model.content import Message
from ..model.documents import Change as ShelfChange
from ..model.documents import Document, Heed, Kept, Letter, Told
from ..model.errors import ErrorInfo, InterlinguaError
from ..model.events import Body, Event, RunCreated
from ..model.run import Checkpoint, Instance, Question, QuestionRecord, RunRequest, Thread
from ..model.run_identity import queue
from ..model.status import Status


class RunRow(msgspec.Struct):
    """A run's row: what is needed to find, claim and order it. Everything else is in its log."""

    id: str
    agent: str
    version: str
    status: Status
    caller: str
    thread: str | None
    parent: str | None
    path: str  # of its ancestors, "/first/…/parent/"; empty for a run that nobody called
    metadata: bytes
    created_at: int
    updated_at: int
    worker: str | None  # who owns it; None: nobody (not started, parked, or handed back)
    epoch: int  # raised by every claim: an owner from before cannot write any more
    next_seq: int
    head: bytes
    wake_at: int | None  # when an unowned run should be claimed; 0 is now, None is not until something comes in
    crashes: int  # since the last new record
    ran: int  # microseconds of running so far
    queued: int | None  # place in its thread's queue; None: it has the thread, or needs none
    marked: str | None = None  # by the door that submitted it, for its own searches: `mark` in the request's `extra`
    sealed: int = 0  # 1: of an overseen agent, or called by one; only its overseer and the owner may read it
    turn: int = 0  # place in its line, of a run that is due; given by the store
    origin: str = ""  # project and source of the code that began it
    queue: str = ""  # origin, agent and version: workers that serve this queue claim the run
    blocked: str | None = None  # digests of the code that could not go on with it, separated by blanks
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


# -- what a log may change beside itself, in the same transaction ------------------------------------------


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


class DelegationRow(msgspec.Struct, array_like=True):
    """A run that was started under a task of a team. It counts as long as the task is remembered."""

    run: str
    task: str
    path: str  # of its ancestors, as in its row
    agent: str  # by its id in the team
    instance: int  # the how-manieth of that agent in the task
    label: str = ""  # what the part of the task that was handed over is called
    review: int = 0  # 1: it only judges, and counts for no budget


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


SUSPECT = 2  # crashes after which a run is suspected, and executed with no other suspect beside it


class Fenced(Exception):
    """The log has another owner now."""


# -- calls -----------------------------------------------------------------------------------------------


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


class MoveTo(msgspec.Struct, frozen=True):
    origin: str
    version: str
    by: str
    now: int


class Tombstone(msgspec.Struct, frozen=True):
    """What is left of a run that was deleted."""

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
    """Whether a page ended neither by its number of entries nor by its bytes."""
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
    """What there was of a run when it was claimed, so that it need not be read."""

    events: list[Event]  # all of its log
    news: bool  # whether something is in its inbox


class RunFilter(msgspec.Struct, kw_only=True):
    agent: str | None = None
    version: str | None = None
    agents: list[str] | None = None  # any of these: NAME, NAME@VERSION or PREFIX*
    status: list[Status] | None = None
    caller: str | None = None
    thread: str | None = None
    parent: str | None = None
    root: str | None = None
    metadata: dict[str, Any] | None = None
    marked: str | None = None
    blocked: bool = False  # only those that some code could not go on with, and that wait for other code
    sealed: bool = False  # also those that only overseers and the owner may read
    limit: int = 10
    offset: int = 0


class QuestionFilter(msgspec.Struct, kw_only=True):
    run: str | None = None  # and the runs that it called
    state: str | None = "open"
    caller: str | None = None  # whose runs, without what only somebody else may answer
    anyones: bool = False  # with `caller`: who may see all runs, not only its own
    after: int | None = None  # only those that changed since, in the order of their changes; else the oldest first
    newest: bool = False  # the one that changed last first
    limit: int = 100


class Reminder(msgspec.Struct):
    """Somebody is to be reminded of a question now: the how-manieth time, of how many."""

    record: QuestionRecord
    agent: str  # that asks
    number: int
    of: int


class ThreadFilter(msgspec.Struct, kw_only=True):
    status: str | None = None
    caller: str | None = None
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0


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
    """How many callbacks may be claimed: at all, and of those for receivers that are new, or failing."""

    all: int
    new: int
    failing: int


def receiver_of(url: str) -> str:
    """Who is to be told: the host and port of an address."""
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


class Store(Protocol):
    """Implementations: sqlite.py, postgres.py. A method may be called only on the event loop that opened the store."""

    on_foreign_change: Callable[[], None]  # somebody else wrote, or may have; set by the engine
    shown: str  # its address, without secrets
    waits_for_server: bool  # `open` waits for a database server that is away, and fails only where that refuses
    missed_after: float  # seconds after which a worker that died is taken for dead by whoever looks
    on_lost: Callable[[str], None]  # a worker that entered here was taken for dead: its runs are others' now

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # the hot path
    def append(self, log: Appender) -> None: ...
    def backlog(self) -> int: ...
    def trouble(self) -> str | None:
        """The reason why nothing can be written: the file that was opened is no longer at its path."""
        ...

    # runs
    def submit(
        self, submission: Submission, then: Callable[[Submitted], None] | None = None,
        sealing: Callable[[], None] | None = None,
    ) -> asyncio.Future[Submitted]:  # fmt: skip
        """Queued at once. `sealing` is called right before it is written: what `keep` is given then is written after it
        in the same transaction. `then` is called when it is committed, also where nobody waits any more."""
        ...

    async def run(self, run: str) -> RunRow | None: ...
    async def runs(self, where: RunFilter) -> list[RunRow]: ...
    async def events(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[Event]:
        """Events after one: a page, which ends at `limit` events or at so many bytes, and is empty at the end."""
        ...

    async def event_rows(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[EventRow]: ...
    async def tombstone(self, run: str) -> Tombstone | None: ...
    async def known(self, run: str) -> Literal["run", "tombstone"] | None: ...

    async def is_key_known(self, caller: str, key: str) -> bool:
        """Whether a run was made with this idempotency key."""
        ...

    async def last_event(self, run: str) -> Event | None: ...
    async def ends(self, run: str) -> list[Event]:
        """The first event and the last one."""
        ...

    async def delete_run(self, run: str, now: int, *, rollback: bool = False) -> list[str]: ...
    async def erase_event(self, run: str, seq: int) -> None: ...
    async def count_pending(self, upto: int) -> int: ...

    # delegations
    async def delegations(self, task: str) -> list[DelegationRow]: ...
    async def started(self, task: str, runs: Sequence[str]) -> list[int]:
        """How many runs of a task count that were started below each of these."""
        ...

    async def delegate(self, wanted: CountDelegation) -> Counted:
        """Count a run, or tell what became of one that is counted already. Deciding and writing are one transaction."""
        ...

    async def labelled(self, label: str) -> list[DelegationRow]:
        """The run of a task, and those of all its parts."""
        ...

    async def undelegate(self, run: str) -> None: ...

    # inboxes and questions
    async def deliver(self, run: str, kind: str, body: bytes, now: int) -> tuple[int, str | None]: ...
    async def inbox(self, run: str, after: int = 0) -> list[InboxItem]:
        """A page of what others want of a run, after an item: it ends at PAGE_ITEMS or at PAGE_BYTES."""
        ...

    async def has_news(self, run: str, kind: str | None = None) -> bool:
        """Whether something is in a run's inbox."""
        ...

    async def runs_with_news(self, worker: str) -> list[str]:
        """The runs of a worker that have something in their inboxes."""
        ...

    async def answer(
        self, question: str, value: Any, by: str, now: int, door: str = ""
    ) -> tuple[str, int, str | None]: ...
    async def close_question(self, question: str, state: str, now: int, reason: str = "") -> bool: ...
    async def question(self, question: str) -> QuestionRecord | None: ...
    async def questions(self, where: QuestionFilter) -> list[QuestionRecord]: ...
    async def last_question_change(self) -> int: ...
    async def count_questions(self) -> list[tuple[str, int, int]]:
        """Of open ones: the agent that asks, how many, and when the oldest was asked."""
        ...

    async def claim_reminders(self, now: int, limit: int, formats: Sequence[str]) -> list[Reminder]:
        """Those that are due. Nobody else gets them, and what they tell to callbacks of these formats is noted in the
        same transaction. What fell due several times meanwhile is one reminder."""
        ...

    async def next_reminder(self) -> int | None: ...

    # workers
    async def enter(self, worker: WorkerRow) -> None: ...
    async def serve(self, worker: str, queues: list[str]) -> None:
        """Note which queues a worker serves from now on."""
        ...

    async def leave(self, worker: str) -> None: ...
    async def workers(self) -> list[WorkerRow]: ...
    async def bury(self) -> list[str]: ...
    async def claim(
        self, worker: str, agents: list[str], now: int, limit: int, *,
        at_most: Sequence[tuple[Sequence[str], int]] = (), found: dict[str, Found] | None = None,
    ) -> list[RunRow]:  # fmt: skip
        """Those that are due and may start, of each agent in the order in which its callers take turns. Agents share
        the places, in the order in which they are given; `at_most`: of these, together, no more than so many. One
        without a worker only got in line, and the run before it was told. `found` is given what there is of each that
        was taken, by its id, where that is little. Of runs that are suspected of having ended a process, a worker gets
        the next one when the one that it has did not end it: when that has ended, waits, or has made a record."""
        ...

    async def claim_one(self, worker: str, run: str) -> RunRow | None: ...
    async def blocked_lines(self) -> list[BlockedLine]:
        """All runs that some code could not go on with, and that have not ended."""
        ...

    async def claim_blocked(self, worker: str, line: BlockedLine, now: int, limit: int, *, due: bool) -> list[RunRow]:
        """Take runs of such a line, wherever they stand; `due`: only those that are due."""
        ...

    async def blocked_reasons(self) -> list[tuple[str | None, int]]:
        """Why runs are blocked, as it stands in their rows, and how many for each. None: other code went on with them,
        and is gone."""
        ...

    async def due_counts(self, now: int) -> list[tuple[str, int]]:
        """How many runs are due and have no worker, by queue."""
        ...

    async def due_runs(self, queue: str, now: int, limit: int) -> list[RunRow]: ...
    async def unblock(self, run: str, now: int) -> bool:
        """Let any code of its queue go on with a blocked run. False where it is not blocked."""
        ...

    async def next_wake(self, agents: list[str]) -> int | None: ...
    async def owned(self, worker: str) -> list[str]: ...
    async def release(self, worker: str, runs: list[str], *, crashed: bool = False) -> None: ...

    # the project, and the origins of runs
    async def project(self) -> ProjectRow | None: ...
    async def claim_project(self, project: ProjectRow) -> ProjectRow:
        """Give the store to a project, where it belongs to none. Returns the project that it belongs to."""
        ...

    async def move(self, run: str, to: MoveTo) -> RunRow:
        """Give an unfinished run that no worker owns to another queue."""
        ...

    async def open_queues(self) -> list[QueueCount]:
        """All queues that have unfinished runs."""
        ...

    async def open_runs(self, queue: str) -> list[str]:
        """The ids of the unfinished runs of a queue."""
        ...

    # cards of every agent that a process of this store ever had
    async def put_cards(self, cards: list[StoredCard]) -> None: ...
    async def card(self, name: str, version: str | None, origin: str | None = None) -> StoredCard | None:
        """The newest of a name, where no version is given. Of several origins, code of the project before mounts."""
        ...

    async def cards(self) -> list[StoredCard]: ...

    # threads
    async def create_thread(self, thread: Thread, *, if_exists: Literal["raise", "keep"]) -> Thread: ...
    async def thread(self, thread: str) -> Thread | None: ...
    async def threads(self, where: ThreadFilter) -> list[Thread]: ...
    async def patch_thread(
        self, thread: str, *, checkpoint: str, values_: Any, metadata: dict[str, Any] | None, base: str | None,
        messages: list[Message] | None, now: int,
    ) -> Thread: ...  # fmt: skip
    async def copy_thread(self, thread: str, new: str, new_id: Callable[[], str], now: int) -> Thread: ...
    async def delete_thread(self, thread: str, now: int) -> None: ...
    async def history(self, thread: str, *, before: str | None, limit: int) -> list[Checkpoint]: ...
    async def checkpoint(self, checkpoint: str) -> Checkpoint | None: ...
    async def messages(self, thread: str, *, upto: int | None = None) -> list[Message]: ...

    # foreign ids
    async def link(self, kind: str, foreign: str, target: str) -> str: ...
    async def linked(self, kind: str, foreign: str) -> str | None: ...
    async def unlink(self, kind: str, foreign: str) -> None: ...

    # callbacks
    async def claim_callbacks(
        self, now: int, lease_until: int, places: Places, *, busy: dict[str, int], per_receiver: int
    ) -> list[CallbackRow]: ...
    async def next_callback(self) -> int | None: ...
    async def settle_callback(
        self, row: CallbackRow, *, state: str, attempts: int, next_at: int, error: str | None,
        standing: Standing, failures: int, rest_until: int, now: int,
    ) -> None: ...  # fmt: skip
    async def give_up_callbacks(self, receiver: str, before: int, error: str) -> int: ...
    async def deleted_run(self, callback: int) -> tuple[RunRow, RunCreated | None] | None: ...
    async def callbacks(
        self, *, run: str | None = None, state: str | None = None, failing: bool = False, newest: bool = False,
        limit: int = 100,
    ) -> list[CallbackRow]: ...  # fmt: skip
    async def count_callbacks(self) -> dict[str, int]: ...
    async def retry_callbacks(self, ids: list[int] | None, now: int) -> list[int]: ...
    async def forget_callbacks(self, before: int) -> None: ...

    # configured instances, and API keys
    async def put_instance(self, instance: Instance) -> None: ...
    async def instance(self, instance: str) -> Instance | None: ...
    async def instances(
        self, *, agent: str | None = None, version: str | None = None, caller: str | None = None,
        limit: int = 100, offset: int = 0,
    ) -> list[Instance]: ...  # fmt: skip
    async def delete_instance(self, instance: str) -> None: ...
    async def put_key(self, id_: str, record: bytes) -> None: ...
    async def change_key(self, id_: str, change: Callable[[bytes], bytes | None]) -> bool: ...
    async def key_record(self, id_: str) -> bytes | None: ...
    async def key_records(self, limit: int = -1) -> list[bytes]: ...

    # what a door keeps besides: documents, letters and feeds
    def keep(self, changes: Sequence[ShelfChange], heed: Heed | None = None) -> asyncio.Future[Kept]:
        """Apply all of these, or none where the condition of one does not hold. Calls take effect in their order, and
        those that are queued together share a transaction."""
        ...

    def keep_each(
        self, lists: Sequence[Sequence[ShelfChange]], heed: Heed | None = None
    ) -> asyncio.Future[list[Kept | InterlinguaError]]:
        """The same for many lists that somebody waits for together: each is applied by itself, in one transaction."""
        ...

    async def document(self, space: str, id_: str) -> Document | None: ...
    async def documents(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: str | None = None, limit: int = 100, newest: bool = False,
    ) -> list[Document]:  # fmt: skip
        """In the order in which they were created, going on after the document with the id `after`."""
        ...

    async def count_documents(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None
    ) -> int: ...
    async def letter(self, box: str, key: str) -> Letter | None: ...
    async def letters(
        self, box: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: int = 0, limit: int = 100, ranked: bool = False, newest: bool = False,
    ) -> list[Letter]:  # fmt: skip
        """In the order of their numbers, or the highest rank first and of one rank the lowest number. Only those with
        a number higher than `after`; read newest first, lower (0: all)."""
        ...

    async def count_letters(
        self, box: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None
    ) -> int: ...
    async def forget_letters(self, box: str, before: int, states: Iterable[str], limit: int = 1000) -> int:
        """Delete the oldest letters in these states that were posted before that time. Returns how many that were."""
        ...

    async def told(self, feed: str, after: int, limit: int, topic: str | None = None) -> list[Told]:
        """Entries after one: a page, which ends at `limit` entries or at TOLD_BYTES, and is empty at the end."""
        ...

    async def feed_head(self, feed: str) -> int:
        """The seq of the newest news, or 0: also where that is trimmed away."""
        ...

    async def trim_feed(self, feed: str, keep: int) -> int:
        """Delete all but the newest so many. Returns how many are gone."""
        ...

    async def following(self, feed: str) -> list[tuple[str, int]]:
        """The runs whose logs are told to a feed and have not ended, and how far they are."""
        ...

    async def forget_followed(self, feed: str, before: int, limit: int = 1000) -> int:
        """Delete what is known of runs that ended before that time. Returns how many those were."""
        ...

    # upkeep
    async def expire(
        self, *, runs_before: int | None, threads_before: int | None, now: int, limit: int
    ) -> list[str]: ...


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Resolve a future that its waiter may have given up on."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
