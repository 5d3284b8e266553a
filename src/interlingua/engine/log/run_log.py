"""The log of a run that is owned by this process: append, seal, commit, read.

Appending never waits; an agent that shows much waits in `breathe`. Events are numbered when the store seals them into
a transaction; output fragments that meet in one transaction become one event. Readers see only what is committed: from
a short memory of recent events, and from the store when they are further behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from ...model import hash_chain
from ...model.delta import Composer
from ...model.errors import InvalidRequest
from ...model.events import (
    KINDS,
    Body,
    CancelRequested,
    ChildCalled,
    ChildEnded,
    DelegationRefused,
    ErrorHandled,
    Event,
    MessageReceived,
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunCreated,
    RunFinished,
    RunRestarted,
    RunStarted,
    ToolRefused,
    body_decoder,
    body_encoder,
)
from ...model.run import Callback
from ...model.status import FINAL, Move, Status, next_status
from ...store.changes import Change, ChildNews, PutCallback, PutInbox, Sealed
from ...store.ports import Store
from ...store.rows import EventRow, RunRow
from ..settings import Settings
from .recent_events import RecentEvents

log_ = logging.getLogger("interlingua.engine")

_FULL = 2048  # appended and not yet committed: the agent waits
_PAUSE = 64  # appended since the agent last gave way to others
_MOST_JOINED = 256 * 1024  # bytes of fragments that become one event: a reader holds at least one event at a time

# Each of these is a record: what it holds is never computed or asked for again.
_RECORDS = frozenset(
    (Recorded, QuestionAnswered, MessageReceived, ChildEnded, DelegationRefused, ToolRefused, ErrorHandled)
)


_ENDS = {status: Move(status.value) for status in FINAL}
_MOVES: dict[type, Callable[..., Move]] = {
    RunStarted: lambda body: Move.STARTED,
    RunRestarted: lambda body: Move.RESTARTED,
    QuestionAsked: lambda body: Move.ASKED,
    QuestionAnswered: lambda body: Move.STILL_OPEN if body.still_open else Move.ANSWERED,
    QuestionWithdrawn: lambda body: Move.STILL_OPEN if body.still_open else Move.ANSWERED,
    CancelRequested: lambda body: Move.CANCEL_REQUESTED,
    RunFinished: lambda body: _ENDS[body.status],
}


def move_of(body: Body) -> Move | None:
    """The move of a run's status that an event makes."""
    move = _MOVES.get(type(body))
    return None if move is None else move(body)


# Bodies that hold nothing an agent could still change.
_OURS = frozenset(
    (
        RunCreated, RunStarted, RunRestarted, OutputDelta, CancelRequested, QuestionWithdrawn, ChildCalled,
        DelegationRefused, ToolRefused, ErrorHandled,
    )
)  # fmt: skip


def encode(body: Body) -> bytes:
    """A body as it is written down. Raises where it cannot be encoded."""
    try:
        return body_encoder.encode(body)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{KINDS[type(body)]}: this cannot be written down: {error}") from error


def _with_head(change: Change, run: str, head: bytes) -> Change:
    """Adds the last hash of a child's log to its news, as it is known only now."""
    if not isinstance(change, ChildNews):
        return change
    news = {"run": run, "status": change.status, "head": head.hex(), "output": change.output, "error": change.error}
    return PutInbox(change.parent, "child_ended", body_encoder.encode(news))


def _worth_telling(before: Status, now: Status) -> bool:
    """Waiting, going on after that, and the end. That a run has started, or is stopping, is nobody's business yet."""
    return before is not now and (now is Status.WAITING or now.final or before is Status.WAITING)


class TransactionParticipant(Protocol):
    """Takes part in the transactions that write a run, from its first event on."""

    def sealing(self, events: list[Event]) -> bool:
        """Called with the events that are about to be written; changes of documents that it makes meanwhile are in the
        same transaction. Returns False to take part no longer.

        The store may still refuse the events. Only documents that follow them, as `Follow` says, may depend on them.
        """
        ...

    def left(self, error: BaseException | None) -> None:
        """Called when it takes part no longer: the run does not execute here, the store refused the log, or its owner
        left the run before its end."""
        ...


