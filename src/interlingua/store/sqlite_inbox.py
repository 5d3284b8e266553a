"""What others want of a run, as a row: put into its inbox, and the run is woken."""

from __future__ import annotations

import sqlite3

FINAL_SQL = "('succeeded','failed','cancelled','timed_out')"


def put_inbox(conn: sqlite3.Connection, run: str, kind: str, body: bytes, now: int) -> int:
    """Put something into a run's inbox, and wake the run. One that has ended gets nothing any more: 0 then."""
    cursor = conn.execute(
        "INSERT INTO inbox (run, kind, body, time) SELECT ?,?,?,? "
        f"WHERE EXISTS (SELECT 1 FROM runs WHERE id=? AND status NOT IN {FINAL_SQL})",
        (run, kind, body, now, run),
    )
    if cursor.rowcount != 1:
        return 0
    # A run that waits for its time to start is not started by mail; only a cancel may end it early.
    conn.execute(
        "UPDATE runs SET wake_at=0 WHERE id=? AND worker IS NULL AND queued IS NULL "
        "AND (status<>'pending' OR ?='cancel')",
        (run, kind),
    )
    return cursor.lastrowid or 0
