"""Admission: the transaction that decides whether and where a new run starts.

It runs in the writer's thread, many in one commit, so it checks first and writes then: what it refuses has changed
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...model import json_values
from ...model.errors import KeyReused
from ..changes import Submission, Submitted
from ..rows import EVENT_COLUMNS, RunRow
from .claim_order import TURN, of
from .dialect import RUN, Connection, Pipelined, insert, plain, run_row
from .inbox import put_inbox
from .threads import take_thread


class AdmitRun(Pipelined):
    """The admission of one run, as a call for the writer."""

    def __init__(self, submission: Submission) -> None:
        super().__init__(lambda conn: submit(conn, submission))
        self.submission = submission

    @property
    def is_certain(self) -> bool:
        """True where the run is new and starts at once, whatever the store holds. It then needs no look before it is
        written, and is written together with others."""
        s, row = self.submission, self.submission.row
        starts = row.queued is None and row.wake_at == 0 and s.take is not None
        return starts and s.key is None and row.parent is None and row.thread is None


def submit_certain(conn: Connection, submissions: Sequence[Submission]) -> list[Submitted]:
    """Write runs whose admission is certain, all in few statements."""
    rows = [msgspec.structs.replace(s.row, worker=s.take, wake_at=None, epoch=1) for s in submissions]
    events = [(e.run, e.seq, e.kind, e.time, e.hash, e.body) for s in submissions for e in s.events]
    with conn.dialect.together(conn):
        conn.dialect.insert_runs(conn, [plain(row) for row in rows])
        insert(conn, "events", EVENT_COLUMNS, events)
    return [Submitted(row) for row in rows]


def submit(conn: Connection, s: Submission) -> Submitted:
    row, request = msgspec.structs.replace(s.row), s.request  # a copy: a batch that fails is tried again
    if s.key is not None:
        conn.lock(("key", " ".join(s.key)))  # of two at once, the second finds the run of the first
        key = conn.execute("SELECT run, digest FROM keys WHERE caller=? AND key=?", s.key).fetchone()
        if key is not None:
            if key[1] != s.digest:
                raise KeyReused(f"idempotency key {request.key!r} was used for another request (run {key[0]})")
            existing = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (key[0],)).fetchone()
            return Submitted(run_row(existing), existing=True)
    if row.parent is not None:  # a parent that is entered again calls for the same child again
        child = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?", (row.id,)).fetchone()
        if child is not None:
            return Submitted(run_row(child), existing=True)
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
        make_way(conn, cancel, row, request.when_busy, s.now)
    return Submitted(row, thread=thread, cancel=cancel)


def make_way(conn: Connection, run: str, successor: RunRow, when_busy: str, now: int) -> None:
    why = {"by": successor.caller, "reason": f"run {successor.id} took its thread"}
    put_inbox(conn, run, "cancel", json_values.encode({**why, "rollback": when_busy == "rollback"}), now)