def let_participate(participant: TransactionParticipant, events: list[Event]) -> bool:
    """Returns False if the participant takes part no longer. Its errors do not stop the run."""
    try:
        return participant.sealing(events)
    except Exception as error:
        log_.exception("run %s: a participant in its transactions failed", events[0].run)
        participant.left(error)
        return False


class RunLog:
    __slots__ = (
        "_appended",
        "_changes",
        "_durable",
        "_expected_seq",
        "_fragments",
        "_fragments_size",
        "_head",
        "_in_flight",
        "_max_bytes",
        "_next_seq",
        "_pending",
        "_queued",
        "_readers",
        "_since_pause",
        "_store",
        "_unwritten",
        "_waiters",
        "bytes",
        "callback",
        "closed",
        "committed_row",
        "created",
        "finished",
        "lost",
        "on_commit",
        "on_full",
        "participant",
        "recent",
        "row",
        "status",
    )  # fmt: skip

    def __init__(self, store: Store, row: RunRow) -> None:
        self._store = store
        self.row = row  # as it is in memory: ahead of the store while something is pending
        self.status: Status = row.status
        self.bytes = 0  # of all its events, but for those that are not sealed yet
        self.committed_row: RunRow | None = None  # as everyone else can see it
        self.created: RunCreated | None = None  # for views of a run that has left
        self.finished: RunFinished | None = None  # set when committed
        self.lost: BaseException | None = None  # another owner has it, or the store refused
        self.callback: Callback | None = None
        self.recent = RecentEvents(Settings().keep_live_bytes)
        self.on_commit: Callable[[RunLog, Sealed | None], None] | None = None
        self.on_full: Callable[[], None] | None = None  # called at each event beyond the bytes that a log may have
        self.participant: TransactionParticipant | None = None  # of what is written from now on
        self.closed = False  # the run has ended, or this owner has let it go
        self._next_seq = row.next_seq
        self._head = row.head
        self._expected_seq = row.next_seq
        self._pending: list[tuple[Body, bytes | None]] = []
        self._fragments: Composer | None = None  # of the last pending body, where that is output
        self._fragments_size = 0  # bytes of the last pending output
        self._changes: list[Change] = []
        self._queued = False
        self._max_bytes: int | None = None
        self._unwritten = 0  # bytes that are appended and not sealed
        self._in_flight = 0  # bytes that are sealed and not committed
        self._appended = 0
        self._durable = 0
        self._since_pause = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._readers: set[asyncio.Future[None]] = set()

    def bound(self, settings: Settings, on_full: Callable[[], None]) -> None:
        """Set the limits of memory and of the whole log."""
        self.recent.most_bytes, self._max_bytes, self.on_full = (
            settings.keep_live_bytes,
            settings.max_log_bytes,
            on_full,
        )

    def found(self, events: Sequence[Event]) -> None:
        """Go on after events that the store has: the next page of them."""
        self.bytes += sum(event.size for event in events)
        self.recent.extend(events)

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, body: Body, *changes: Change, encoded: bytes | None = None) -> int:
        """Adds an event and returns its seq. It is encoded at once: later changes of the body have no effect. Only an
        output of long texts, which nobody can change, is encoded when it is written: many runs may wait for that."""
        if self.lost is not None or self.closed:
            return 0
        if type(body) is OutputDelta:
            last = self._pending[-1][0] if self._pending else None
            size = weight(body.delta)
            fits = self._fragments_size + size <= _MOST_JOINED
            if type(last) is OutputDelta and last.step == body.step and last.branch == body.branch and fits:
                if self._fragments is None:
                    self._fragments = Composer()
                    self._fragments.add(last.delta)
                self._fragments.add(body.delta)
                self._fragments_size += size
                self._weigh(size)
                self._count()
                return self._next_seq + len(self._pending) - 1
            encoded = None  # more fragments may follow
            self._fragments_size = size
        elif type(body) is RunFinished and _is_long_text(body.output):
            body = replace(body, output=dict(body.output))
            size = 0
        else:
            encoded = encode(body) if encoded is None else encoded
            size = len(encoded)
        move = move_of(body)
        if move is not None:
            before = self.status
            self.status = self.row.status = next_status(before, move)
            if self.callback is not None and _worth_telling(before, self.status):
                url, format_ = self.callback.url, self.callback.format
                self._changes.append(PutCallback(self.row.id, url, format_, self.status))
        if type(body) in _RECORDS:
            self.row.crashes = 0
        self._settle_fragments()
        self._pending.append((body, encoded))
        if changes:
            self._changes.extend(changes)
        if type(body) is RunFinished:
            self.closed = True
        else:
            self._weigh(size)
        self._count()
        return self._next_seq + len(self._pending) - 1

    def _weigh(self, size: int) -> None:
        self._unwritten += size
        if self._max_bytes is not None and self.bytes + self._unwritten > self._max_bytes and self.on_full is not None:
            self.on_full()

    @property
    def heavy(self) -> bool:
        """True if so much waits for the disk that further output should wait."""
        return self._unwritten + self._in_flight > self.recent.most_bytes

    def touch(self, *changes: Change, close: bool = False) -> None:
        """Writes the current row and some changes. `close`: this owner appends nothing more."""
        if self.lost is None and not self.closed:
            self.closed = close
            self._changes.extend(changes)
            self._count()

    def _count(self) -> None:
        self._appended += 1
        self._since_pause += 1
        if not self._queued:
            self._queued = True
            self._store.runs.append(self)

    def _settle_fragments(self) -> None:
        if self._fragments is not None:
            last, _ = self._pending[-1]
            assert isinstance(last, OutputDelta)
            last.delta = self._fragments.value
            self._fragments = None

    async def breathe(self) -> None:
        """Yields to other tasks between output fragments, and waits if the disk cannot keep up."""
        if self._appended - self._durable > _FULL or self.heavy:
            await self.flush()
        elif self._since_pause >= _PAUSE:
            self._since_pause = 0
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Return when everything appended so far is committed."""
        if self.lost is not None:
            raise self.lost
        if self._durable < self._appended:
            await self.flushed()

    def flushed(self) -> asyncio.Future[None]:
        """Done when everything appended so far is committed, of which some is not yet."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._appended, future))
        return future

    # -- called by the store ------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        self._queued = False
        self._settle_fragments()
        row = self.row
        time = max(self._store.clock.now(), row.updated_at)
        events: list[EventRow] = []
        bodies: list[Body] = []
        run, seq, head = row.id, self._next_seq, self._head
        for body, encoded in self._pending:
            written = body_encoder.encode(body) if encoded is None else encoded
            kind = KINDS[type(body)]
            head = hash_chain.link(head, run, seq, kind, time, hash_chain.body_hash(written))
            events.append(EventRow(run, seq, kind, time, head, written))
            # What readers in this process get is read back, where it holds objects of the agent's.
            bodies.append(body if type(body) in _OURS else body_decoder.decode(written))
            self.bytes += len(written)
            seq += 1
        row.next_seq, row.head, row.updated_at = seq, head, time
        changes = [_with_head(change, run, head) for change in self._changes]
        sealed = Sealed(
            self, replace(row), self._expected_seq, events, changes, self._appended, bodies
        )  # fmt: skip
        self._next_seq = self._expected_seq = seq
        self._head = head
        self._in_flight, self._unwritten = self._unwritten, 0
        self._pending, self._changes = [], []
        if self.participant is not None and events and not let_participate(self.participant, self._events(sealed)):
            self.participant = None
        return sealed

    def _close_participant(self, error: BaseException | None) -> None:
        participant, self.participant = self.participant, None
        if participant is not None:
            participant.left(error)

    def _events(self, sealed: Sealed) -> list[Event]:
        run = self.row.id
        return [
            Event(run, row.seq, row.time, row.hash, body, row.seq, len(row.body) if row.body is not None else 0)
            for row, body in zip(sealed.events, sealed.bodies, strict=True)
        ]

    def committed(self, sealed: Sealed) -> None:
        self._durable = sealed.mark
        self._in_flight = 0
        self.committed_row = sealed.row
        for event in self._events(sealed):
            self.recent.add(event)
            if type(event.body) is RunFinished:
                self.finished = event.body
        if self.participant is not None and self.closed and self.settled:
            if self.finished is None:
                self._close_participant(None)
            self.participant = None
        self._wake()
        if self.on_commit is not None:
            self.on_commit(self, sealed)

    def refused(self, sealed: Sealed | None, error: BaseException) -> None:
        self.lost = error
        self._pending.clear()
        self._fragments = None  # of what was pending
        self._changes.clear()
        self._close_participant(error)
        self._wake()
        if self.on_commit is not None:
            self.on_commit(self, sealed)

    def _wake(self) -> None:
        waiters = self._waiters
        while waiters and (self.lost is not None or waiters[0][0] <= self._durable):
            _, future = waiters.pop(0)
            if not future.done():
                if self.lost is not None:
                    future.set_exception(self.lost)
                else:
                    future.set_result(None)
        self.wake_readers()

    def wake_readers(self) -> None:
        if self._readers:
            readers, self._readers = self._readers, set()
            for reader in readers:
                if not reader.done():
                    reader.set_result(None)

    @property
    def settled(self) -> bool:
        """True if nothing is on its way to the store."""
        return self.lost is not None or self._durable >= self._appended

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def committed_seq(self) -> int:
        last = self.recent.last
        return last.seq if last is not None else self._expected_seq - 1

    def since(self, seq: int) -> list[Event] | None:
        """The committed events after `seq` from memory; None if memory does not reach back that far."""
        return self.recent.since(seq)

    def leave_memory(self) -> None:
        """Leaves the events to the store, which has them all. A slow reader may hold this log for long."""
        self.recent.clear()
        if self.finished is not None:
            self.finished = replace(self.finished, output=None)

    def changed(self) -> asyncio.Future[None]:
        """Resolves at the next commit."""
        future = asyncio.get_running_loop().create_future()
        self._readers.add(future)
        future.add_done_callback(self._readers.discard)
        return future


