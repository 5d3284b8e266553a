"""The ports of the store: ten small interfaces over one database.

There are two ways to write. `runs.append` is the hot path: the owner of a run queues its log, and the store seals all
queued logs into one transaction. Every other write is a call of its own, and shares those transactions. Nothing is
acknowledged before it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from ..model.content import Message
from ..model.documents import Change as ShelfChange
from ..model.documents import Document, FeedEntry, Letter, OnWritten, WriteResult
from ..model.events import Event, RunCreated
from ..model.filters import QuestionFilter, RunFilter, ThreadFilter
from ..model.run import Checkpoint, Instance, QuestionRecord, Thread
from ..runtime.clock import Clock
from .changes import Appender, CountDelegation, Counted, Submission, Submitted
from .rows import (
    PAGE_BYTES,
    BlockedLine,
    CallbackRow,
    DelegationRow,
    EventRow,
    Found,
    InboxItem,
    MoveTo,
    Places,
    ProjectRow,
    QueueCount,
    Reminder,
    RunRow,
    Standing,
    StoredCard,
    Tombstone,
    WorkerRow,
)


class RunStore(Protocol):
    """Runs: writing and reading their logs, and their inboxes."""

    def append(self, log: Appender) -> None: ...
    def backlog(self) -> int: ...
    def submit(
        self, submission: Submission, then: Callable[[Submitted], None] | None = None,
        sealing: Callable[[], None] | None = None,
    ) -> asyncio.Future[Submitted]:  # fmt: skip
        """Queues a new run at once. `sealing` is called right before the run is written: changes of documents that are
        queued then follow it in the same transaction. `then` is called at the commit, also for a cancelled future."""
        ...

    async def get(self, run: str) -> RunRow | None: ...
    async def search(self, where: RunFilter) -> list[RunRow]: ...
    async def ends_of(self, runs: Sequence[str]) -> list[Event]:
        """Returns the first event of each of these runs, and the last one of those that have ended."""
        ...

    async def events(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[Event]:
        """Reads the next page after an event: up to `limit` events or `most_bytes` bytes, and nothing at the end."""
        ...

    async def event_rows(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[EventRow]: ...
    async def ends(self, run: str) -> list[Event]:
        """Reads the first event and the last one."""
        ...

    async def tombstone(self, run: str) -> Tombstone | None: ...
    async def known(self, run: str) -> Literal["run", "tombstone"] | None: ...
    async def is_key_known(self, caller: str, key: str) -> bool:
        """Returns true if a run was created with this idempotency key."""
        ...

    async def delete(self, run: str, now: int, *, rollback: bool = False) -> list[str]: ...
    async def erase(self, run: str, seq: int) -> None: ...
    async def count_pending(self, upto: int) -> int: ...
    async def deliver(self, run: str, kind: str, body: bytes, now: int) -> tuple[int, str | None]: ...
    async def inbox(self, run: str, after: int = 0) -> list[InboxItem]:
        """Reads the next page of a run's inbox after an item: up to PAGE_ITEMS items or PAGE_BYTES bytes."""
        ...

    async def has_news(self, run: str, kind: str | None = None) -> bool:
        """Returns true if something, or something of a kind, is in a run's inbox."""
        ...

    async def expire(
        self, *, runs_before: int | None, threads_before: int | None, now: int, limit: int
    ) -> list[str]: ...


