"""The transactions that decide something, as SQL: submitting, claiming and deleting runs.

They run in the writer's thread, many in one commit, so each one checks first and writes then: what it refuses has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ...model import json_values
from ...model.errors import KeyReused
from ...model.events import RunCreated, body_decoder
from ...model.status import Status
from ..changes import Submission, Submitted
from ..rows import EVENT_COLUMNS, EventRow, RunRow
from .claim_order import TURN, following, of
from .database import RUN, RUN_COLUMNS, Connection, insert, plain
from .inbox import put_inbox
from .threads import lock_thread, place_in_line, take_thread

_SMALL_EVENT = 64 * 1024  # bytes; a run with a larger event is read by itself
_FEW = 9  # the place of the next event of a run of which all is read when it is claimed
TAKE = "UPDATE runs SET worker=?, wake_at=NULL, epoch=epoch+1, blocked_reason=NULL"
EVENT = ", ".join(EventRow.__struct_fields__)


class Contents:
    """What there is of runs that were claimed: their events, of those that have few, and who has news."""

    events: Sequence[EventRow] = ()
    news: Collection[str] = ()


def run_row(row: tuple[Any, ...]) -> RunRow:
    found = RunRow(*row)
    found.status = Status(found.status)
    return found


def submit(conn: Connection, s: Submission) -> Submitted:
    row, request = msgspec.structs.replace(s.row), s.request  # a copy: a batch that fails is tried again
    if s.key is not None:
        conn.lock(("key", " ".join(s.key)))  # of two at once, the second finds the run of the first
        found = conn.execute("SELECT run, digest FROM keys WHERE caller=? AND key=?", s.key).fetchone()
        if found is not None:
            if found[1] != s.digest:
                raise KeyReused(f"idempotency key {request.key!r} was used for another request (run {found[0]})")
            existing = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (found[0],)).fetchone()
            return Submitted(run_row(existing), existing=True)
    if row.parent is not None:  # a parent that is entered again calls for the same child again
        found = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (row.id,)).fetchone()
        if found is not None:
            return Submitted(run_row(found), existing=True)
    thread, cancel = None, None
    if row.thread is not None:
        thread, cancel = take_thread(conn, row, request, s.now)
    if row.queued is None and row.wake_at == 0 and s.take is not None:
        row.worker, row.wake_at, row.epoch = s.take, None, 1
    with conn.dialect.together(conn):
        if row.worker is None and row.queued is None and row.wake_at == 0:
            conn.dialect.insert_run(conn, plain(row), TURN, of(row.queue, row.caller, row.status))
        else:
            conn.dialect.insert_runs(conn, [plain(row)])
        insert(conn, "events", EVENT_COLUMNS, [(e.run, e.seq, e.kind, e.time, e.hash, e.body) for e in s.events])
    if s.key is not None:
        conn.execute("INSERT INTO keys (caller, key, run, digest) VALUES (?,?,?,?)", (*s.key, row.id, s.digest))
    if cancel is not None:
        _make_way(conn, cancel, row, request.when_busy, s.now)
    return Submitted(row, thread=thread, cancel=cancel)


def _make_way(conn: Connection, run: str, successor: RunRow, when_busy: str, now: int) -> None:
    why = {"by": successor.caller, "reason": f"run {successor.id} took its thread"}
    put_inbox(conn, run, "cancel", json_values.encode({**why, "rollback": when_busy == "rollback"}), now)


def claim(
    conn: Connection,
    worker: str,
    agents: list[str],
    now: int,
    limit: int,
    at_most: Sequence[tuple[Sequence[str], int]],
    contents: Contents | None = None,
) -> list[RunRow]:
    """Take what is due. `contents`: and read what there is of it, as it is when nobody can change it any more."""
    claimed, mine = list[RunRow](), list[RunRow]()
    for found in following(conn, worker, agents, now, limit, at_most):
        row = run_row(found)
        may = _may_start(conn, row, now)
        if may is not None:
            claimed.append(row)
        if may:
            mine.append(row)
    if not mine:
        return claimed
    ids = conn.dialect.many([row.id for row in mine])
    few = conn.dialect.many([row.id for row in mine if row.next_seq <= _FEW] if contents is not None else [])
    with conn.dialect.together(conn):
        conn.execute(f"{TAKE} WHERE {conn.dialect.any_of('id')}", (worker, ids))
        if contents is not None:
            these = conn.dialect.any_of("run")
            large = f"SELECT run FROM events WHERE {these} AND length(body)>{_SMALL_EVENT}"
            events = conn.execute(f"SELECT {EVENT} FROM events WHERE {these} AND run NOT IN ({large})", (few, few))
            news = conn.execute(f"SELECT run FROM inbox WHERE {conn.dialect.any_of('run')}", (ids,))
    if contents is not None:
        contents.events = [EventRow(*event) for event in events.fetchall()]
        contents.news = {run for (run,) in news.fetchall()}
    for row in mine:
        row.worker, row.wake_at, row.epoch = worker, None, row.epoch + 1
    return claimed


def take(conn: Connection, worker: str, run: str) -> RunRow | None:
    """Take a run that nobody has, due or not."""
    found = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
    if found is None or found[RUN_COLUMNS.index("worker")] is not None:
        return None
    row = run_row(found)
    if row.status.final:
        return None
    conn.execute(f"{TAKE} WHERE id=?", (worker, run))
    row.worker, row.wake_at, row.epoch, row.blocked_reason = worker, None, row.epoch + 1, None
    return row


def _may_start(conn: Connection, row: RunRow, now: int) -> bool | None:
    """Whether a run whose turn it is can be taken: it has its thread, or wants none. False: it only got in line for
    that, and the run before it was told; None: it can do nothing now."""
    if row.status.final:
        return None
    run = row.id
    if row.thread is not None:
        # A delayed run gets its thread only now. Where that is taken, it does what it was submitted to do then: one
        # that would rather be refused is let in without its thread, and fails.
        lock_thread(conn, row.thread)
        active = conn.execute("SELECT active FROM threads WHERE id=?", (row.thread,)).fetchone()
        if active is not None and active[0] is None:
            conn.execute("UPDATE threads SET active=?, updated_at=? WHERE id=?", (run, now, row.thread))
        elif active is not None and active[0] != run:
            when_busy = _when_busy(conn, run) if row.queued is None else "enqueue"
            if when_busy != "reject":
                row.queued, row.wake_at = place_in_line(conn, row.thread, when_busy, now), None
                conn.execute("UPDATE runs SET queued=?, wake_at=NULL WHERE id=?", (row.queued, run))
                if when_busy == "enqueue":
                    return None
                _make_way(conn, active[0], row, when_busy, now)
                return False
    return True


def hand_back(conn: Connection, worker: str, *, crashed: bool) -> None:
    """A worker is no more: its runs are anybody's."""
    # A run that only waited did not bring its process down. For the others this is no more than a suspicion, but for
    # the one suspect among them: only those have so many crashes, and a worker executes one of them at a time.
    blame = "CASE WHEN status<>'waiting' THEN 1 ELSE 0 END" if crashed else "0"
    conn.execute(
        f"UPDATE runs SET worker=NULL, wake_at=0, epoch=epoch+1, crashes=crashes+{blame} WHERE worker=?", (worker,)
    )
    conn.execute("DELETE FROM workers WHERE id=?", (worker,))


def _when_busy(conn: Connection, run: str) -> str:
    """What a run was submitted to do where its thread is taken."""
    found = conn.execute("SELECT body FROM events WHERE run=? AND seq=1", (run,)).fetchone()
    created = None if found is None or found[0] is None else body_decoder.decode(found[0])
    return created.request.when_busy if isinstance(created, RunCreated) else "reject"
