"""Runs as SQL: their rows, their logs and their inboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from ...model import hash_chain
from ...model.errors import AlreadyFinished, RunNotFound
from ...model.events import Event, body_decoder
from ...model.filters import RunFilter
from ...model.status import Status
from ..changes import Appender, Submission, Submitted
from ..rows import PAGE_BYTES, PAGE_ITEMS, EventRow, InboxItem, RunRow, Tombstone
from .admission import AdmitRun
from .claim_order import IN_LINE
from .database import Database
from .dialect import FINAL_SQL, RUN, RUN_COLUMNS, Connection, Lead, Lock, run_row
from .inbox import put_inbox
from .json_search import Judged, pages, select_runs
from .log_side_effects import delete_run
from .threads import delete_thread

_METADATA = RUN_COLUMNS.index("metadata")
EVENT = ", ".join(EventRow.__struct_fields__)
_EVENT_OF = ", ".join(f"e.{column}" for column in EventRow.__struct_fields__)


def event(row: EventRow) -> Event:
    if row.body is None:
        return Event(row.run, row.seq, row.time, row.hash, None, row.seq)
    return Event(row.run, row.seq, row.time, row.hash, body_decoder.decode(row.body), row.seq, len(row.body))


class SqlRuns:
    """Runs: writing and reading their logs."""

    def __init__(self, database: Database, documents_waiting: Callable[[], int]) -> None:
        self._database = database
        self._documents_waiting = documents_waiting

    def append(self, log: Appender) -> None:
        self._database.writer.append(log)

    def backlog(self) -> int:
        return self._database.writer.backlog() + self._documents_waiting()

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
        return self._database.writer.submit(AdmitRun(submission), then, locks, sealing)

    async def get(self, run: str) -> RunRow | None:
        row = await self._database.read_row(
            lambda conn: conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (run,)).fetchone()
        )
        return run_row(row) if row else None

    async def search(self, where: RunFilter) -> list[RunRow]:
        if not where.metadata:
            sql, args = select_runs(self._database.dialect, RUN, where)
            rows = await self._database.search(lambda conn: conn.execute(sql, args).fetchall())
        else:
            wanted = [Judged("metadata", _METADATA, where.metadata)]

            def page(lead: Lead, before: str | None, size: int) -> tuple[str, list[Any]]:
                return select_runs(
                    self._database.dialect, RUN, msgspec.structs.replace(where, limit=size, offset=0), lead, before
                )

            rows = await self._database.search(
                lambda conn: pages(conn, "runs", wanted, where.caller, where.limit, where.offset, page)
            )
        return [run_row(row) for row in rows]

    async def event_rows(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[EventRow]:
        rows = await self._database.read(
            lambda conn: conn.dialect.page(
                conn, "events", EVENT, "seq", "run=? AND seq>?", (run, after), limit, most_bytes
            )
        )
        return [EventRow(*row) for row in rows]

    async def events(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[Event]:
        return [event(row) for row in await self.event_rows(run, after, limit, most_bytes)]

    async def ends(self, run: str) -> list[Event]:
        end = f"SELECT * FROM (SELECT {EVENT} FROM events WHERE run=? ORDER BY seq {{}} LIMIT 1) AS {{}}"
        sql = f"{end.format('ASC', 'first')} UNION ALL {end.format('DESC', 'last')}"
        rows = await self._database.read(lambda conn: conn.execute(sql, (run, run)).fetchall())
        return sorted((event(EventRow(*row)) for row in rows), key=lambda event: event.seq)

    async def ends_of(self, runs: Sequence[str]) -> list[Event]:
        sql = (
            f"SELECT {_EVENT_OF} FROM runs r JOIN events e ON e.run=r.id "
            f"AND (e.seq=1 OR (e.seq=r.next_seq-1 AND r.status IN {FINAL_SQL})) "
            f"WHERE r.id IN ({','.join('?' * len(runs))})"
        )
        rows = await self._database.read(lambda conn: conn.execute(sql, runs).fetchall()) if runs else []
        return [event(EventRow(*row)) for row in rows]

    async def tombstone(self, run: str) -> Tombstone | None:
        """Returns the rest of a deleted run; None if there never was one, or it still exists."""
        sql = "SELECT run, agent, status, seq, head, deleted_at FROM tombstones WHERE run=?"
        row = await self._database.read(lambda conn: conn.execute(sql, (run,)).fetchone())
        if row is None:
            return None
        run, agent, status, seq, head, deleted_at = row
        return Tombstone(run, agent, Status(status), seq, head, deleted_at)

    async def known(self, run: str) -> Literal["run", "tombstone"] | None:
        """Returns the kind of an id: a run, or the tombstone of one."""
        sql = "SELECT 'run' FROM runs WHERE id=? UNION ALL SELECT 'tombstone' FROM tombstones WHERE run=?"
        row = await self._database.read(lambda conn: conn.execute(sql, (run, run)).fetchone())
        return row[0] if row is not None else None

    async def is_key_known(self, caller: str, key: str) -> bool:
        sql = "SELECT 1 FROM keys WHERE caller=? AND key=?"
        return await self._database.read(lambda conn: conn.execute(sql, (caller, key)).fetchone()) is not None

    async def delete(self, run: str, now: int, *, rollback: bool = False) -> list[str]:
        gone: list[str] = await self._database.write(
            lambda conn: delete_run(conn, run, now, rollback=rollback), [("run", run)]
        )
        return gone

    async def erase(self, run: str, seq: int) -> None:
        """Erases the body of an event. Its hash stays, so the chain still verifies."""

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

        await self._database.write(erase)

    async def count_pending(self, upto: int) -> int:
        """Counts the runs in line, up to a limit."""
        row = await self._database.read(
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

        result: tuple[int, str | None] = await self._database.write(put, [("run", run)])
        return result

    async def inbox(self, run: str, after: int = 0) -> list[InboxItem]:
        rows = await self._database.read(
            lambda conn: conn.dialect.page(
                conn, "inbox", "id, run, kind, body", "id", "run=? AND id>?", (run, after), PAGE_ITEMS, PAGE_BYTES
            )
        )
        return [InboxItem(*row) for row in rows]

    async def has_news(self, run: str, kind: str | None = None) -> bool:
        sql, args = "SELECT 1 FROM inbox WHERE run=?", [run]
        if kind is not None:
            sql, args = f"{sql} AND kind=?", [run, kind]
        return await self._database.read(lambda conn: conn.execute(f"{sql} LIMIT 1", args).fetchone()) is not None

    # -- upkeep -------------------------------------------------------------------------------------------

    async def expire(self, *, runs_before: int | None, threads_before: int | None, now: int, limit: int) -> list[str]:
        """Deletes runs and threads that are too old. Returns the deleted runs."""

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
                for (thread,) in rows:  # another process may have used it before it was locked
                    if conn.execute(f"{unused} AND id=?", (threads_before, thread)).fetchone() is not None:
                        delete_thread(conn, thread, now)
            return gone

        gone: list[str] = await self._database.write(sweep)
        return gone


def first_id(time: int) -> str:
    """Returns a text that sorts before every id made after this time: ids begin with their milliseconds."""
    digits = f"{max(time, 0) // 1000 + 1:012x}"
    return f"{digits[:8]}-{digits[8:]}"
