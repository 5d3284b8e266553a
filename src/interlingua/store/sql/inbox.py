"""Inboxes as SQL: an item is put in, and the run wakes."""

from __future__ import annotations

from .claim_order import stand
from .dialect import Connection


def put_inbox(conn: Connection, run: str, kind: str, body: bytes, now: int) -> int:
    """Puts an item into a run's inbox, and wakes the run. Returns its id, or 0 if the run has ended."""
    # With its row locked: an owner that parks or ends the run at this moment either finds this in the inbox, or has
    # parked or ended it before.
    columns = "status, worker, queued, wake_at, queue, caller, blocked_reason"
    row = conn.execute(f"SELECT {columns} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
    if row is None or row[0] in _FINAL:
        return 0
    item = conn.execute(
        "INSERT INTO inbox (run, kind, body, time) VALUES (?,?,?,?) RETURNING id", (run, kind, body, now)
    ).fetchone()
    status, worker, queued, wake_at, agent, caller, blocked = row
    # Mail does not start a run that waits for its time; only a cancel may end it early. A run in line keeps its place.
    # A blocked run reads the rest when other code continues it.
    ready = status != "pending" and blocked is None
    if worker is None and queued is None and wake_at != 0 and (ready or kind == "cancel"):
        stand(conn, run, agent, caller, status)
    return int(item[0])


_FINAL = ("succeeded", "failed", "cancelled", "timed_out")
