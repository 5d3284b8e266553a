"""Inboxes as SQL: an item is put in, and the run wakes."""

from __future__ import annotations

from .claim_order import stand
from .dialect import Connection


def put_inbox(conn: Connection, run: str, kind: str, body: bytes, now: int) -> int:
    """Puts an item into a run's inbox, and wakes the run. Returns its id, or 0 if the run has ended."""
    # With its row locked: whoever parks or ends the run at this moment either finds this in the inbox, or is found to
    # have parked or ended it.
    columns = "status, worker, queued, wake_at, queue, caller, blocked_reason"
    found = conn.execute(f"SELECT {columns} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
    if found is None or found[0] in _FINAL:
        return 0
    made = conn.execute(
        "INSERT INTO inbox (run, kind, body, time) VALUES (?,?,?,?) RETURNING id", (run, kind, body, now)
    ).fetchone()
    status, worker, queued, wake_at, agent, caller, blocked = found
    # A run that waits for its time to start is not started by mail; only a cancel may end it early.
    # And one that is in line keeps its place. One that is blocked reads the rest when other code goes on with it.
    ready = status != "pending" and blocked is None
    if worker is None and queued is None and wake_at != 0 and (ready or kind == "cancel"):
        stand(conn, run, agent, caller, status)
    return int(made[0])


_FINAL = ("succeeded", "failed", "cancelled", "timed_out")