def _is_long_text(output: Any) -> bool:
    """True for an object of nothing but texts, one of which is long."""
    return (
        type(output) is dict
        and all(type(member) is str for member in output.values())
        and any(len(member) > _MOST_JOINED for member in output.values())
    )


def weight(delta: Any) -> int:
    """About how many bytes a delta has as JSON. It is encoded later, with those that follow it."""
    if isinstance(delta, str):
        return len(delta) + 2
    if isinstance(delta, dict):
        size = 0
        for name, member in delta.items():  # most deltas are a text in an object: no call for that
            size += len(name) + 4 + (len(member) + 2 if type(member) is str else weight(member))
        return size
    if isinstance(delta, list):
        return sum(1 + weight(member) for member in delta)
    return 8


def compose_runs(events: list[Event]) -> list[Event]:
    """Composes neighbouring output deltas into one event, for slow readers. Nothing is lost."""
    out: list[Event] = []
    composer: Composer | None = None
    for event in events:
        last = out[-1] if out else None
        if (
            last is not None
            and type(event.body) is OutputDelta
            and type(last.body) is OutputDelta
            and last.body.step == event.body.step
        ):
            if composer is None:
                composer = Composer()
                composer.add(last.body.delta)
            composer.add(event.body.delta)
            body = OutputDelta(None, event.body.step)
            out[-1] = Event(event.run, event.seq, event.time, event.hash, body, last.first)
            continue
        if composer is not None:
            _close(out[-1], composer)
            composer = None
        out.append(event)
    if composer is not None:
        _close(out[-1], composer)
    return out


def _close(event: Event, composer: Composer) -> None:
    assert isinstance(event.body, OutputDelta)
    event.body.delta = composer.value
