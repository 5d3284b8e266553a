"""Threads, as SQL: state, checkpoints, messages, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ...model import json_values
from ...model.content import Message
from ...model.errors import CheckpointNotFound, Conflict, ThreadBusy, ThreadExists, ThreadNotFound
from ...model.filters import ThreadFilter
from ...model.run import Checkpoint, RunRequest, Thread, ThreadStatus
from ..rows import RunRow
from .database import Database
from .dialect import Connection, Lead, insert
from .json_search import Judged, json_matches, pages, select
from .log_side_effects import add_messages, set_json

# The status comes from the run that has the thread: a thread knows no status of its own.
_THREAD = (
    "t.id, t.caller, t.created_at, t.updated_at, t.version, t.checkpoint, t.state, t.active, t.metadata, "
    "CASE WHEN t.active IS NULL THEN CASE WHEN t.failed THEN 'error' ELSE 'idle' END "
    "WHEN (SELECT status FROM runs r WHERE r.id=t.active)='waiting' THEN 'interrupted' ELSE 'busy' END"
)
# What also holds where a thread has a status, and is in an index.
_HOLDS = {
    "idle": "active IS NULL AND NOT failed",
    "error": "active IS NULL AND failed",
    "busy": "active IS NOT NULL",
    "interrupted": "active IS NOT NULL",
}
_INDEX = {"error": "threads_failed", "busy": "threads_active", "interrupted": "threads_active"}
_STATE, _METADATA = 6, 8  # among these
_SMALL = 32 * 1024  # bytes
_CHECKPOINT = "id, thread, version, state, created_at, messages, run, metadata"
_message = msgspec.json.Decoder(Message)


def _thread(row: tuple[Any, ...]) -> Thread:
    status: ThreadStatus = row[9]
    return Thread(
        id=row[0], caller=row[1], created_at=row[2], updated_at=row[3], version=row[4], checkpoint=row[5],
        values=json_values.decode(row[6]), active=row[7], metadata=json_values.decode(row[8]), status=status,
    )  # fmt: skip


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    return Checkpoint(
        row[0], row[1], row[2], json_values.decode(row[3]), row[4], row[5], row[6], json_values.decode(row[7])
    )


def _find(conn: Connection, thread: str) -> Thread:
    row = conn.execute(f"SELECT {_THREAD} FROM threads t WHERE t.id=?", (thread,)).fetchone()
    if row is None:
        raise ThreadNotFound(f"there is no thread {thread}")
    return _thread(row)


def small_thread(conn: Connection, thread: str) -> Thread | None:
    """Reads a thread, if its state and metadata are small."""
    sql = f"SELECT {_THREAD} FROM threads t WHERE t.id=? AND length(t.state)+length(t.metadata)<?"
    row = conn.execute(sql, (thread, _SMALL)).fetchone()
    return _thread(row) if row is not None else None


def _put(conn: Connection, t: Thread) -> None:
    state, metadata = json_values.encode(t.values), json_values.encode(t.metadata)
    columns = ["id", "caller", "created_at", "updated_at", "version", "checkpoint", "state", "metadata"]
    row = [t.id, t.caller, t.created_at, t.updated_at, t.version, t.checkpoint, state, metadata]
    for column, json in (("state", state), ("metadata", metadata)):
        more, given = conn.dialect.beside(column, json, t.caller)
        columns += more
        row += given
    insert(conn, "threads", columns, [row])
    conn.dialect.index_json(
        conn, "threads", t.id, before={}, after={"state": state, "metadata": metadata}, caller=t.caller
    )


def take_thread(conn: Connection, row: RunRow, request: RunRequest, now: int) -> tuple[Thread, str | None]:
    """Gives the thread to a new run, or puts the run in line. Returns the thread, and a run that must give way."""
    assert row.thread is not None
    lock_thread(conn, row.thread)
    try:
        thread = _find(conn, row.thread)
    except ThreadNotFound:
        if not request.create_thread:
            raise
        thread = Thread(row.thread, "idle", now, now, row.caller)
        _put(conn, thread)
    if row.wake_at != 0:
        return thread, None  # delayed: it takes its turn when its time has come
    if thread.active is None:
        conn.execute("UPDATE threads SET active=?, failed=?, updated_at=? WHERE id=?", (row.id, False, now, thread.id))
        return thread, None
    if request.when_busy == "reject":
        raise ThreadBusy(
            f"thread {thread.id} is busy with run {thread.active}; wait for it, or submit with when_busy="
            '"enqueue", "interrupt" or "rollback"'
        )
    row.wake_at = None
    row.queued = place_in_line(conn, thread.id, request.when_busy, now)
    return thread, None if request.when_busy == "enqueue" else thread.active


def lock_thread(conn: Connection, thread: str) -> None:
    """Locks the turns of a thread until the transaction ends."""
    # The run that has it may have to give way; and the end of a run locks its row before its thread.
    conn.lock(("turn", thread), ("thread", thread))


def place_in_line(conn: Connection, thread: str, when_busy: str, now: int) -> int:
    """Returns a place at the end, or at the front for a run that makes the one before it give way."""
    if when_busy == "enqueue":
        return now
    front = conn.execute("SELECT MIN(queued) FROM runs WHERE thread=? AND queued IS NOT NULL", (thread,)).fetchone()[0]
    return min(now, (front or now) - 1)


def delete_thread(conn: Connection, thread: str, now: int) -> None:
    conn.lock(("thread", thread))
    existing = _find(conn, thread)
    if existing.active is not None:
        raise Conflict(f"thread {thread} is busy with run {existing.active}; cancel it before deleting the thread")
    pending = conn.execute(
        "SELECT id FROM runs WHERE thread=? AND status NOT IN ('succeeded','failed','cancelled','timed_out')",
        (thread,),
    ).fetchone()
    if pending is not None:
        raise Conflict(f"run {pending[0]} is still to run on thread {thread}; cancel it first")
    if conn.dialect.indexes_json:
        json = conn.execute("SELECT state, metadata FROM threads WHERE id=?", (thread,)).fetchone()
        before = {"state": json[0], "metadata": json[1]}
        conn.dialect.index_json(conn, "threads", thread, before=before, after={}, caller=existing.caller)
    for table, column in (("checkpoints", "thread"), ("messages", "thread"), ("threads", "id")):
        conn.execute(f"DELETE FROM {table} WHERE {column}=?", (thread,))
    conn.execute("DELETE FROM links WHERE target=?", (thread,))


class SqlThreads:
    """Threads: their values, checkpoints and messages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, thread: Thread, *, if_exists: Literal["raise", "keep"]) -> Thread:
        def create(conn: Connection) -> Thread:
            conn.lock(("thread", thread.id))
            try:
                existing = _find(conn, thread.id)
            except ThreadNotFound:
                _put(conn, thread)
                return thread
            if if_exists == "raise":
                raise ThreadExists(f"there is a thread {thread.id} already")
            return existing

        result: Thread = await self._database.write(create, [("thread", thread.id)])
        return result

    async def get(self, thread: str) -> Thread | None:
        if (small := self._database.look(lambda conn: small_thread(conn, thread))) is not None:
            return small
        row = await self._database.read(
            lambda conn: conn.execute(f"SELECT {_THREAD} FROM threads t WHERE t.id=?", (thread,)).fetchone()
        )
        return _thread(row) if row else None

    async def search(self, where: ThreadFilter) -> list[Thread]:
        also = [
            name for column in ("state", "metadata") for name in self._database.dialect.beside(column, b"{}", "")[0]
        ]
        named = ", ".join(["t.failed", *(f"t.{name}" for name in also)])
        index = _INDEX.get(where.status or "", "threads_caller" if where.caller is not None else None)
        wanted = [
            Judged(column, place, members)
            for column, place, members in (("metadata", _METADATA, where.metadata), ("state", _STATE, where.values))
            if members
        ]

        def page(lead: Lead, before: str | None, size: int, offset: int = 0) -> tuple[str, list[Any]]:
            terms, args = self._where(where, lead)
            if before is not None:
                terms.append("id<?")
                args.append(before)
            by = self._database.dialect.indexed(index) if index is not None and not lead.alone else ""
            source = f"(SELECT {_THREAD} AS status, {named} FROM threads t{by}) AS found"
            if lead.alone:  # they are found before they are put in order
                few = f"WITH few AS MATERIALIZED (SELECT * FROM {source} WHERE {' AND '.join(terms)}) "
                return few + select("few", "*", []), [*args, size, offset]
            return select(source, "*", terms), [*args, size, offset]

        if not wanted:
            sql, args = page(Lead(), None, where.limit, where.offset)
            rows = await self._database.search(lambda conn: conn.execute(sql, args).fetchall())
        else:
            rows = await self._database.search(
                lambda conn: pages(conn, "threads", wanted, where.caller, where.limit, where.offset, page)
            )
        return [_thread(row) for row in rows]

    def _where(self, where: ThreadFilter, lead: Lead) -> tuple[list[str], list[Any]]:
        aside = self._database.dialect.aside if lead.alone else str
        terms, args = list(lead.terms), list(lead.args)
        if where.caller is not None:
            terms.append(aside("caller=?"))
            args.append(where.caller)
        if where.status is not None:
            terms.append(aside(f"status=? AND {_HOLDS.get(where.status, '1=0')}"))
            args.append(where.status)
        if where.metadata:
            json_matches(self._database.dialect, "metadata", where.metadata, terms, args)
        if where.values:
            json_matches(self._database.dialect, "state", where.values, terms, args)
        return terms, args

    async def patch(
        self, thread: str, *, checkpoint: str, values_: Any, metadata: dict[str, Any] | None, base: str | None,
        messages: list[Message] | None, now: int,
    ) -> Thread:  # fmt: skip
        """Merges metadata; new values (onto checkpoint `base`, or the newest) make a new checkpoint."""

        def patch(conn: Connection) -> Thread:
            conn.lock(("thread", thread))
            existing = _find(conn, thread)
            changes_state = values_ is not msgspec.UNSET or bool(messages) or base is not None
            if changes_state and existing.active is not None:
                raise ThreadBusy(f"thread {thread} is busy with run {existing.active}; its values cannot change now")
            state, count = existing.values, None
            if base is not None:
                row = conn.execute(f"SELECT {_CHECKPOINT} FROM checkpoints WHERE id=?", (base,)).fetchone()
                if row is None or row[1] != thread:
                    raise CheckpointNotFound(f"thread {thread} has no checkpoint {base}")
                state, count = json_values.decode(row[3]), row[5]
            if values_ is not msgspec.UNSET:
                merge = isinstance(state, dict) and isinstance(values_, dict)
                state = {**state, **values_} if merge else values_
            merged = {**existing.metadata, **metadata} if metadata else existing.metadata
            if changes_state:
                if count is not None:
                    conn.execute("DELETE FROM messages WHERE thread=? AND n>?", (thread, count))
                total = add_messages(conn, thread, messages or [], None)
                conn.execute(
                    f"INSERT INTO checkpoints ({_CHECKPOINT}) VALUES (?,?,?,?,?,?,?,?)",
                    (checkpoint, thread, existing.version + 1, json_values.encode(state), now, total, None, b"{}"),
                )
                changes = "version=version+1, checkpoint=?"
                set_json(conn, thread, existing.caller, "state", json_values.encode(state), changes, checkpoint)
            set_json(conn, thread, existing.caller, "metadata", json_values.encode(merged), "updated_at=?", now)
            return _find(conn, thread)

        result: Thread = await self._database.write(patch, [("thread", thread)])
        return result

    async def copy(self, thread: str, new: str, new_id: Callable[[], str], now: int) -> Thread:
        """Copies a thread with its values, history and messages."""

        def copy(conn: Connection) -> Thread:
            conn.lock(("thread", thread), ("thread", new))
            source = _find(conn, thread)
            ids: dict[str, str] = {}
            for row in conn.execute(
                f"SELECT {_CHECKPOINT} FROM checkpoints WHERE thread=? ORDER BY version", (thread,)
            ).fetchall():
                ids[row[0]] = new_id()
                conn.execute(  # without its run, which is none of the new thread's; whose state it is stays known
                    f"INSERT INTO checkpoints ({_CHECKPOINT}) VALUES (?,?,?,?,?,?,?,?)",
                    (ids[row[0]], new, *row[2:6], None, row[7]),
                )
            conn.execute(
                "INSERT INTO messages (thread, n, run, message) SELECT ?, n, run, message FROM messages WHERE thread=?",
                (new, thread),
            )
            source.id, source.created_at, source.updated_at = new, now, now
            source.checkpoint = ids.get(source.checkpoint or "")
            _put(conn, source)
            return _find(conn, new)

        result: Thread = await self._database.write(copy, [("thread", thread), ("thread", new)])
        return result

    async def delete(self, thread: str, now: int) -> None:
        await self._database.write(lambda conn: delete_thread(conn, thread, now), [("thread", thread)])

    async def history(self, thread: str, *, before: str | None, limit: int) -> list[Checkpoint]:
        """Reads checkpoints, newest first; with `before`, those older than it."""

        def read(conn: Connection) -> list[tuple[Any, ...]]:
            _find(conn, thread)
            top = 1 << 62
            if before is not None:
                row = conn.execute(
                    "SELECT version FROM checkpoints WHERE id=? AND thread=?", (before, thread)
                ).fetchone()
                if row is None:
                    raise CheckpointNotFound(f"thread {thread} has no checkpoint {before}")
                top = row[0]
            return conn.execute(
                f"SELECT {_CHECKPOINT} FROM checkpoints WHERE thread=? AND version<? ORDER BY version DESC LIMIT ?",
                (thread, top, limit),
            ).fetchall()

        return [_checkpoint(row) for row in await self._database.read(read)]

    async def checkpoint(self, checkpoint: str) -> Checkpoint | None:
        row = await self._database.read(
            lambda conn: conn.execute(f"SELECT {_CHECKPOINT} FROM checkpoints WHERE id=?", (checkpoint,)).fetchone()
        )
        return _checkpoint(row) if row else None

    async def messages(self, thread: str, *, upto: int | None = None) -> list[Message]:
        rows = await self._database.read(
            lambda conn: conn.execute(
                "SELECT message FROM messages WHERE thread=? AND n<=? ORDER BY n",
                (thread, 1 << 62 if upto is None else upto),
            ).fetchall()
        )
        return [_message.decode(row[0]) for row in rows]
