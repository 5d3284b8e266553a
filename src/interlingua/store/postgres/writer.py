"""The writer of a PostgreSQL store: many logs in few statements, sent without waiting for each other's results.

It outlives its connection. A transaction that was on its way when the connection broke is looked for, and told as
committed or written again: never guessed. Where the server stays away, who asked for it waits until that is known. Two
transactions that waited for each other are tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg

from ...model.errors import InvalidRequest, StoreError
from ...model.status import Status
from ...runtime.clock import Clock
from ..changes import CloseQuestion, CommitThread, CountDelegation, Fenced, PutCallback, PutInbox, PutQuestion, Sealed
from ..rows import RunRow, receiver_of
from ..sql.dialect import Lock, Pipelined
from ..sql.questions import COUNT
from ..writer import Batch, InDoubt, QueuedCall, Writer, run_calls, write_changes
from .connection import Place, PostgresConnection, connect, lost

log = logging.getLogger("interlingua.store")

_TRIES = 5  # of a transaction that others got in the way of
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between attempts to reach the server

_BYTES = ("head", "hash", "body")
_NUMBERS = ("updated_at", "epoch", "next_seq", "wake_at", "crashes", "ran", "queued", "seq", "time", "expected")
_EVENTS = ("run", "seq", "kind", "time", "hash", "body")
_CHANGED = (
    "id", "epoch", "expected", "status", "updated_at", "worker", "next_seq", "head", "crashes", "ran", "queued",
    "parks", "wake_at",
)  # fmt: skip


def _array(column: str) -> str:
    if column in _BYTES:
        return "%b::bytea[]"
    return f"%s::{'bigint' if column in _NUMBERS else 'boolean' if column == 'parks' else 'text'}[]"


def _insert(table: str, columns: tuple[str, ...]) -> str:
    names = ", ".join(columns)
    arrays = ", ".join(_array(column) for column in columns)
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM unnest({arrays}) AS given({names})"


_INSERT_EVENTS = _insert("events", _EVENTS)
# The rows are locked already, in a statement of their own: what is in the inboxes now is what those who put it there
# have left. Where a row is another's, the count is wrong, and so is the division: nothing after it is done.
_UPDATE_RUNS = (
    "WITH done AS (UPDATE runs SET status=given.status, updated_at=given.updated_at, worker=given.worker, "
    "next_seq=given.next_seq, head=given.head, crashes=given.crashes, ran=given.ran, queued=given.queued, "
    "wake_at=CASE WHEN given.parks AND EXISTS (SELECT 1 FROM inbox WHERE inbox.run=runs.id) THEN 0 "
    "ELSE given.wake_at END "
    f"FROM unnest({', '.join(_array(column) for column in _CHANGED)}) AS given({', '.join(_CHANGED)}) "
    "WHERE runs.id=given.id AND runs.epoch=given.epoch AND runs.next_seq=given.expected RETURNING 1) "
    "SELECT 1/(CASE WHEN count(*)=%s THEN 1 ELSE 0 END) FROM done"
)
# The same for the writer itself: a transaction of a connection that was given up cannot be committed any more.
_NOTE_BATCH = (
    "WITH noted AS (UPDATE writers SET batch=%s, seen_at=now() WHERE id=%s AND generation=%s RETURNING 1) "
    "SELECT sqrt(count(*)-1) FROM noted"
)


class _Doubt(NamedTuple):
    """A transaction of which nobody knows whether it was committed: the server went away meanwhile, and for long. Who
    asked for it is told nothing until that is known, for a refusal means that nothing happened."""

    batch: int
    calls: list[QueuedCall]
    results: list[tuple[Any, BaseException | None]]


class PostgresWriter(Writer):
    def __init__(self, where: Place, id_: str, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        super().__init__(loop)
        self._clock = clock
        self._where = where
        self._id = id_
        self._generation = 0
        self._batch = 0
        self._conn: PostgresConnection | None = None
        self._names = set[Lock]()  # by which the connection can be found
        self._away_since: float | None = None
        self._unsure: list[tuple[Any, BaseException | None]] | None = None  # results of what was being committed
        self._doubt: _Doubt | None = None

    def start(self) -> None:
        self._conn = self._connected()
        self._thread.start()

    # -- in the thread ------------------------------------------------------------------------------------

    def be_found(self, name: Lock) -> None:
        """Lets others find the connection by this name, also after it was replaced."""
        self._names.add(name)
        assert self._conn is not None
        self._conn.keep(name)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._commit(batch)
            self._call_on_loop(self._done, batch)
        if self._doubt is not None:
            with contextlib.suppress(StoreError):
                self._reconnect()
        if (doubt := self._doubt) is not None:
            unknown = StoreError("the store went away while it was writing; nobody knows whether this was written")
            self._call_on_loop(self._settle_calls, doubt.calls, [(None, unknown)] * len(doubt.calls))
        conn = self._conn
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                conn.raw.execute("DELETE FROM writers WHERE id=%s", (self._id,))
            conn.raw.close()

    def _next(self) -> Batch | None:
        """The next batch; None at the end. While a transaction is in doubt, look whether the server is there again."""
        while self._doubt is not None:
            try:
                return self._work.get(timeout=_PAUSES[-1])
            except queue.Empty:
                with contextlib.suppress(StoreError):
                    self._reconnect()
        return self._work.get()

    def _transaction(
        self,
        sealed: list[Sealed],
        calls: list[QueuedCall],
        results: list[tuple[Any, BaseException | None]],
    ) -> None:
        self._batch += 1
        tries = 0
        while True:
            conn = self._conn
            self._unsure = None
            try:
                if conn is None:
                    conn = self._reconnect()
                results.extend(self._attempt(conn, sealed, calls))
                return
            except Exception as error:
                if lost(conn, error):
                    self._conn = None
                    if conn is not None:
                        log.warning("the connection to the store broke: %s", _line(error))
                        conn.raw.close()
                        done = self._landed(calls)
                        if done is not None:
                            results.extend(done)
                            return
                    continue
                self._roll_back(conn)
                if isinstance(error, psycopg.errors.DivisionByZero):
                    raise Fenced("another worker owns this run now") from error
                if isinstance(error, psycopg.errors.InvalidArgumentForPowerFunction):
                    # It wrote nothing for so long that its row was cleaned away.
                    if self._conn is not None:
                        self._conn.raw.close()
                        self._conn = None
                elif not _in_the_way(error):
                    raise
                tries += 1
                if tries == _TRIES:
                    raise

    def _roll_back(self, conn: PostgresConnection | None) -> None:
        if conn is not None:
            try:
                conn.raw.execute("ROLLBACK", prepare=False)
            except psycopg.Error:
                conn.raw.close()
                self._conn = None

    def _attempt(
        self, conn: PostgresConnection, sealed: list[Sealed], calls: list[QueuedCall]
    ) -> list[tuple[Any, BaseException | None]]:
        results: list[tuple[Any, BaseException | None]] = []
        flows = all(isinstance(call, Pipelined) for call, *_ in calls) and not any(one.changes for one in sealed)
        conn.begun()
        with _flowing(conn):
            cursor = conn.raw.cursor()
            cursor.execute("BEGIN", prepare=False)
            cursor.execute(_NOTE_BATCH, (self._batch, self._id, self._generation), prepare=True)
            if calls or not _locks_itself(sealed):
                conn.lock_all(_touched(sealed, calls))
            if sealed:
                _write(cursor, sealed)
            if flows:
                write_changes(conn, sealed)
                run_calls(conn, calls, results)
                self._unsure = results
                cursor.execute("COMMIT", prepare=False)
        if not flows:
            write_changes(conn, sealed)
            run_calls(conn, calls, results)
            self._unsure = results
            conn.raw.execute("COMMIT", prepare=False)
        return results

    # -- when the server is away --------------------------------------------------------------------------

    def _connected(self) -> PostgresConnection:
        conn = connect(self._where, writes=True)
        # What is still on its way of an earlier generation is waited for here, or finds that it may not commit.
        row = conn.raw.execute(
            "INSERT INTO writers (id, generation, batch) VALUES (%s, 1, 0) "
            "ON CONFLICT (id) DO UPDATE SET generation=writers.generation+1 RETURNING generation, batch",
            (self._id,),
        ).fetchone()
        assert row is not None
        self._generation, self._committed = row
        for name in self._names:
            conn.keep(name)
        return conn

    def _reconnect(self) -> PostgresConnection:
        """Connects again, until patience ends: then each attempt fails at once."""
        if self._away_since is None:
            self._away_since = self._clock.monotonic()
        attempt = 0
        while True:
            try:
                self._conn = self._connected()
            except psycopg.OperationalError as error:
                if self._clock.monotonic() - self._away_since > self._where.patience:
                    raise StoreError("the store cannot be reached", why=error) from error
                time.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
                attempt += 1
            else:
                if attempt:
                    log.warning("the store is there again")
                self._away_since = None
                self._end_doubt()
                return self._conn

    def _landed(self, calls: list[QueuedCall]) -> list[tuple[Any, BaseException | None]] | None:
        """Returns the results of the transaction that was under way when the connection broke; None if it failed."""
        if self._unsure is None:
            return None  # COMMIT had not been sent
        try:
            self._reconnect()
        except StoreError as error:
            self._doubt = _Doubt(self._batch, calls, self._unsure)
            raise InDoubt(error.message, why=error.why) from error
        return self._unsure if self._committed == self._batch else None

    def _end_doubt(self) -> None:
        """The server is there again, and knows whether the transaction that was in doubt was committed."""
        doubt, self._doubt = self._doubt, None
        if doubt is None:
            return
        results = doubt.results
        if self._committed != doubt.batch:
            results = [(None, StoreError("the store cannot be reached"))] * len(doubt.calls)
        self._call_on_loop(self._settle_calls, doubt.calls, results)

    def _error_for(self, error: Exception) -> BaseException:
        if isinstance(error, psycopg.DataError):
            refusal = InvalidRequest(f"this cannot be kept: {_line(error)}")
            refusal.__cause__ = error
            return refusal
        if isinstance(error, psycopg.errors.ProgramLimitExceeded):
            refusal = InvalidRequest(f"something is too long to be kept: {_line(error)}")
            refusal.__cause__ = error
            return refusal
        return super()._error_for(error)

    def _is_hopeless(self, error: Exception) -> bool:
        if isinstance(error, psycopg.errors.ProgramLimitExceeded):
            return False
        return (isinstance(error, psycopg.OperationalError) and not _in_the_way(error)) or (
            isinstance(error, StoreError) and self._conn is None
        )


def _in_the_way(error: Exception) -> bool:
    return isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def _flowing(conn: PostgresConnection) -> Iterator[None]:
    """Sends statements without waiting for their results, unless those are fetched."""
    with conn.raw.pipeline() as pipeline:
        conn.flows = True
        try:
            yield
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                pipeline.sync()  # what was sent after a failure has failed too, which need not be told
            raise
        finally:
            conn.flows = False


def _locks_itself(sealed: list[Sealed]) -> bool:
    """Returns true if the batch touches one row and nothing else, by a statement that reads nothing else."""
    return len(sealed) == 1 and not sealed[0].changes and not _parks(sealed[0].row)


def _parks(row: RunRow) -> bool:
    return row.worker is None and not row.status.final and row.status is not Status.PENDING


def _touched(sealed: list[Sealed], calls: list[QueuedCall]) -> set[Lock]:
    """Collects the locks of everything that a batch is known to touch, so that all transactions lock in one order."""
    locks = set[Lock]()
    for one in sealed:
        locks.add(("run", one.row.id))
        for change in one.changes:
            match change:
                case PutInbox(run=run):
                    locks.add(("run", run))
                case CommitThread(thread=thread):
                    locks.add(("thread", thread))
                case PutCallback(run=run, url=url):
                    locks |= {("callbacks", run), ("receiver", receiver_of(url))}
                case PutQuestion() | CloseQuestion():
                    locks.add(COUNT)
                case CountDelegation(task=task):
                    locks.add(("task", task))
    for _, _, _, given, _ in calls:
        locks.update(given() if callable(given) else given)
    return locks


def _write(cursor: psycopg.Cursor[Any], batch: list[Sealed]) -> None:
    changed = [
        (
            row.id, row.epoch, one.expected_seq, row.status._value_, row.updated_at, row.worker, row.next_seq, row.head,
            row.crashes, row.ran, row.queued,
            _parks(row), row.wake_at,
        )
        for one in batch for row in (one.row,)
    ]  # fmt: skip
    columns = [list(column) for column in zip(*changed, strict=True)]
    cursor.execute(_UPDATE_RUNS, [*columns, len(changed)], prepare=True)
    events = [(e.run, e.seq, e.kind, e.time, e.hash, e.body) for one in batch for e in one.events]
    if events:
        cursor.execute(_INSERT_EVENTS, [list(column) for column in zip(*events, strict=True)], prepare=True)
