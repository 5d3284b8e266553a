"""Changes that are written with a log, as SQL: questions, inboxes, and the end of a turn on a thread."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ...model import json_values
from ...model.content import Message
from ...model.errors import Conflict, InterlinguaError, RunNotFound, ThreadConflict
from ...model.status import Status
from ..changes import (
    BlockRun,
    Change,
    ChildNews,
    CloseQuestion,
    CommitThread,
    CountDelegation,
    DeleteRun,
    DropInbox,
    PutCallback,
    PutInbox,
    PutQuestion,
)
from .callbacks import keep_run, put_callback
from .claim_order import stand
from .delegations import count
from .dialect import FINAL_SQL, Connection
from .inbox import put_inbox
from .questions import close_question, put_question

_KEPT = 49 * 17 - 1  # characters of the digests before the newest, each with a blank behind it


def apply_change(conn: Connection, change: Change, now: int) -> None:
    match change:
        case PutQuestion():
            put_question(conn, change)
        case CloseQuestion(id=question, state=state, reason=reason):
            close_question(conn, question, state, reason, now)
        case DropInbox(ids=ids):
            conn.execute(f"DELETE FROM inbox WHERE id IN ({','.join('?' * len(ids))})", ids)
        case PutInbox(run=run, kind=kind, body=body):
            change.id = put_inbox(conn, run, kind, body, now)
        case PutCallback():
            put_callback(conn, change, now)
        case BlockRun():
            _block_run(conn, change)
        case CommitThread():
            _end_turn(conn, change, now)
        case DeleteRun(run=run):
            delete_run(conn, run, now, rollback=True)
        case CountDelegation():
            with contextlib.suppress(InterlinguaError):  # refused before anything was written
                count(conn, change)
        case ChildNews():
            raise AssertionError("sealing turns it into a PutInbox")


def _block_run(conn: Connection, change: BlockRun) -> None:
    # Only other code and a cancel wake it, also a cancel that came while it was being blocked. Of codes that could not
    # go on with it, the last ones count: each deploy adds one while a run waits for months, and the list is indexed.
    last = f"CASE WHEN length(blocked)>{_KEPT} THEN substr(blocked, length(blocked)-{_KEPT - 1}) ELSE blocked END"
    conn.execute(
        f"UPDATE runs SET blocked=CASE WHEN blocked IS NULL THEN ? "
        f"WHEN {conn.dialect.position}(blocked, ?)>0 THEN blocked ELSE {last} || ' ' || ? END, blocked_reason=?, "
        "wake_at=CASE WHEN EXISTS (SELECT 1 FROM inbox WHERE run=runs.id AND kind='cancel') THEN 0 END WHERE id=?",
        (change.code, change.code, change.code, change.reason, change.run),
    )


def _end_turn(conn: Connection, end: CommitThread, now: int) -> None:
    conn.lock(("thread", end.thread))
    row = conn.execute("SELECT version, active, caller FROM threads WHERE id=?", (end.thread,)).fetchone()
    if row is None or row[1] != end.run:
        return  # it never had the thread (cancelled while queued), or the thread was deleted
    if end.values is not msgspec.UNSET:
        if row[0] != end.version:
            raise ThreadConflict(f"thread {end.thread} changed while run {end.run} was using it; run it again")
        state = json_values.encode(end.values)
        count = add_messages(conn, end.thread, end.messages, end.run)
        conn.execute(
            "INSERT INTO checkpoints (id, thread, version, state, messages, run, created_at, metadata) "
            "VALUES (?,?,?,?,?,?,?,?)",
            (
                end.checkpoint,
                end.thread,
                end.version + 1,
                state,
                count,
                end.run,
                now,
                json_values.encode({"agent": end.agent} if end.agent else {}),
            ),
        )
        change = "version=version+1, checkpoint=?, updated_at=?"
        set_json(conn, end.thread, row[2], "state", state, change, end.checkpoint, now)
    conn.execute("UPDATE threads SET failed=? WHERE id=?", (end.failed, end.thread))
    end.passed_on = pass_on(conn, end.thread, now)


def pass_on(conn: Connection, thread: str, now: int) -> bool:
    """Gives the thread, which is locked, to the next run in line. Returns false if there is none."""
    following = conn.execute(
        "SELECT id, queue, caller, status FROM runs WHERE thread=? AND queued IS NOT NULL ORDER BY queued LIMIT 1",
        (thread,),
    ).fetchone()
    heir = following[0] if following else None
    conn.execute("UPDATE threads SET active=?, updated_at=? WHERE id=?", (heir, now, thread))
    if heir:
        # When its turn came is when it was due: how long it waited for a worker is counted from there.
        run, agent, caller, status = following
        stand(conn, run, agent, caller, status, since=now)
    return heir is not None


def add_messages(conn: Connection, thread: str, messages: list[Message], run: str | None) -> int:
    """Appends to a thread's messages. Returns their number."""
    count: int = conn.execute("SELECT COALESCE(MAX(n), 0) FROM messages WHERE thread=?", (thread,)).fetchone()[0]
    for message in messages:
        count += 1
        conn.execute(
            "INSERT INTO messages (thread, n, run, message) VALUES (?,?,?,?)",
            (thread, count, run, json_values.encode(message)),
        )
    return count


