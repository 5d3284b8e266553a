"""Liveness of the workers of a PostgreSQL store: entering, leaving, and burying those whose lease has run out."""

from __future__ import annotations

from ...model import json_values
from ..rows import WorkerRow
from ..sql.claims import hand_back
from ..sql.dialect import Connection
from .database import PostgresDatabase
from .leases import RUN_OUT, Leases, alive
from .writer import PostgresWriter

# Dead are those whose lease has run out, and those who own runs and have no row (any more). The workers that own runs
# are found one after the other by the index, however many runs that are.
_DEAD = (
    f"SELECT id FROM workers WHERE {RUN_OUT} UNION ALL "
    "SELECT worker FROM (WITH RECURSIVE owner AS ("
    "(SELECT worker FROM runs WHERE worker IS NOT NULL ORDER BY worker LIMIT 1) UNION ALL "
    "SELECT (SELECT r.worker FROM runs r WHERE r.worker>owner.worker ORDER BY r.worker LIMIT 1) "
    "FROM owner WHERE owner.worker IS NOT NULL) SELECT worker FROM owner WHERE worker IS NOT NULL) AS owners "
    "WHERE NOT EXISTS (SELECT 1 FROM workers w WHERE w.id=owners.worker)"
)
_ENTER = (
    "INSERT INTO workers (id, host, pid, started_at, queues, lease_until) "
    "VALUES (?,?,?,?,?, clock_timestamp()+make_interval(secs => ?)) "
    "ON CONFLICT (id) DO UPDATE SET host=excluded.host, pid=excluded.pid, started_at=excluded.started_at, "
    "queues=excluded.queues, lease_until=excluded.lease_until"
)


class LeaseLiveness:
    """Liveness by leases, which the database's clock ends."""

    leases: Leases

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._lease = database.where.lease
        # Leases are renewed four times in that time, and a server that has just started gives everybody one of them.
        self.missed_after = self._lease
        self._entered = set[str]()  # workers of this process

    async def enter(self, worker: WorkerRow) -> None:
        lease = self._lease
        values = (worker.id, worker.host, worker.pid, worker.started_at, json_values.encode(worker.queues), lease)

        def enter(conn: Connection) -> None:
            conn.execute(_ENTER, values)
            writer = self._database.writer
            assert isinstance(writer, PostgresWriter), "a store that is open for reading calls nothing"
            writer.be_found(alive(worker.id))

        await self._database.write(enter)
        self._entered.add(worker.id)
        self.leases.hold(worker.id)

    async def leave(self, worker: str) -> None:
        self._entered.discard(worker)
        self.leases.release(worker)
        await self._database.write(lambda conn: hand_back(conn, worker, crashed=False), [("worker", worker)])

    def lives(self, conn: Connection, worker: str) -> bool:
        """Returns false for a worker that was buried and has not learnt it: others would take its claims at once."""
        if worker not in self._entered:
            return True
        sql = "SELECT 1 FROM workers WHERE id=? FOR KEY SHARE"  # no other process buries it before this is committed
        return conn.execute(sql, (worker,)).fetchone() is not None

    async def dead(self) -> list[str]:
        rows = await self._database.read(lambda conn: conn.execute(_DEAD, (self._lease,)).fetchall())
        return [row[0] for row in rows if not (self._entered and self.leases.holds(row[0]))]

    async def bury(self) -> list[str]:
        """Hands back the runs of workers that died. Returns those workers."""
        lease = self._lease
        expired = await self.dead()
        if not expired:
            return []

        def bury(conn: Connection) -> list[str]:
            buried = []
            conn.lock(*(("worker", worker) for worker in expired))
            for worker in expired:
                # It may have come back since, or another process may have buried it: its row decides, which cannot be
                # renewed while it is locked.
                dead = conn.execute(f"SELECT {RUN_OUT} FROM workers WHERE id=? FOR UPDATE", (lease, worker)).fetchone()
                if dead is not None and not dead[0]:
                    continue
                hand_back(conn, worker, crashed=True)
                buried.append(worker)
            return buried

        buried: list[str] = await self._database.write(bury, [("worker", worker) for worker in expired])
        return buried
