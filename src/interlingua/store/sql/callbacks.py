"""Callbacks as SQL, and the state of their receivers.

Every step costs the same however many callbacks wait. A row is `first` where no earlier one of its run is due; of
those, a receiver's next is found by index, and of each receiver it is noted when something is to be sent to it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.events import RunCreated, body_decoder
from ..changes import PutCallback
from ..rows import CallbackRow, Places, RunRow, Standing, receiver_of
from .database import Database
from .dialect import Connection

_CALLBACK = "id, run, url, format, status, time, state, attempts, next_at, error, receiver"
_WAITING = "state='due' AND first=1"
_FAILING = "(state='failed' OR (state='due' AND attempts>0))"
_GIVEN_UP_AT_ONCE = 500
_FORGOTTEN_AT_ONCE = 1000


class _Kept(msgspec.Struct, array_like=True):
    """A deleted run, as far as its callbacks need it."""

    row: RunRow
    created: bytes | None


_kept = msgspec.json.Decoder(_Kept)


def put_callback(conn: Connection, change: PutCallback, now: int) -> None:
    url = change.url.replace("\0", "%00")  # not every database keeps it; no address has it
    receiver = receiver_of(url)
    # The callbacks of its run decide whether it is the first, so these stay as they are until the commit.
    conn.lock(("callbacks", change.run), ("receiver", receiver))
    conn.execute(
        "INSERT INTO callbacks (run, url, format, status, time, state, next_at, receiver, first) "
        "SELECT ?,?,?,?,?,'due',0,?, "
        "CASE WHEN EXISTS (SELECT 1 FROM callbacks WHERE run=? AND state='due') THEN 0 ELSE 1 END",
        (change.run, url, change.format, change.status.value, now, receiver, change.run),
    )
    larger, smaller = conn.dialect.larger, conn.dialect.smaller
    conn.execute(
        "INSERT INTO receivers (receiver, standing, failures, rest_until, due_at, seen_at) VALUES (?,'new',0,0,?,?) "
        "ON CONFLICT (receiver) DO UPDATE SET due_at="
        f"{larger}(receivers.rest_until, {smaller}(COALESCE(receivers.due_at, excluded.due_at), excluded.due_at))",
        (receiver, now, now),
    )


def keep_run(conn: Connection, run: str) -> None:
    """Copies a run into its unsent callbacks, before it is deleted."""
    if conn.execute("SELECT 1 FROM callbacks WHERE run=? AND state='due'", (run,)).fetchone() is None:
        return
    columns = RunRow.__struct_fields__
    row = conn.execute(f"SELECT {', '.join(columns)} FROM runs WHERE id=?", (run,)).fetchone()
    created = conn.execute("SELECT body FROM events WHERE run=? AND seq=1", (run,)).fetchone()
    kept = msgspec.json.encode(_Kept(RunRow(*row), created[0] if created else None))
    conn.execute("UPDATE callbacks SET kept=? WHERE run=? AND state='due'", (kept, run))


def _count_on(conn: Connection, receiver: str) -> None:
    """Notes the time at which the receiver's next callback is due."""
    conn.execute(
        f"UPDATE receivers SET due_at=(SELECT {conn.dialect.larger}(receivers.rest_until, next_at) FROM callbacks "
        f"WHERE receiver=? AND {_WAITING} ORDER BY next_at LIMIT 1) WHERE receiver=?",
        (receiver, receiver),
    )


def _next_of(conn: Connection, run: str) -> None:
    """Makes the next callback of a run the first."""
    conn.execute(
        "UPDATE callbacks SET first=1 WHERE id=(SELECT MIN(id) FROM callbacks WHERE run=? AND state='due')", (run,)
    )