class ClaimStore(Protocol):
    """Workers, the runs that they own, and the project and queues that runs belong to."""

    missed_after: float  # seconds after which others take a worker that gives no sign for dead
    on_lost: Callable[[str], None]  # others took a worker of this process for dead, and own its runs now

    async def enter(self, worker: WorkerRow) -> None: ...
    async def serve(self, worker: str, queues: list[str]) -> None:
        """Notes the queues that a worker serves from now on."""
        ...

    async def leave(self, worker: str) -> None: ...
    async def workers(self) -> list[WorkerRow]: ...
    async def dead(self) -> list[str]:
        """Returns workers that died and are not buried yet."""
        ...

    async def bury(self) -> list[str]:
        """Hands back the runs of workers that died. Returns those workers."""
        ...

    async def claim(
        self, worker: str, agents: list[str], now: int, limit: int, *,
        at_most: Sequence[tuple[Sequence[str], int]] = (), found: dict[str, Found] | None = None,
    ) -> list[RunRow]:  # fmt: skip
        """Claims runs that are due and may start, of each agent in the order in which its callers take turns.

        Agents share the places, in the given order; `at_most` limits several agents together. A returned run without
        a worker only got in line for its thread, and the run before it was asked to give way. `found` receives the
        log of each claimed run, by its id, if that is short. Runs suspected of crashing the process are claimed one
        at a time: the next one when the current one has ended, waits, or has made a record.
        """
        ...

    async def claim_one(self, worker: str, run: str) -> RunRow | None: ...
    async def next_wake(self, agents: list[str]) -> int | None: ...
    async def owned(self, worker: str) -> list[str]: ...
    async def owned_with_news(self, worker: str) -> list[str]:
        """Lists the runs of a worker that have something in their inboxes."""
        ...

    async def release(self, worker: str, runs: list[str], *, crashed: bool = False) -> None: ...
    async def blocked_lines(self) -> list[BlockedLine]:
        """Groups the unfinished runs that some code could not continue."""
        ...

    async def claim_blocked(self, worker: str, line: BlockedLine, now: int, limit: int, *, due: bool) -> list[RunRow]:
        """Claims runs of such a line, wherever they stand; with `due`, only those that are due."""
        ...

    async def blocked_reasons(self) -> list[tuple[str | None, int]]:
        """Counts blocked runs by the reason in their rows. None: other code continued them, and is gone."""
        ...

    async def unblock(self, run: str, now: int) -> bool:
        """Lets any code of its queue continue a blocked run. Returns false if the run is not blocked."""
        ...

    async def due_counts(self, now: int) -> list[tuple[str, int]]:
        """Counts the runs that are due and have no worker, by queue."""
        ...

    async def due_runs(self, queue: str, now: int, limit: int) -> list[RunRow]: ...
    async def project(self) -> ProjectRow | None: ...
    async def claim_project(self, project: ProjectRow) -> ProjectRow:
        """Gives the store to a project if it belongs to none. Returns the project that it belongs to."""
        ...

    async def move(self, run: str, to: MoveTo) -> RunRow:
        """Moves an unfinished run that no worker owns to another queue."""
        ...

    async def open_queues(self) -> list[QueueCount]:
        """Lists all queues that have unfinished runs."""
        ...

    async def open_runs(self, queue: str) -> list[str]:
        """Lists the ids of the unfinished runs of a queue."""
        ...


class ThreadStore(Protocol):
    """Threads: their values, checkpoints and messages."""

    async def create(self, thread: Thread, *, if_exists: Literal["raise", "keep"]) -> Thread: ...
    async def get(self, thread: str) -> Thread | None: ...
    async def search(self, where: ThreadFilter) -> list[Thread]: ...
    async def patch(
        self, thread: str, *, checkpoint: str, values_: Any, metadata: dict[str, Any] | None, base: str | None,
        messages: list[Message] | None, now: int,
    ) -> Thread: ...  # fmt: skip
    async def copy(self, thread: str, new: str, new_id: Callable[[], str], now: int) -> Thread: ...
    async def delete(self, thread: str, now: int) -> None: ...
    async def history(self, thread: str, *, before: str | None, limit: int) -> list[Checkpoint]: ...
    async def checkpoint(self, checkpoint: str) -> Checkpoint | None: ...
    async def messages(self, thread: str, *, upto: int | None = None) -> list[Message]: ...


