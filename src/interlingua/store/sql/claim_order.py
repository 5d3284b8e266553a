"""The order of claims: runs that are due stand in one line per queue, in which callers take turns.

A run gets its place when it becomes due, from the line at that moment: nothing is stored beside the runs, and nothing
is locked. Two processes that look at the same moment may give the same place twice, which does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..rows import SUSPECT
from .dialect import RUN, Connection

IN_LINE = "worker IS NULL AND wake_at=0 AND blocked IS NULL"
LATER = "worker IS NULL AND wake_at>0 AND blocked IS NULL"
# Not EXISTS: of that, PostgreSQL makes a join that reads the whole line.
ANY_IN_LINE = f"(SELECT 1 FROM runs WHERE {IN_LINE} AND queue=mine.value ORDER BY turn LIMIT 1) IS NOT NULL"
_RIPE = f"(SELECT 1 FROM runs WHERE {LATER} AND queue=mine.value AND wake_at<=? ORDER BY wake_at LIMIT 1) IS NOT NULL"
_ANY_RIPE = f"SELECT 1 FROM runs WHERE {LATER} AND queue=? AND wake_at<=? ORDER BY wake_at LIMIT 1"
_BEGUN = "CASE status WHEN 'pending' THEN 0 ELSE 1 END"
_NEXT = f"SELECT {RUN} FROM runs WHERE {IN_LINE} AND queue=? AND crashes{{}} ORDER BY turn, id LIMIT ?"
_RIPE_AT_ONCE = 200

# The place in its line for a run that becomes due now. A caller that stands in the line already gets a place one round
# after its last run, on an even number. Any other caller gets one right after the current round, on an odd number:
# before the next runs of all others, and behind those that came there before. A caller never gets a number again that
# it was served with, so no caller is overtaken for ever. A caller stands in a line twice: with runs that have begun and
# go on (answered, or woken), and with new ones, so that the ones do not wait for the others.
TURN = (
    "COALESCE("
    f"(SELECT turn+2+turn%2 FROM runs WHERE {IN_LINE} AND caller=? AND queue=? AND {_BEGUN}=? "
    "ORDER BY turn DESC LIMIT 1), "
    f"(SELECT turn+1+turn%2 FROM runs WHERE {IN_LINE} AND queue=? ORDER BY turn LIMIT 1), 1)"
)


def of(queue: str, caller: str, status: str) -> tuple[Any, ...]:
    """Returns the values of `TURN` for a run of this queue."""
    return caller, queue, int(status != "pending"), queue


def stand(conn: Connection, run: str, queue: str, caller: str, status: str, since: int | None = None) -> None:
    """Puts a run that is due in line; `since`: due from this moment, and not from its last update."""
    changes, args = f"queued=NULL, wake_at=0, turn={TURN}", list[Any](of(queue, caller, status))
    if since is not None:
        changes += ", updated_at=?"
        args.append(since)
    conn.execute(f"UPDATE runs SET {changes} WHERE id=?", (*args, run))


def _ripen(conn: Connection, queues: Sequence[str], now: int) -> None:
    """Puts runs whose time has come in line."""
    ripe = conn.execute(
        f"SELECT id, queue, caller, status FROM runs WHERE {LATER} AND wake_at<=? AND {conn.dialect.any_of('queue')} "
        f"LIMIT ?{conn.dialect.skip_locked}",
        (now, conn.dialect.many(queues), _RIPE_AT_ONCE),
    ).fetchall()
    for run, queue, caller, status in ripe:
        stand(conn, run, queue, caller, status)


def executes_suspect(conn: Connection, worker: str) -> bool:
    """Returns true while the suspect of a worker has neither ended, nor waits, nor has made a record. A worker executes
    one suspect at a time: if it dies, that run alone gets the blame."""
    sql = f"SELECT 1 FROM runs WHERE worker=? AND crashes>={SUSPECT} LIMIT 1"
    return conn.execute(sql, (worker,)).fetchone() is not None


def following(
    conn: Connection, worker: str, queues: Sequence[str], now: int, limit: int,
    at_most: Sequence[tuple[Sequence[str], int]],
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Returns the rows of the next runs in the lines of these queues, and locks them until the transaction ends.

    Queues share the places; the first ones get those that cannot be shared.
    """
    if len(queues) == 1 and not at_most:  # most likely one is there: a message said so
        rows = _next_of_one(conn, worker, queues[0], now, limit)
        if rows:
            return rows
    lines = _lines(conn, queues, now)
    shared = [set(some) for some, _ in at_most]
    left = [places for _, places in at_most]
    chosen: list[tuple[Any, ...]] = []
    suspected = False
    for place, queue in enumerate(lines):
        share = -(-(limit - len(chosen)) // (len(lines) - place))
        limits = [at for at, some in enumerate(shared) if queue in some]
        share = min([share, *(left[at] for at in limits)])
        if share <= 0:
            continue
        suspect = [] if suspected else _suspect(conn, worker, queue)
        suspected = suspected or bool(suspect)
        rows = suspect + _trusted(conn, queue, share - len(suspect))
        chosen += rows
        for at in limits:
            left[at] -= len(rows)
    return chosen


def _next_of_one(conn: Connection, worker: str, queue: str, now: int, limit: int) -> list[tuple[Any, ...]]:
    """Returns the next runs of one queue that are in line already; of suspects at most one."""
    lock = conn.dialect.skip_locked
    with conn.dialect.together(conn):
        first = conn.execute(_NEXT.format(f"<{SUSPECT}") + lock, (queue, limit))
        suspicious = conn.execute(_NEXT.format(f">={SUSPECT}") + lock, (queue, 1))
        later = conn.execute(_ANY_RIPE, (queue, now))
    rows, suspect = first.fetchall(), suspicious.fetchall()
    if suspect and limit and not executes_suspect(conn, worker):
        rows = suspect + rows[: limit - 1]
    if rows and later.fetchone() is not None:
        _ripen(conn, [queue], now)  # for the next claim
    return rows


def _lines(conn: Connection, queues: Sequence[str], now: int) -> list[str]:
    """Puts runs whose time has come in line. Returns the queues that have some in line."""
    looked = conn.execute(
        f"SELECT value, {ANY_IN_LINE}, {_RIPE} FROM {conn.dialect.each_of('mine')}", (now, conn.dialect.many(queues))
    ).fetchall()
    if ripe := [queue for queue, _, is_ripe in looked if is_ripe]:
        _ripen(conn, ripe, now)
    lined = {queue for queue, in_line, is_ripe in looked if in_line or is_ripe}
    return [queue for queue in queues if queue in lined]


def _suspect(conn: Connection, worker: str, queue: str) -> list[tuple[Any, ...]]:
    """Returns the next suspect of a queue, unless the worker executes one."""
    rows = conn.execute(_NEXT.format(f">={SUSPECT}") + conn.dialect.skip_locked, (queue, 1)).fetchall()
    return [] if rows and executes_suspect(conn, worker) else rows


def _trusted(conn: Connection, queue: str, limit: int) -> list[tuple[Any, ...]]:
    """Returns the next runs of a queue that are no suspects."""
    return conn.execute(_NEXT.format(f"<{SUSPECT}") + conn.dialect.skip_locked, (queue, limit)).fetchall()