def empty_inboxes(conn: Connection, runs: list[str]) -> list[str]:
    """Empties the inboxes of runs that are ending, which no owner will read. Returns the runs with an unread rollback,
    which are to be deleted."""
    term, value = ("run=?", runs[0]) if len(runs) == 1 else (conn.dialect.any_of("run"), conn.dialect.many(runs))
    left = conn.execute(f"DELETE FROM inbox WHERE {term} RETURNING run, kind, body", (value,)).fetchall()
    unread = {run for run, kind, body in left if kind == "cancel" and json_values.decode(body).get("rollback")}
    if not unread:
        return []
    there = f"SELECT id FROM runs WHERE {conn.dialect.any_of('id')}"
    return [run for (run,) in conn.execute(there, (conn.dialect.many(sorted(unread)),)).fetchall()]


def delete_run(conn: Connection, run: str, now: int, *, rollback: bool = False) -> list[str]:
    """Forget a run that has ended, and its children that have. Returns their ids.

    A rollback also takes back what the run did to its thread, and its other children are forgotten when they end.
    """
    sql = f"SELECT agent, status, next_seq, head, thread FROM runs WHERE id=?{conn.dialect.for_update}"
    row = conn.execute(sql, (run,)).fetchone()
    if row is None:
        raise RunNotFound(f"there is no run {run}")
    agent, status, next_seq, head, thread = row
    if not Status(status).final:
        raise Conflict(f"run {run} is {status}; cancel it before deleting it")
    gone = [run]
    children = conn.execute(f"SELECT id FROM runs WHERE parent=? AND status IN {FINAL_SQL}", (run,)).fetchall()
    for (child,) in children:
        gone.extend(delete_run(conn, child, now, rollback=rollback))
    if rollback:
        body = json_values.encode({"reason": "its parent was rolled back", "rollback": True})
        for (child,) in conn.execute("SELECT id FROM runs WHERE parent=?", (run,)).fetchall():
            put_inbox(conn, child, "cancel", body, now)
    keep_run(conn, run)
    if conn.dialect.indexes_json:
        metadata, caller = conn.execute("SELECT metadata, caller FROM runs WHERE id=?", (run,)).fetchone()
        conn.dialect.index_json(conn, "runs", run, before={"metadata": metadata}, after={}, caller=caller)
    conn.execute(
        "INSERT INTO tombstones (run, agent, status, seq, head, deleted_at) VALUES (?,?,?,?,?,?) "
        "ON CONFLICT (run) DO UPDATE SET agent=excluded.agent, status=excluded.status, seq=excluded.seq, "
        "head=excluded.head, deleted_at=excluded.deleted_at",
        (run, agent, status, next_seq - 1, head, now),
    )
    for table, column in (("events", "run"), ("inbox", "run"), ("questions", "run"), ("keys", "run"), ("runs", "id")):
        conn.execute(f"DELETE FROM {table} WHERE {column}=?", (run,))
    conn.execute("DELETE FROM links WHERE target=?", (run,))
    conn.execute("DELETE FROM delegations WHERE task=?", (run,))
    if thread is not None:
        conn.lock(("thread", thread))
        active = conn.execute("SELECT active FROM threads WHERE id=?", (thread,)).fetchone()
        if active is not None and active[0] == run:
            pass_on(conn, thread, now)
        if rollback:
            _take_back(conn, thread, run, now)
        conn.execute("UPDATE checkpoints SET run=NULL WHERE thread=? AND run=?", (thread, run))
    return gone


def _take_back(conn: Connection, thread: str, run: str, now: int) -> None:
    """Gives a thread back the state from before a run, unless a later run has used what the run left."""
    newest = conn.execute(
        "SELECT c.id, c.version, t.caller FROM threads t JOIN checkpoints c ON c.id=t.checkpoint "
        "WHERE t.id=? AND c.run=? AND (t.active IS NULL OR EXISTS "
        "(SELECT 1 FROM runs r WHERE r.id=t.active AND r.worker IS NULL AND r.status='pending'))",
        (thread, run),
    ).fetchone()
    if newest is None:
        return
    before = conn.execute(
        "SELECT id, state, messages FROM checkpoints WHERE thread=? AND version<? ORDER BY version DESC LIMIT 1",
        (thread, newest[1]),
    ).fetchone() or (None, json_values.encode(None), 0)
    conn.execute("DELETE FROM messages WHERE thread=? AND n>?", (thread, before[2]))
    conn.execute("DELETE FROM checkpoints WHERE id=?", (newest[0],))
    # The version stays: it only grows, so that no two states have the same one.
    set_json(conn, thread, newest[2], "state", before[1], "checkpoint=?, updated_at=?", before[0], now)


def set_json(conn: Connection, thread: str, caller: str, column: str, json: bytes, also: str, *args: Any) -> None:
    """Change the state or the metadata of a caller's thread, with what else changes, and what searches find it by."""
    columns, given = conn.dialect.beside(column, json, caller)
    changes = ", ".join([also, f"{column}=?", *(f"{name}=?" for name in columns)])
    if conn.dialect.indexes_json:
        before = conn.execute(f"SELECT {column} FROM threads WHERE id=?", (thread,)).fetchone()
        if before is not None:
            given_before = {column: before[0]}
            conn.dialect.index_json(conn, "threads", thread, before=given_before, after={column: json}, caller=caller)
    conn.execute(f"UPDATE threads SET {changes} WHERE id=?", (*args, json, *given, thread))