class QuestionStore(Protocol):
    """Questions: finding, answering and closing them, and reminders."""

    async def answer(
        self, question: str, value: Any, by: str, now: int, door: str = ""
    ) -> tuple[str, int, str | None]: ...
    async def withdraw(self, question: str, reason: str, by: str, now: int) -> tuple[str, str | None]:
        """Closes an open question without an answer, and tells its run. Returns the run and its owner."""
        ...

    async def close(self, question: str, state: str, now: int, reason: str = "") -> bool: ...
    async def get(self, question: str) -> QuestionRecord | None: ...
    async def search(self, where: QuestionFilter) -> list[QuestionRecord]: ...
    async def last_change(self) -> int: ...
    async def count_open(self) -> list[tuple[str, int, int]]:
        """Counts open questions by the agent that asks, with the time of the oldest."""
        ...

    async def claim_reminders(self, now: int, limit: int, formats: Sequence[str]) -> list[Reminder]:
        """Claims the reminders that are due, for this caller alone. Callbacks of these formats are written in the same
        transaction. A reminder that fell due several times meanwhile is claimed once."""
        ...

    async def next_reminder(self) -> int | None: ...


class DelegationStore(Protocol):
    """Runs that members of a team have started, by task."""

    async def of_task(self, task: str) -> list[DelegationRow]: ...
    async def started(self, task: str, runs: Sequence[str]) -> list[int]:
        """Counts the runs of a task that were started below each of these runs."""
        ...

    async def count(self, wanted: CountDelegation) -> Counted:
        """Counts a run, or finds one that is counted already. Deciding and writing are one transaction."""
        ...

    async def labelled(self, label: str) -> list[DelegationRow]:
        """Lists the run of a task and those of all its parts."""
        ...

    async def uncount(self, run: str) -> None: ...


class DocumentStore(Protocol):
    """Documents, letters, feeds and links: what doors keep beside runs and threads."""

    def write(self, changes: Sequence[ShelfChange], heed: OnWritten | None = None) -> asyncio.Future[WriteResult]:
        """Applies all changes, or none if the condition of one does not hold. Calls take effect in their order, and
        those that are queued together share a transaction."""
        ...

    def peek(self, space: str, id_: str) -> tuple[Document | None, bool]:
        """Looks for a small document at once; the second value is False where it has to be read by `get`."""
        ...

    async def get(self, space: str, id_: str) -> Document | None: ...
    async def search(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: str | None = None, limit: int = 100, newest: bool = False,
    ) -> list[Document]:  # fmt: skip
        """Finds documents in the order of their creation, after the document with the id `after`."""
        ...

    async def count(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None
    ) -> int: ...
    async def letter(self, box: str, key: str) -> Letter | None: ...
    async def letters(
        self, box: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: int = 0, limit: int = 100, ranked: bool = False, newest: bool = False,
    ) -> list[Letter]:  # fmt: skip
        """Finds letters by number, or `ranked`: the highest rank first, and of one rank the lowest number. Only letters
        with a number higher than `after`, or lower if `newest` (0: all)."""
        ...

    async def count_letters(
        self, box: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None
    ) -> int: ...
    async def forget_letters(self, box: str, before: int, states: Iterable[str], limit: int = 1000) -> int:
        """Deletes the oldest letters in these states that were posted before that time. Returns their number."""
        ...

    async def feed(self, feed: str, after: int, limit: int, topic: str | None = None) -> list[FeedEntry]:
        """Reads the next page after an entry: up to `limit` entries or TOLD_BYTES bytes, and nothing at the end."""
        ...

    async def feed_head(self, feed: str) -> int:
        """Returns the seq of the newest entry, also if that was trimmed away; 0 for a feed without entries."""
        ...

    async def trim_feed(self, feed: str, keep: int) -> int:
        """Deletes all but the newest entries. Returns the number of deleted ones."""
        ...

    async def followed(self, feed: str) -> list[tuple[str, int]]:
        """Lists the unfinished runs whose logs a feed follows, and how far it has come."""
        ...

    async def forget_followed(self, feed: str, before: int, limit: int = 1000) -> int:
        """Forgets followed runs that ended before that time. Returns their number."""
        ...

    async def link(self, kind: str, foreign: str, target: str) -> str: ...
    async def linked(self, kind: str, foreign: str) -> str | None: ...
    async def unlink(self, kind: str, foreign: str) -> None: ...


