"""Delegations as SQL: counting the runs that members of a team start.

The functions run within a transaction of the writer, or on a connection that only reads. A task has many delegations,
and their number decides each new one: so they are counted in SQL, and never read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..changes import CountDelegation, Counted
from ..rows import DelegationRow
from .database import Database
from .dialect import Connection

_COLUMNS = ", ".join(DelegationRow.__struct_fields__)


class SqlTally:
    """The tally of a task, in SQL."""

    def __init__(self, conn: Connection, task: str) -> None:
        self._conn = conn
        self._task = task

    def started(self, runs: Sequence[str]) -> list[int]:
        return started(self._conn, self._task, runs)

    def last(self, agent: str) -> int:
        sql = "SELECT COALESCE(MAX(instance), 0) FROM delegations WHERE task=? AND agent=? AND review=0"
        return int(self._conn.execute(sql, (self._task, agent)).fetchone()[0])


def started(conn: Connection, task: str, runs: Sequence[str]) -> list[int]:
    """Counts the runs that were started below each of these."""
    below = ", ".join([f"COUNT(CASE WHEN {conn.dialect.position}(path, ?)>0 THEN 1 END)"] * len(runs))
    sql = f"SELECT {below} FROM delegations WHERE task=? AND review=0"
    return list(conn.execute(sql, (*(f"/{run}/" for run in runs), task)).fetchone())


def count(conn: Connection, change: CountDelegation) -> None:
    """Counts a run, once. Raises what `admit` raises, and has changed nothing then."""
    conn.lock(("task", change.task))
    if conn.execute("SELECT 1 FROM delegations WHERE run=?", (change.run,)).fetchone():
        return
    number = change.admit(SqlTally(conn, change.task))
    label = change.label or _label(conn, change.task, change.part_of)
    row = DelegationRow(change.run, change.task, change.path, change.agent, number, label, int(change.review))
    conn.execute(f"INSERT INTO delegations ({_COLUMNS}) VALUES (?,?,?,?,?,?,?)", msgspec.structs.astuple(row))


def counted(conn: Connection, run: str) -> Counted | None:
    """Finds a run that was counted."""
    values = conn.execute(f"SELECT {_COLUMNS} FROM delegations WHERE run=?", (run,)).fetchone()
    if values is None:
        return None
    row = DelegationRow(*values)
    (below,) = started(conn, row.task, [row.path.rstrip("/").rpartition("/")[2]])
    return Counted(row, below - (not row.review))


def count_now(conn: Connection, change: CountDelegation) -> Counted:
    count(conn, change)
    done = counted(conn, change.run)
    assert done is not None
    return done


def _label(conn: Connection, task: str, parent: str) -> str:
    """Returns the label of the next part of a task: T1.3 after T1.1, T1.2 and T1.2.1."""
    if not parent:
        known = conn.execute("SELECT number FROM task_numbers WHERE run=?", (task,)).fetchone()
        numbered = (
            known or conn.execute("INSERT INTO task_numbers (run) VALUES (?) RETURNING number", (task,)).fetchone()
        )
        return f"T{numbered[0]}"
    # As an integer, 2.1 is 2.
    number = conn.dialect.leading_number("substr(label, ?)")
    sql = f"SELECT COALESCE(MAX({number}), 0) FROM delegations WHERE label>? AND label<?"
    (last,) = conn.execute(sql, (len(parent) + 2, f"{parent}.", f"{parent}/")).fetchone()
    return f"{parent}.{last + 1}"


class SqlDelegations:
    """Runs that members of a team have started, by task."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_task(self, task: str) -> list[DelegationRow]:
        sql = f"SELECT {_COLUMNS} FROM delegations WHERE task=? ORDER BY run"
        rows = await self._database.read(lambda conn: conn.execute(sql, (task,)).fetchall())
        return [DelegationRow(*row) for row in rows]

    async def started(self, task: str, runs: Sequence[str]) -> list[int]:
        return await self._database.read(lambda conn: started(conn, task, runs))

    async def count(self, change: CountDelegation) -> Counted:
        # Most were counted with the log of the run that delegates, and then there is nothing to write.
        done = await self._database.read(lambda conn: counted(conn, change.run))
        if done is None:
            done = await self._database.write(lambda conn: count_now(conn, change), [("task", change.task)])
        return done

    async def labelled(self, label: str) -> list[DelegationRow]:
        sql = f"SELECT {_COLUMNS} FROM delegations WHERE label=? OR (label>? AND label<?) ORDER BY run"
        rows = await self._database.read(lambda conn: conn.execute(sql, (label, f"{label}.", f"{label}/")).fetchall())
        return [DelegationRow(*row) for row in rows]

    async def uncount(self, run: str) -> None:
        await self._database.write(lambda conn: conn.execute("DELETE FROM delegations WHERE run=?", (run,)))
