"""Everything that a store does in SQL, whichever database it is.

What is left to each of them is how one comes to a connection, who writes, and how it is known who is alive. SQL that
concerns threads is in `sql_threads`, questions in `sql_questions`, and so on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import msgspec

from ...model import hash_chain, json_values
from ...model.errors import AlreadyFinished, InvalidRequest, RunNotFound, StoreError
from ...model.events import Event, body_decoder
from ...model.filters import RunFilter
from ...model.status import Status
from ..changes import Appender, Submission, Submitted
from ..rows import PAGE_BYTES, PAGE_ITEMS, EventRow, Found, InboxItem, RunRow, Tombstone, WorkerRow
from ..writer import Writer
from . import admission as transactions
from .admission import run_row
from .blocked import BlockedQueries
from .callbacks import CallbackQueries
from .claim_order import ANY_IN_LINE, IN_LINE, LATER
from .database import FINAL_SQL, RUN, RUN_COLUMNS, Call, Connection, Flowing, Lead, Lock, LockList, check_indexed
from .documents import ShelfQueries
from .identity import IdentityQueries
from .inbox import put_inbox
from .json_search import Judged, pages, select_runs
from .log_side_effects import delete_run
from .questions import QuestionQueries
from .records import RecordQueries
from .threads import ThreadQueries

T = TypeVar("T")

_METADATA = RUN_COLUMNS.index("metadata")
_EVENT = transactions.EVENT


def _last_of_page(table: str, key: str) -> str:
    """SQL for the last key of a page that is bounded in entries and in bytes, and holds at least one."""
    sizes = f"SELECT {key} AS place, coalesce(length(body),0) AS size FROM {table} WHERE run=? AND {key}>?"
    return (
        "SELECT max(place) FROM (SELECT place, sum(size) OVER (ORDER BY place) - size AS before "
        f"FROM ({sizes} ORDER BY {key} LIMIT ?) AS sizes) AS page WHERE before<?"
    )


_LAST_EVENT = _last_of_page("events", "seq")
_LAST_ITEM = _last_of_page("inbox", "id")


def _event(row: EventRow) -> Event:
    if row.body is None:
        return Event(row.run, row.seq, row.time, row.hash, None, row.seq)
    return Event(row.run, row.seq, row.time, row.hash, body_decoder.decode(row.body), row.seq, len(row.body))


class SQLStore(
    BlockedQueries, QuestionQueries, ThreadQueries, CallbackQueries, RecordQueries, IdentityQueries, ShelfQueries
):
    _writer: Writer

    def __init__(self) -> None:
        ShelfQueries.__init__(self)
        self.waits_for_server = False
        self.on_foreign_change: Callable[[], None] = lambda: None
        self.on_key_change: Callable[[str], None] = lambda id_: None
        self.shown = ""
        self.missed_after = 0.0
        self.on_lost: Callable[[str], None] = lambda worker: None

    def append(self, log: Appender) -> None:
        self._writer.append(log)

    def trouble(self) -> str | None:
        return None

    def backlog(self) -> int:
        return self._writer.backlog() + len(self._shelved)

    @property
    def batches(self) -> int:
        return self._writer.batches

    # -- reading and writing ------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="interlingua-reader")
        self._searchers = ThreadPoolExecutor(2, "interlingua-search", initializer=self._searching)

    async def _stop_threads(self) -> None:
        """Waits for reads that are under way. The event loop goes on: a read may need it to end."""
        for threads in (self._readers, self._searchers):
            await asyncio.to_thread(threads.shutdown)

    def _searching(self) -> None:
        """In every thread that only searches, before its first search."""

    def _with_connection(self, fn: Callable[[Connection], T]) -> T:
        """Call it in a thread that reads, with that thread's own connection."""
        raise NotImplementedError

    async def _read(self, fn: Callable[[Connection], T]) -> T:
        return await self._read_on(self._readers, fn)

    async def _point(self, fn: Callable[[Connection], T | None]) -> T | None:
        """One row that is small, by its key."""
        return await self._read(fn)

    async def _search(self, fn: Callable[[Connection], T]) -> T:
        return await self._read_on(self._searchers, fn)

    async def _read_on(self, threads: ThreadPoolExecutor, fn: Callable[[Connection], T]) -> T:
        try:
            return await self._loop.run_in_executor(threads, self._with_connection, fn)
        except UnicodeEncodeError:
            raise InvalidRequest("an id with half a character in it; ids are plain text") from None
        except (self.dialect.error, msgspec.DecodeError) as error:
            if (why := self.dialect.refusal(error)) is not None:
                raise InvalidRequest(why) from error
            raise StoreError("the store could not be read", why=error) from error

    def _write(
        self, fn: Call, locks: LockList = (), passes_by: Callable[[], bool] | None = None
    ) -> asyncio.Future[Any]:
        return self._writer.call(fn, locks=locks, passes_by=passes_by)

    # -- runs ---------------------------------------------------------------------------------------------

    def submit(
        self, submission: Submission, then: Callable[[Submitted], None] | None = None,
        sealing: Callable[[], None] | None = None,
    ) -> asyncio.Future[Submitted]:  # fmt: skip
        row, key = submission.row, submission.key
        locks = list[Lock]()
        if key is not None:
            locks.append(("key", " ".join(key)))
        if row.thread is not None:
            locks += [("turn", row.thread), ("thread", row.thread)]
        call = Flowing(lambda conn: transactions.submit(conn, submission))
        return self._writer.submit(call, then, locks, sealing)

    async def run(self, run: str) -> RunRow | None:
        row = await self._point(lambda conn: conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (run,)).fetchone())
        return run_row(row) if row else None

    async def runs(self, where: RunFilter) -> list[RunRow]:
        if not where.metadata:
            sql, args = select_runs(self.dialect, RUN, where)
            rows = await self._search(lambda conn: conn.execute(sql, args).fetchall())
        else:
            wanted = [Judged("metadata", _METADATA, where.metadata)]

            def page(lead: Lead, before: str | None, size: int) -> tuple[str, list[Any]]:
                return select_runs(
                    self.dialect, RUN, msgspec.structs.replace(where, limit=size, offset=0), lead, before
                )

            rows = await self._search(
                lambda conn: pages(conn, "runs", wanted, where.caller, where.limit, where.offset, page)
            )
        return [run_row(row) for row in rows]

    async def event_rows(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[EventRow]:
        rows = await self._read(
            lambda conn: conn.execute(
                f"SELECT {_EVENT} FROM events WHERE run=? AND seq>? AND seq<=({_LAST_EVENT}) ORDER BY seq",
                (run, after, run, after, limit, most_bytes),
            ).fetchall()
        )
        return [EventRow(*row) for row in rows]

    async def events(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[Event]:
        return [_event(row) for row in await self.event_rows(run, after, limit, most_bytes)]

    async def ends(self, run: str) -> list[Event]:
        one = f"SELECT * FROM (SELECT {_EVENT} FROM events WHERE run=? ORDER BY seq {{}} LIMIT 1) AS {{}}"
        sql = f"{one.format('ASC', 'first')} UNION ALL {one.format('DESC', 'last')}"
        rows = await self._read(lambda conn: conn.execute(sql, (run, run)).fetchall())
        return sorted((_event(EventRow(*row)) for row in rows), key=lambda event: event.seq)

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

    async def is_key_known(self, caller: str, key: str) -> bool:
        sql = "SELECT 1 FROM keys WHERE caller=? AND key=?"
        return await self._read(lambda conn: conn.execute(sql, (caller, key)).fetchone()) is not None

    async def delete_run(self, run: str, now: int, *, rollback: bool = False) -> list[str]:
        gone: list[str] = await self._write(lambda conn: delete_run(conn, run, now, rollback=rollback), [("run", run)])
        return gone

    async def erase_event(self, run: str, seq: int) -> None:
        """Forget a body. Its hash stays, so the chain still verifies."""

        def erase(conn: Connection) -> None:
            row = conn.execute(
                f"SELECT body FROM events WHERE run=? AND seq=?{conn.dialect.for_update}", (run, seq)
            ).fetchone()
            if row is None:
                raise RunNotFound(f"run {run} has no event {seq}")
            if row[0] is not None:
                conn.execute(
                    "UPDATE events SET body=NULL, erased=? WHERE run=? AND seq=?",
                    (hash_chain.body_hash(row[0]), run, seq),
                )

        await self._write(erase)

    async def count_pending(self, upto: int) -> int:
        """How many runs are in line."""
        row = await self._read(
            lambda conn: conn.execute(
                f"SELECT count(*) FROM (SELECT 1 FROM runs WHERE {IN_LINE} LIMIT ?) AS lined", (upto,)
            ).fetchone()
        )
        return int(row[0])

    # -- inboxes ------------------------------------------------------------------------------------------

    async def deliver(self, run: str, kind: str, body: bytes, now: int) -> tuple[int, str | None]:
        def put(conn: Connection) -> tuple[int, str | None]:
            row = conn.execute(
                f"SELECT worker, status FROM runs WHERE id=?{conn.dialect.for_update}", (run,)
            ).fetchone()
            if row is None:
                raise RunNotFound(f"there is no run {run}")
            if Status(row[1]).final:
                raise AlreadyFinished(f"run {run} has already {row[1].replace('_', ' ')}")
            return put_inbox(conn, run, kind, body, now), row[0]

        result: tuple[int, str | None] = await self._write(put, [("run", run)])
        return result

    async def inbox(self, run: str, after: int = 0) -> list[InboxItem]:
        sql = f"SELECT id, run, kind, body FROM inbox WHERE run=? AND id>? AND id<=({_LAST_ITEM}) ORDER BY id"
        args = (run, after, run, after, PAGE_ITEMS, PAGE_BYTES)
        rows = await self._read(lambda conn: conn.execute(sql, args).fetchall())
        return [InboxItem(*row) for row in rows]

    async def has_news(self, run: str, kind: str | None = None) -> bool:
        sql, args = "SELECT 1 FROM inbox WHERE run=?", [run]
        if kind is not None:
            sql, args = f"{sql} AND kind=?", [run, kind]
        return await self._read(lambda conn: conn.execute(f"{sql} LIMIT 1", args).fetchone()) is not None

    async def runs_with_news(self, worker: str) -> list[str]:
        sql = "SELECT id FROM runs WHERE worker=? AND EXISTS (SELECT 1 FROM inbox WHERE inbox.run=runs.id)"
        rows = await self._read(lambda conn: conn.execute(sql, (worker,)).fetchall())
        return [row[0] for row in rows]

    # -- workers ------------------------------------------------------------------------------------------

    async def workers(self) -> list[WorkerRow]:
        rows = await self._read(
            lambda conn: conn.execute("SELECT id, host, pid, started_at, queues FROM workers").fetchall()
        )
        return [WorkerRow(row[0], row[1], row[2], row[3], json_values.decode(row[4])) for row in rows]

    async def serve(self, worker: str, queues: list[str]) -> None:
        await self._write(
            lambda conn: conn.execute("UPDATE workers SET queues=? WHERE id=?", (json_values.encode(queues), worker)),
            [("worker", worker)],
        )

    async def claim(
        self, worker: str, agents: list[str], now: int, limit: int, *,
        at_most: Sequence[tuple[Sequence[str], int]] = (), found: dict[str, Found] | None = None,
    ) -> list[RunRow]:  # fmt: skip
        """Take runs that are due. Of the suspects, one at a time."""
        contents = transactions.Contents() if found is not None else None

        def take(conn: Connection) -> list[RunRow]:
            if not self._lives(conn, worker):
                return []
            return transactions.claim(conn, worker, agents, now, limit, at_most, contents)

        rows: list[RunRow] = await self._write(Flowing(take))
        if found is not None and contents is not None:
            for event in sorted(map(_event, contents.events), key=lambda event: event.seq):
                found.setdefault(event.run, Found([], event.run in contents.news)).events.append(event)
        return rows

    def _lives(self, conn: Connection, worker: str) -> bool:
        """Whether a worker may take something: one that says so lives, where nothing else is known."""
        return True

    async def claim_one(self, worker: str, run: str) -> RunRow | None:
        """Take a run that nobody owns, whatever its agent: to end it."""
        row: RunRow | None = await self._write(
            lambda conn: transactions.take(conn, worker, run) if self._lives(conn, worker) else None, [("run", run)]
        )
        return row

    async def next_wake(self, agents: list[str]) -> int | None:
        """When a run of one of these is due: 0 where one is."""
        one_of_these = self.dialect.each_of("mine")
        row = await self._read(
            lambda conn: conn.execute(
                f"SELECT min(CASE WHEN {ANY_IN_LINE} THEN 0 ELSE "
                f"(SELECT wake_at FROM runs WHERE {LATER} AND queue=mine.value ORDER BY wake_at LIMIT 1) END) "
                f"FROM {one_of_these}",
                (conn.dialect.many(agents),),
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
                [(int(crashed), run, worker) for run in runs],
            ),
            [("run", run) for run in runs],
        )

    # -- foreign ids --------------------------------------------------------------------------------------

    async def link(self, kind: str, foreign: str, target: str) -> str:
        """What a foreign id means; the first meaning stays. Returns it."""
        check_indexed(kind, foreign)

        def put(conn: Connection) -> str:
            conn.execute(
                "INSERT INTO links (kind, foreign_id, target) VALUES (?,?,?) ON CONFLICT DO NOTHING",
                (kind, foreign, target),
            )
            found = conn.execute("SELECT target FROM links WHERE kind=? AND foreign_id=?", (kind, foreign)).fetchone()
            return str(found[0])

        result: str = await self._write(put)
        return result

    async def linked(self, kind: str, foreign: str) -> str | None:
        row = await self._point(
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

        def sweep(conn: Connection) -> list[str]:
            gone: list[str] = []
            if runs_before is not None:
                rows = conn.execute(
                    f"SELECT id FROM runs WHERE status IN {FINAL_SQL} AND id<? AND updated_at<? AND parent IS NULL "
                    f"ORDER BY id LIMIT ?{conn.dialect.skip_locked}",
                    (first_id(runs_before), runs_before, limit),
                ).fetchall()
                for (run,) in rows:
                    gone.extend(delete_run(conn, run, now))
            if threads_before is not None:
                unused = (
                    "SELECT id FROM threads t WHERE active IS NULL AND updated_at<? AND NOT EXISTS "
                    f"(SELECT 1 FROM runs r WHERE r.thread=t.id AND r.status NOT IN {FINAL_SQL})"
                )
                rows = conn.execute(f"{unused} ORDER BY updated_at LIMIT ?", (threads_before, limit)).fetchall()
                conn.lock(*(("thread", thread) for (thread,) in rows))
                for (thread,) in rows:  # somebody may have used it before it was locked
                    if conn.execute(f"{unused} AND id=?", (threads_before, thread)).fetchone() is not None:
                        self._delete_thread(conn, thread, now)
            return gone

        gone: list[str] = await self._write(sweep)
        return gone


def first_id(time: int) -> str:
    """What every id comes after that was made later than at this time: they begin with their milliseconds."""
    digits = f"{max(time, 0) // 1000 + 1:012x}"
    return f"{digits[:8]}-{digits[8:]}"