class CallbackStore(Protocol):
    """Callbacks: claiming those that are due, and noting their outcome."""

    async def claim(
        self, now: int, lease_until: int, places: Places, *, busy: dict[str, int], per_receiver: int
    ) -> list[CallbackRow]: ...
    async def next_due(self) -> int | None: ...
    async def settle(
        self, row: CallbackRow, *, state: str, attempts: int, next_at: int, error: str | None,
        standing: Standing, failures: int, rest_until: int, now: int,
    ) -> None: ...  # fmt: skip
    async def give_up(self, receiver: str, before: int, error: str) -> int: ...
    async def deleted_run(self, callback: int) -> tuple[RunRow, RunCreated | None] | None: ...
    async def search(
        self, *, run: str | None = None, state: str | None = None, failing: bool = False, newest: bool = False,
        limit: int = 100,
    ) -> list[CallbackRow]: ...  # fmt: skip
    async def counts(self) -> dict[str, int]: ...
    async def retry(self, ids: list[int] | None, now: int) -> list[int]: ...
    async def forget(self, before: int) -> None: ...


class CardStore(Protocol):
    """Cards of every agent that a process of this store ever had."""

    async def put(self, cards: list[StoredCard]) -> None: ...
    async def get(self, name: str, version: str | None, origin: str | None = None) -> StoredCard | None:
        """Finds a card; without a version, the newest of the name. Code of the project comes before mounts."""
        ...

    async def list(self) -> list[StoredCard]: ...


class InstanceStore(Protocol):
    """Configured instances of agents."""

    async def put(self, instance: Instance) -> None: ...
    async def get(self, instance: str) -> Instance | None: ...
    async def list(
        self, *, agent: str | None = None, version: str | None = None, caller: str | None = None,
        limit: int = 100, offset: int = 0,
    ) -> list[Instance]: ...  # fmt: skip
    async def delete(self, instance: str) -> None: ...


class KeyStore(Protocol):
    """API keys, by their ids."""

    on_change: Callable[[str], None]  # this process wrote the record of a key; called with its id

    async def put(self, id_: str, record: bytes) -> None: ...
    async def change(self, id_: str, change: Callable[[bytes], bytes | None]) -> bool: ...
    async def get(self, id_: str) -> bytes | None: ...
    async def list(self, limit: int = -1) -> list[bytes]: ...


class Store(Protocol):
    """The ports of one database. A method may be called only on the event loop that opened the store."""

    clock: Clock
    on_change: Callable[[], None]  # another process wrote, or may have; set by the engine
    shown: str  # its address, without secrets
    waits_for_server: bool  # `open` waits for a database server that is away, and fails only if the server refuses

    @property
    def runs(self) -> RunStore: ...

    @property
    def claims(self) -> ClaimStore: ...

    @property
    def threads(self) -> ThreadStore: ...

    @property
    def questions(self) -> QuestionStore: ...

    @property
    def delegations(self) -> DelegationStore: ...

    @property
    def documents(self) -> DocumentStore: ...

    @property
    def callbacks(self) -> CallbackStore: ...

    @property
    def cards(self) -> CardStore: ...

    @property
    def instances(self) -> InstanceStore: ...

    @property
    def keys(self) -> KeyStore: ...

    async def open(self, *, read_only: bool = False) -> None:
        """Opens the store. Opened read-only, it changes nothing, not even its schema, and refuses every write."""
        ...

    async def close(self) -> None: ...
    def trouble(self) -> str | None:
        """Returns the reason why nothing can be written: the file that was opened is no longer at its path."""
        ...


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Resolves a future, unless its waiter has given up."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
