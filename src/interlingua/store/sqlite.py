"""The default store: one SQLite file, shared by as many processes of one machine as like.

WAL and synchronous=FULL: what was acknowledged survives `kill -9` and power loss. Reads run on their own
connections and never wait for the writer. SQL that concerns threads is in `sqlite_threads`, questions in
`sqlite_questions`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..model import chain, values
from ..model.card import AgentCard
from ..model.errors import (
    AlreadyFinished,
    Conflict,
    InvalidRequest,
    RunNotFound,
    StoreError,
)
from ..model.events import Event, body_decoder
from ..model.status import Status
from . import sqlite_transactions as transactions
from .base import (
    Appender,
    EventRow,
    InboxItem,
    RunFilter,
    RunRow,
    Submission,
    Submitted,
    Tombstone,
    WorkerRow,
    receiver_of,
)
from .liveness import Locks
from .sqlite_callbacks import CallbackQueries
from .sqlite_changes import delete_run
from .sqlite_inbox import FINAL_SQL, put_inbox
from .sqlite_query import json_contains, select_runs
from .sqlite_questions import QuestionQueries
from .sqlite_records import RecordQueries
from .sqlite_shelf import ShelfQueries
from .sqlite_threads import ThreadQueries
from .sqlite_transactions import RUN, run_row
from .sqlite_writer import Call, Writer, begin, connect

T = TypeVar("T")

_cards = msgspec.json.Decoder(AgentCard)


class SQLiteStore(QuestionQueries, ThreadQueries, CallbackQueries, RecordQueries, ShelfQueries):
    def __init__(self, path: Path | str) -> None:
        ShelfQueries.__init__(self)
        self.path = Path(path)
        self.on_foreign_change: Callable[[], None] = lambda: None
        self._locks = Locks(self.path.with_name(self.path.name + ".workers"))
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._at_once: sqlite3.Connection | None = None  # for the event loop itself

    # -- life ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="interlingua-reader")
        self._searchers = ThreadPoolExecutor(2, thread_name_prefix="interlingua-search")
        await self._loop.run_in_executor(self._readers, migrate, self.path)
        self._writer = Writer(self.path, self._loop, lambda: self.on_foreign_change())
        self._at_once = connect(self.path, read_only=True)
        self._at_once.execute("PRAGMA busy_timeout=0")
        self._connections.append(self._at_once)

    async def close(self) -> None:
        await self._writer.close()
        for worker in list(self._locks._held):
            self._locks.release(worker)
        self._readers.shutdown(wait=True)
        self._searchers.shutdown(wait=True)
        for conn in self._connections:
            conn.close()
        self._connections.clear()
        self._at_once = None

    def append(self, log: Appender) -> None:
        self._writer.append(log)

    def backlog(self) -> int:
        return self._writer.backlog() + len(self._shelved)

    @property
    def batches(self) -> int:
        return self._writer.batches

    def _write(self, fn: Call) -> asyncio.Future[Any]:
        return self._writer.call(fn)

    async def _read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        return await self._read_on(self._readers, fn)

    async def _search(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """As `_read`, for what may have to look at every row: searches wait for each other, and nobody for them."""
        return await self._read_on(self._searchers, fn)

    async def _read_on(self, threads: ThreadPoolExecutor, fn: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._loop.run_in_executor(threads, self._with_connection, fn)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise StoreError(f"the store could not be read: {error}") from error
        except UnicodeEncodeError:
            raise InvalidRequest("an id with half a character in it; ids are plain text") from None

    def _with_connection(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        conn = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = connect(self.path, read_only=True)
            conn.create_function("json_contains", 2, json_contains, deterministic=True)
            self._connections.append(conn)
        return fn(conn)

    # -- runs ---------------------------------------------------------------------------------------------

    def key_is_free(self, caller: str, key: str) -> bool:
        # A look at one page of an index, and nobody who writes holds up who reads: going to a thread and back takes
        # longer. Where it would have to wait all the same, it is not told.
        if self._at_once is None:
            return False
        try:
            found = self._at_once.execute("SELECT 1 FROM keys WHERE caller=? AND key=?", (caller, key)).fetchone()
        except (sqlite3.Error, UnicodeEncodeError):
            return False
        return found is None

    async def submit(self, submission: Submission, then: Callable[[Submitted], None] | None = None) -> Submitted:
        result: Submitted = await self._writer.call(lambda conn: transactions.submit(conn, submission), then)
        return result

    async def run(self, run: str) -> RunRow | None:
        row = await self._read(lambda conn: conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (run,)).fetchone())
        return run_row(row) if row else None

    async def runs(self, where: RunFilter) -> list[RunRow]:
        sql, args = select_runs(RUN, where)
        rows = await self._search(lambda conn: conn.execute(sql, args).fetchall())
        return [run_row(row) for row in rows]

    async def event_rows(self, run: str, after: int, limit: int) -> list[EventRow]:
        rows = await self._read(
            lambda conn: conn.execute(
                "SELECT run, seq, kind, time, hash, body, erased FROM events "
                "WHERE run=? AND seq>? ORDER BY seq LIMIT ?",
                (run, after, limit),
            ).fetchall()
        )
        return [EventRow(*row) for row in rows]

    async def events(self, run: str, after: int, limit: int) -> list[Event]:
        return [
            Event(r.run, r.seq, r.time, r.hash, None, r.seq)
            if r.body is None
            else Event(r.run, r.seq, r.time, r.hash, body_decoder.decode(r.body), r.seq, len(r.body))
            for r in await self.event_rows(run, after, limit)
        ]

    async def last_event(self, run: str) -> Event | None:
        row = await self._read(
            lambda conn: conn.execute(
                "SELECT run, seq, time, hash, body FROM events WHERE run=? ORDER BY seq DESC LIMIT 1", (run,)
            ).fetchone()
        )
        if row is None:
            return None
        run, seq, stamp, digest, body = row
        return Event(run, seq, stamp, digest, None if body is None else body_decoder.decode(body), seq)

    async def tombstone(self, run: str) -> Tombstone | None:
        """What is left of a run that was deleted; None where there never was one, or it is still there."""
        sql = "SELECT run, agent, status, seq, head, deleted_at FROM tombstones WHERE run=?"
        found = await self._read(lambda conn: conn.execute(sql, (run,)).fetchone())
        if found is None:
            return None
        run, agent, status, seq, head, deleted_at = found
        return Tombstone(run, agent, Status(status), seq, head, deleted_at)

    async def known(self, run: str) -> Literal["run", "tombstone"] | None:
        """Whether there is such a run, or was one."""
        sql = "SELECT 'run' FROM runs WHERE id=? UNION ALL SELECT 'tombstone' FROM tombstones WHERE run=?"
        found = await self._read(lambda conn: conn.execute(sql, (run, run)).fetchone())
        return found[0] if found is not None else None

    async def delete_run(self, run: str, now: int, *, rollback: bool = False) -> list[str]:
        gone: list[str] = await self._write(lambda conn: delete_run(conn, run, now, rollback=rollback))
        return gone

    async def erase_event(self, run: str, seq: int) -> None:
        """Forget a body. Its hash stays, so the chain still verifies."""

        def erase(conn: sqlite3.Connection) -> None:
            row = conn.execute("SELECT body FROM events WHERE run=? AND seq=?", (run, seq)).fetchone()
            if row is None:
                raise RunNotFound(f"run {run} has no event {seq}")
            if row[0] is not None:
                conn.execute(
                    "UPDATE events SET body=NULL, erased=? WHERE run=? AND seq=?", (chain.body_hash(row[0]), run, seq)
                )

        await self._write(erase)

    async def count_pending(self, now: int, upto: int) -> int:
        """How many runs wait though their time has come."""
        row = await self._read(
            lambda conn: conn.execute(
                "SELECT count(*) FROM (SELECT 1 FROM runs WHERE worker IS NULL AND wake_at<=? LIMIT ?)",
                (now, upto),
            ).fetchone()
        )
        return int(row[0])

    # -- inboxes ------------------------------------------------------------------------------------------

    async def deliver(self, run: str, kind: str, body: bytes, now: int) -> tuple[int, str | None]:
        def put(conn: sqlite3.Connection) -> tuple[int, str | None]:
            row = conn.execute("SELECT worker, status FROM runs WHERE id=?", (run,)).fetchone()
            if row is None:
                raise RunNotFound(f"there is no run {run}")
            if Status(row[1]).final:
                raise AlreadyFinished(f"run {run} has already {row[1].replace('_', ' ')}")
            return put_inbox(conn, run, kind, body, now), row[0]

        result: tuple[int, str | None] = await self._write(put)
        return result

    async def inbox(self, *, run: str | None = None, worker: str | None = None) -> list[InboxItem]:
        if run is not None:
            sql, arg = "SELECT id, run, kind, body FROM inbox WHERE run=? ORDER BY id", run
        else:
            sql = (
                "SELECT i.id, i.run, i.kind, i.body FROM inbox i JOIN runs r ON r.id=i.run "
                "WHERE r.worker=? ORDER BY i.id"
            )
            arg = worker or ""
        rows = await self._read(lambda conn: conn.execute(sql, (arg,)).fetchall())
        return [InboxItem(*row) for row in rows]

    # -- workers ------------------------------------------------------------------------------------------

    async def enter(self, worker: WorkerRow) -> None:
        self._locks.hold(worker.id)
        await self._write(
            lambda conn: conn.execute(
                "INSERT OR REPLACE INTO workers (id, host, pid, started_at, agents) VALUES (?,?,?,?,?)",
                (worker.id, worker.host, worker.pid, worker.started_at, values.encode(worker.agents)),
            )
        )

    async def leave(self, worker: str) -> None:
        def go(conn: sqlite3.Connection) -> None:
            conn.execute("UPDATE runs SET worker=NULL, wake_at=0, epoch=epoch+1 WHERE worker=?", (worker,))
            conn.execute("DELETE FROM workers WHERE id=?", (worker,))

        await self._write(go)
        self._locks.release(worker)

    async def workers(self) -> list[WorkerRow]:
        rows = await self._read(
            lambda conn: conn.execute("SELECT id, host, pid, started_at, agents FROM workers").fetchall()
        )
        return [WorkerRow(row[0], row[1], row[2], row[3], values.decode(row[4])) for row in rows]

    async def bury(self) -> list[str]:
        """Hand back the runs of workers that died. Returns those workers."""
        rows = await self._read(
            lambda conn: conn.execute(
                "SELECT id FROM workers UNION SELECT DISTINCT worker FROM runs WHERE worker IS NOT NULL"
            ).fetchall()
        )
        dead = [row[0] for row in rows if self._locks.dead(row[0])]
        if not dead:
            return []

        def hand_back(conn: sqlite3.Connection) -> None:
            for worker in dead:
                # A run that only waited did not bring its process down.
                conn.execute(
                    "UPDATE runs SET worker=NULL, wake_at=0, epoch=epoch+1, crashes=crashes+(status<>'waiting') "
                    "WHERE worker=?",
                    (worker,),
                )
                conn.execute("DELETE FROM workers WHERE id=?", (worker,))

        await self._write(hand_back)
        for worker in dead:
            self._locks.sweep(worker)
        return dead

    async def claim(
        self, worker: str, agents: list[str], now: int, limit: int, *, suspects: bool = True
    ) -> list[RunRow]:
        """Take runs that are due. Of those that were there at several crashes at most one, or none."""
        rows: list[RunRow] = await self._write(
            lambda conn: transactions.claim(conn, worker, agents, now, limit, suspects)
        )
        return rows

    async def claim_one(self, worker: str, run: str) -> RunRow | None:
        """Take a run that nobody owns, whatever its agent: to end it."""
        row: RunRow | None = await self._write(lambda conn: transactions.take(conn, worker, run))
        return row

    async def next_wake(self, agents: list[str]) -> int | None:
        row = await self._read(
            lambda conn: conn.execute(
                "SELECT wake_at FROM runs WHERE worker IS NULL AND wake_at IS NOT NULL "
                "AND agent || '@' || version IN (SELECT value FROM json_each(?)) ORDER BY wake_at LIMIT 1",
                (values.encode(agents).decode(),),
            ).fetchone()
        )
        return None if row is None else row[0]

    async def owned(self, worker: str) -> list[str]:
        """The runs that a worker owns on paper."""
        rows = await self._read(lambda conn: conn.execute("SELECT id FROM runs WHERE worker=?", (worker,)).fetchall())
        return [row[0] for row in rows]

    async def release(self, worker: str, runs: list[str], *, crashed: bool = False) -> None:
        """Hand runs back. Whoever still thinks that it owns one cannot write any more."""
        await self._write(
            lambda conn: conn.executemany(
                "UPDATE runs SET worker=NULL, wake_at=0, epoch=epoch+1, crashes=crashes+? WHERE id=? AND worker=?",
                [(crashed, run, worker) for run in runs],
            )
        )

    # -- cards --------------------------------------------------------------------------------------------

    async def put_cards(self, cards: list[AgentCard]) -> None:
        await self._write(
            lambda conn: conn.executemany(
                "INSERT INTO cards (name, version, card) VALUES (?,?,?) "
                "ON CONFLICT (name, version) DO UPDATE SET card=excluded.card WHERE card<>excluded.card",
                [(card.name, card.version, values.encode(card)) for card in cards],
            )
        )

    async def card(self, name: str, version: str | None) -> AgentCard | None:
        found = [card for card in await self.cards() if card.name == name and version in (None, card.version)]
        return found[-1] if found else None

    async def cards(self) -> list[AgentCard]:
        rows = await self._read(lambda conn: conn.execute("SELECT card FROM cards ORDER BY name, version").fetchall())
        return [_cards.decode(row[0]) for row in rows]

    # -- foreign ids --------------------------------------------------------------------------------------

    async def link(self, kind: str, foreign: str, target: str) -> str:
        """What a foreign id means; the first meaning stays. Returns it."""

        def put(conn: sqlite3.Connection) -> str:
            conn.execute(
                "INSERT OR IGNORE INTO links (kind, foreign_id, target) VALUES (?,?,?)",
                (kind, foreign, target),
            )
            found = conn.execute("SELECT target FROM links WHERE kind=? AND foreign_id=?", (kind, foreign)).fetchone()
            return str(found[0])

        result: str = await self._write(put)
        return result

    async def linked(self, kind: str, foreign: str) -> str | None:
        row = await self._read(
            lambda conn: conn.execute(
                "SELECT target FROM links WHERE kind=? AND foreign_id=?", (kind, foreign)
            ).fetchone()
        )
        return row[0] if row else None

    async def unlink(self, kind: str, foreign: str) -> None:
        await self._write(lambda conn: conn.execute("DELETE FROM links WHERE kind=? AND foreign_id=?", (kind, foreign)))

    # -- upkeep -------------------------------------------------------------------------------------------

    async def expire(self, *, runs_before: int | None, threads_before: int | None, now: int, limit: int) -> list[str]:
        """Delete what is older than it may be. Returns the runs that are gone."""

        def sweep(conn: sqlite3.Connection) -> list[str]:
            gone: list[str] = []
            if runs_before is not None:
                rows = conn.execute(
                    f"SELECT id FROM runs WHERE status IN {FINAL_SQL} AND updated_at<? AND parent IS NULL LIMIT ?",
                    (runs_before, limit),
                ).fetchall()
                for (run,) in rows:
                    gone.extend(delete_run(conn, run, now))
            if threads_before is not None:
                rows = conn.execute(
                    "SELECT id FROM threads t WHERE active IS NULL AND updated_at<? AND NOT EXISTS "
                    f"(SELECT 1 FROM runs r WHERE r.thread=t.id AND r.status NOT IN {FINAL_SQL}) "
                    "ORDER BY updated_at LIMIT ?",
                    (threads_before, limit),
                ).fetchall()
                for (thread,) in rows:
                    self._delete_thread(conn, thread, now)
            return gone

        gone: list[str] = await self._write(sweep)
        return gone


def migrate(path: Path) -> None:
    """Bring the file to the newest schema. Safe to call from many processes at once."""
    steps = sorted(
        (
            entry
            for entry in resources.files(__package__).joinpath("migrations/sqlite").iterdir()
            if entry.name.endswith(".sql")
        ),
        key=lambda entry: entry.name,
    )
    conn = connect(path)
    conn.create_function("receiver_of", 1, receiver_of, deterministic=True)
    try:
        path.chmod(0o600)
        begin(conn)
        try:
            done = conn.execute("PRAGMA user_version").fetchone()[0]
            if done > len(steps):
                raise Conflict(f"{path} was written by a newer version of Interlingua (schema {done}); upgrade first")
            for step in steps[done:]:
                for statement in step.read_text().split(";\n"):
                    if statement.strip():
                        conn.execute(statement)
            conn.execute(f"PRAGMA user_version={len(steps)}")
            conn.execute("COMMIT")
        except BaseException:
            conn.execute("ROLLBACK")
            raise
    finally:
        conn.close()