class SqlCallbacks:
    """Callbacks: claiming those that are due, and noting their outcome."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, now: int, lease_until: int, places: Places, *, busy: dict[str, int], per_receiver: int
    ) -> list[CallbackRow]:
        """Claims callbacks that are due, the oldest of each run. No other process gets them before `lease_until`.

        Receivers take turns. One that has answered well gets `per_receiver` at a time, less what is under way to it
        already (`busy`); any other gets one, and nothing more from anyone until that is settled.
        """

        def claim(conn: Connection) -> list[CallbackRow]:
            taken: list[CallbackRow] = []
            room: tuple[tuple[Standing, int], ...] = (
                ("good", places.all), ("new", places.new), ("failing", places.failing)
            )  # fmt: skip
            for standing, free in room:
                left = min(free, places.all - len(taken))
                if left <= 0:
                    continue
                due = conn.execute(
                    "SELECT receiver, failures FROM receivers WHERE standing=? AND due_at<=? ORDER BY due_at LIMIT ?",
                    (standing, now, left + len(busy)),
                ).fetchall()
                due = _still(conn, due, standing, now)
                for receiver, failures in due:
                    limit = per_receiver - busy.get(receiver, 0) if standing == "good" else 1
                    limit = min(limit, left)
                    rows = _take(conn, receiver, now, lease_until, limit)
                    for row in rows:
                        taken.append(CallbackRow(*row))
                        taken[-1].standing, taken[-1].failures = standing, failures
                    left -= len(rows)
                    under_way = busy.get(receiver, 0) + len(rows)
                    if rows or under_way:
                        full = standing != "good" or under_way >= per_receiver
                        conn.execute(
                            "UPDATE receivers SET rest_until=? WHERE receiver=?",
                            (lease_until if full else now, receiver),
                        )
                    _count_on(conn, receiver)
                    if left <= 0:
                        break
            return taken

        claimed: list[CallbackRow] = await self._database.write(claim)
        return claimed

    async def next_due(self) -> int | None:
        """Returns the time at which the next one is due, without those that wait for an earlier one of their run."""
        sql = "SELECT MIN(due_at) FROM receivers WHERE standing=?"
        times = await self._database.read(
            lambda conn: [conn.execute(sql, (standing,)).fetchone()[0] for standing in ("good", "new", "failing")]
        )
        return min((due for due in times if due is not None), default=None)

    async def settle(
        self, row: CallbackRow, *, state: str, attempts: int, next_at: int, error: str | None,
        standing: Standing, failures: int, rest_until: int, now: int,
    ) -> None:  # fmt: skip
        """Notes the outcome of a callback, and the state of its receiver."""

        why = error and error.replace("\0", "")

        def settle(conn: Connection) -> None:
            conn.lock(("callbacks", row.run), ("receiver", row.receiver))
            conn.execute(
                "UPDATE callbacks SET state=?, attempts=?, next_at=?, error=?, kept=CASE WHEN ?='due' THEN kept END "
                "WHERE id=?",
                (state, attempts, next_at, why, state, row.id),
            )
            if state != "due":
                _next_of(conn, row.run)
            conn.execute(
                "UPDATE receivers SET standing=?, failures=?, rest_until=?, seen_at=? WHERE receiver=?",
                (standing, failures, rest_until, now, row.receiver),
            )
            _count_on(conn, row.receiver)

        await self._database.write(settle, [("callbacks", row.run), ("receiver", row.receiver)])

    async def give_up(self, receiver: str, before: int, error: str) -> int:
        """Gives up some that have waited for this receiver since before a time. Returns their number, at last 0."""

        def give_up(conn: Connection) -> int:
            conn.lock(("receiver", receiver))
            rows = conn.execute(
                f"SELECT id, run FROM callbacks WHERE receiver=? AND {_WAITING} AND time<? LIMIT ?",
                (receiver, before, _GIVEN_UP_AT_ONCE),
            ).fetchall()
            conn.lock(*(("callbacks", run) for _, run in rows))
            for id_, run in rows:
                conn.execute("UPDATE callbacks SET state='failed', error=?, kept=NULL WHERE id=?", (error, id_))
                _next_of(conn, run)
            _count_on(conn, receiver)
            return len(rows)

        count: int = await self._database.write(give_up)
        return count

    async def deleted_run(self, callback: int) -> tuple[RunRow, RunCreated | None] | None:
        """Returns the run of a callback, if it was deleted meanwhile."""
        sql = "SELECT kept FROM callbacks WHERE id=?"
        row = await self._database.read(lambda conn: conn.execute(sql, (callback,)).fetchone())
        if row is None or row[0] is None:
            return None
        kept = _kept.decode(row[0])
        created = None if kept.created is None else body_decoder.decode(kept.created)
        return kept.row, created if isinstance(created, RunCreated) else None

    async def search(
        self, *, run: str | None = None, state: str | None = None, failing: bool = False, newest: bool = False,
        limit: int = 100,
    ) -> list[CallbackRow]:  # fmt: skip
        """Finds callbacks; `failing`: those whose last attempt failed, given up or not."""
        terms, args = ["1=1"], list[Any]()
        for column, value in (("run", run), ("state", state)):
            if value is not None:
                terms.append(f"{column}=?")
                args.append(value)
        if failing:
            terms.append(_FAILING)
        order = "id DESC" if newest else "id"
        sql = f"SELECT {_CALLBACK} FROM callbacks WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"
        rows = await self._database.read(lambda conn: conn.execute(sql, [*args, limit]).fetchall())
        return [CallbackRow(*row) for row in rows]

    async def counts(self) -> dict[str, int]:
        """Counts callbacks by state."""
        sql = "SELECT state, COUNT(*) FROM callbacks WHERE state<>'sent' GROUP BY state"
        return dict(await self._database.read(lambda conn: conn.execute(sql).fetchall()))

    async def retry(self, ids: list[int] | None, now: int) -> list[int]:
        """Makes failed callbacks due now, as if they had never been tried: all, or some. Returns their ids."""

        def retry(conn: Connection) -> list[int]:
            wanted = "" if ids is None else f" AND id IN ({','.join('?' * len(ids))})"
            rows = conn.execute(
                f"SELECT id, run, receiver FROM callbacks WHERE {_FAILING}{wanted} ORDER BY id", ids or []
            ).fetchall()
            conn.lock(*(("callbacks", run) for _, run, _ in rows), *(("receiver", name) for _, _, name in rows))
            conn.executemany(f"UPDATE callbacks SET state='due', attempts=0, next_at=? WHERE id=? AND {_FAILING}",
                             [(now, id_) for id_, _, _ in rows])  # fmt: skip
            for run in {run for _, run, _ in rows}:
                conn.execute("UPDATE callbacks SET first=0 WHERE run=? AND state='due'", (run,))
                _next_of(conn, run)
            for receiver in {receiver for _, _, receiver in rows}:
                conn.execute(
                    "INSERT INTO receivers (receiver, standing, failures, rest_until, seen_at) VALUES (?,'new',0,0,?) "
                    "ON CONFLICT (receiver) DO UPDATE SET failures=0, rest_until=0, "
                    "standing=CASE receivers.standing WHEN 'good' THEN 'good' ELSE 'new' END",
                    (receiver, now),
                )
                _count_on(conn, receiver)
            return [id_ for id_, _, _ in rows]

        done: list[int] = await self._database.write(retry)
        return done

    async def forget(self, before: int) -> None:
        """Deletes callbacks that ended before a time, some at a time: others write meanwhile."""

        def forget(conn: Connection) -> int:
            sent: int = conn.execute(
                "DELETE FROM callbacks WHERE id IN "
                "(SELECT id FROM callbacks WHERE state<>'due' AND time<? ORDER BY id LIMIT ?)",
                (before, _FORGOTTEN_AT_ONCE),
            ).rowcount
            receivers: int = conn.execute(
                "DELETE FROM receivers WHERE receiver IN (SELECT receiver FROM receivers "
                f"WHERE due_at IS NULL AND seen_at<? LIMIT ?{conn.dialect.skip_locked})",
                (before, _FORGOTTEN_AT_ONCE),
            ).rowcount
            return max(sent, receivers)

        while await self._database.write(forget) == _FORGOTTEN_AT_ONCE:
            pass


def _still(conn: Connection, due: list[Any], standing: Standing, now: int) -> list[Any]:
    """Locks the receivers that were due, and returns those that still are."""
    if not due or not conn.dialect.for_update:
        return due
    conn.lock(*(("receiver", name) for name, _ in due))
    term = conn.dialect.any_of("receiver")
    return conn.execute(
        f"SELECT receiver, failures FROM receivers WHERE standing=? AND due_at<=? AND {term} ORDER BY due_at",
        (standing, now, conn.dialect.many([name for name, _ in due])),
    ).fetchall()


def _take(conn: Connection, receiver: str, now: int, lease_until: int, limit: int) -> list[tuple[Any, ...]]:
    if limit <= 0:
        return []
    rows: list[tuple[Any, ...]] = conn.execute(
        f"SELECT {_CALLBACK} FROM callbacks WHERE receiver=? AND {_WAITING} AND next_at<=? "
        "ORDER BY next_at, id LIMIT ?",
        (receiver, now, limit),
    ).fetchall()
    conn.executemany("UPDATE callbacks SET next_at=? WHERE id=?", [(lease_until, row[0]) for row in rows])
    return rows
