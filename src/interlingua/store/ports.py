"""The port to the store: what the engine asks of a database, in the engine's words.

Two ways to write. `append` is the hot path: a run's owner queues its log, and the store seals whatever is queued
into one transaction. Everything else (`submit`, `deliver`, `answer`, `claim` …) is a call of its own that shares
the same transactions. Nothing is acknowledged before it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from ..model.content import Message
from ..model.documents import Change as ShelfChange
from ..model.documents import Document, Heed, Kept, Letter, Told
from ..model.errors import InterlinguaError
from ..model.events import Event, RunCreated
from ..model.filters import QuestionFilter, RunFilter, ThreadFilter
from ..model.run import Checkpoint, Instance, QuestionRecord, Thread
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
        """Queued at once. `sealing` is called right before it is written: what `keep` is given then is written after it
        in the same transaction. `then` is called when it is committed, also where nobody waits any more."""
        ...

    async def get(self, run: str) -> RunRow | None: ...
    async def search(self, where: RunFilter) -> list[RunRow]: ...
    async def events(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[Event]:
        """Events after one: a page, which ends at `limit` events or at so many bytes, and is empty at the end."""
        ...

    async def event_rows(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[EventRow]: ...
    async def ends(self, run: str) -> list[Event]:
        """The first event and the last one."""
        ...

    async def tombstone(self, run: str) -> Tombstone | None: ...
    async def known(self, run: str) -> Literal["run", "tombstone"] | None: ...
    async def is_key_known(self, caller: str, key: str) -> bool:
        """Whether a run was made with this idempotency key."""
        ...

    async def delete(self, run: str, now: int, *, rollback: bool = False) -> list[str]: ...
    async def erase(self, run: str, seq: int) -> None: ...
    async def count_pending(self, upto: int) -> int: ...
    async def deliver(self, run: str, kind: str, body: bytes, now: int) -> tuple[int, str | None]: ...
    async def inbox(self, run: str, after: int = 0) -> list[InboxItem]:
        """A page of what others want of a run, after an item: it ends at PAGE_ITEMS or at PAGE_BYTES."""
        ...

    async def has_news(self, run: str, kind: str | None = None) -> bool:
        """Whether something is in a run's inbox."""
        ...

    async def expire(
        self, *, runs_before: int | None, threads_before: int | None, now: int, limit: int
    ) -> list[str]: ...


class ClaimStore(Protocol):
    """Workers, the runs that they own, and the project and queues that runs belong to."""

    missed_after: float  # seconds after which a worker that died is taken for dead by whoever looks
    on_lost: Callable[[str], None]  # a worker that entered here was taken for dead: its runs are others' now

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
    async def next_wake(self, agents: list[str]) -> int | None: ...
    async def owned(self, worker: str) -> list[str]: ...
    async def owned_with_news(self, worker: str) -> list[str]:
        """The runs of a worker that have something in their inboxes."""
        ...

    async def release(self, worker: str, runs: list[str], *, crashed: bool = False) -> None: ...
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

    async def unblock(self, run: str, now: int) -> bool:
        """Let any code of its queue go on with a blocked run. False where it is not blocked."""
        ...

    async def due_counts(self, now: int) -> list[tuple[str, int]]:
        """How many runs are due and have no worker, by queue."""
        ...

    async def due_runs(self, queue: str, now: int, limit: int) -> list[RunRow]: ...
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
    async def close(self, question: str, state: str, now: int, reason: str = "") -> bool: ...
    async def get(self, question: str) -> QuestionRecord | None: ...
    async def search(self, where: QuestionFilter) -> list[QuestionRecord]: ...
    async def last_change(self) -> int: ...
    async def count_open(self) -> list[tuple[str, int, int]]:
        """Of open ones: the agent that asks, how many, and when the oldest was asked."""
        ...

    async def claim_reminders(self, now: int, limit: int, formats: Sequence[str]) -> list[Reminder]:
        """Those that are due. Nobody else gets them, and what they tell to callbacks of these formats is noted in the
        same transaction. What fell due several times meanwhile is one reminder."""
        ...

    async def next_reminder(self) -> int | None: ...


class DelegationStore(Protocol):
    """Runs that members of a team have started, by task."""

    async def of_task(self, task: str) -> list[DelegationRow]: ...
    async def started(self, task: str, runs: Sequence[str]) -> list[int]:
        """How many runs of a task count that were started below each of these."""
        ...

    async def count(self, wanted: CountDelegation) -> Counted:
        """Count a run, or tell what became of one that is counted already. Deciding and writing are one transaction."""
        ...

    async def labelled(self, label: str) -> list[DelegationRow]:
        """The run of a task, and those of all its parts."""
        ...

    async def uncount(self, run: str) -> None: ...


class DocumentStore(Protocol):
    """Documents, letters, feeds and links: what doors keep beside runs and threads."""

    def write(self, changes: Sequence[ShelfChange], heed: Heed | None = None) -> asyncio.Future[Kept]:
        """Apply all of these, or none where the condition of one does not hold. Calls take effect in their order, and
        those that are queued together share a transaction."""
        ...

    def write_each(
        self, lists: Sequence[Sequence[ShelfChange]], heed: Heed | None = None
    ) -> asyncio.Future[list[Kept | InterlinguaError]]:
        """The same for many lists that somebody waits for together: each is applied by itself, in one transaction."""
        ...

    def peek(self, space: str, id_: str) -> tuple[Document | None, bool]:
        """Looks for a small document at once; the second value is False where it has to be read by `get`."""
        ...

    async def get(self, space: str, id_: str) -> Document | None: ...
    async def search(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: str | None = None, limit: int = 100, newest: bool = False,
    ) -> list[Document]:  # fmt: skip
        """In the order in which they were created, going on after the document with the id `after`."""
        ...

    async def count(
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

    async def feed(self, feed: str, after: int, limit: int, topic: str | None = None) -> list[Told]:
        """Entries after one: a page, which ends at `limit` entries or at TOLD_BYTES, and is empty at the end."""
        ...

    async def feed_head(self, feed: str) -> int:
        """The seq of the newest news, or 0: also where that is trimmed away."""
        ...

    async def trim_feed(self, feed: str, keep: int) -> int:
        """Delete all but the newest so many. Returns how many are gone."""
        ...

    async def followed(self, feed: str) -> list[tuple[str, int]]:
        """The runs whose logs are told to a feed and have not ended, and how far they are."""
        ...

    async def forget_followed(self, feed: str, before: int, limit: int = 1000) -> int:
        """Delete what is known of runs that ended before that time. Returns how many those were."""
        ...

    async def link(self, kind: str, foreign: str, target: str) -> str: ...
    async def linked(self, kind: str, foreign: str) -> str | None: ...
    async def unlink(self, kind: str, foreign: str) -> None: ...


class CallbackStore(Protocol):
    """Callbacks: which are due, and how they went."""

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
        """The newest of a name, where no version is given. Of several origins, code of the project before mounts."""
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

    on_change: Callable[[], None]  # somebody else wrote, or may have; set by the engine
    shown: str  # its address, without secrets
    waits_for_server: bool  # `open` waits for a database server that is away, and fails only where that refuses

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

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def trouble(self) -> str | None:
        """The reason why nothing can be written: the file that was opened is no longer at its path."""
        ...


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Resolve a future that its waiter may have given up on."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
