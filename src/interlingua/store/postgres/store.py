"""The store for many machines: a PostgreSQL database, or a schema of one, shared by as many processes as like.

The SQL is that of every store. What is here is how one comes to a connection and to a new one when the server was away,
who is alive (leases by the database's clock), and the schema. Without a bus, what others write is found by looking.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql as text

from ...model import json_values
from ...model.errors import StoreError
from .. import open as opening
from .. import schema
from ..rows import WorkerRow
from ..sql import admission as transactions
from ..sql.database import Connection, Dialect
from ..sql.runs import SQLStore
from .connection import POSTGRES, Place, PostgresConnection, connect, is_away, lost, place
from .leases import RUN_OUT, Leases, alive
from .writer import PostgresWriter

T = TypeVar("T")
log = logging.getLogger("interlingua.store")

_READ_PATIENCE = 10.0  # seconds that a read waits for a server that is away
_PAUSE = 0.1
_START_PAUSE = 0.5  # seconds between looks for a server that is away when this process starts
_NAME = "the store"
_FORGOTTEN = "7 days"  # what a writer that was killed has left

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


class PostgresStore(SQLStore):
    dialect: Dialect = POSTGRES
    _writer: PostgresWriter

    def __init__(self, url: str) -> None:
        super().__init__()
        self.where = place(url)
        self.shown = opening.shown(url)
        # Leases are renewed four times in that time, and a server that has just started gives everybody one of them.
        self.missed_after = self.where.lease
        self._local = threading.local()
        self._connections: list[PostgresConnection] = []
        self._entered = set[str]()  # workers of this process

    # -- life ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._start_threads()
        try:
            await self._until_server_is_there(functools.partial(migrate, self.where))
            self._writer = PostgresWriter(self.where, str(uuid4()), self._loop)
            await self._loop.run_in_executor(self._readers, self._writer.start)
        except BaseException as error:
            await self._stop_threads()
            if isinstance(error, psycopg.Error):
                raise StoreError("the store cannot be opened", why=error) from error
            raise
        self._leases = Leases(self.where, self._tell_lost)
        self._look = self._loop.call_later(self.where.poll, self._looked)

    async def _until_server_is_there(self, work: Callable[[], object]) -> None:
        waits = False
        while True:
            try:
                await self._loop.run_in_executor(self._readers, work)
            except psycopg.OperationalError as error:
                if not self.waits_for_server or not is_away(error):
                    raise
                if not waits:
                    log.warning("the store cannot be reached; waiting for it: %s", " ".join(str(error).split()))
                    waits = True
                await asyncio.sleep(_START_PAUSE)
            else:
                if waits:
                    log.warning("the store is there")
                return

    async def close(self) -> None:
        self._look.cancel()
        await self._writer.close()
        await self._loop.run_in_executor(None, self._leases.close)
        await self._stop_threads()
        for conn in self._connections:
            conn.raw.close()
        self._connections.clear()

    def _looked(self) -> None:
        """Nobody says when others have written: it may always be."""
        self._look = self._loop.call_later(self.where.poll, self._looked)
        self.on_foreign_change()

    def _searching(self) -> None:
        self._local.searches = True

    def _with_connection(self, fn: Callable[[Connection], T]) -> T:
        deadline = None
        while True:
            conn: PostgresConnection | None = getattr(self._local, "conn", None)
            try:
                if conn is None:
                    conn = connect(self.where, writes=False, searches=getattr(self._local, "searches", False))
                    self._local.conn = conn
                    self._connections.append(conn)
                return fn(conn)
            except psycopg.OperationalError as error:
                if not lost(conn, error):
                    raise
                if conn is not None:  # it had one, and that broke: at once on a new one
                    self._local.conn = None
                    self._connections.remove(conn)
                    conn.raw.close()
                    if deadline is None:
                        deadline = time.monotonic() + _READ_PATIENCE
                        continue
                if deadline is None:
                    deadline = time.monotonic() + _READ_PATIENCE
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    # -- workers ------------------------------------------------------------------------------------------

    async def enter(self, worker: WorkerRow) -> None:
        lease = self.where.lease
        given = (worker.id, worker.host, worker.pid, worker.started_at, json_values.encode(worker.queues), lease)

        def enter(conn: Connection) -> None:
            conn.execute(_ENTER, given)
            self._writer.be_found(alive(worker.id))

        await self._write(enter)
        self._entered.add(worker.id)
        self._leases.hold(worker.id)

    async def leave(self, worker: str) -> None:
        self._entered.discard(worker)
        self._leases.release(worker)
        await self._write(lambda conn: transactions.hand_back(conn, worker, crashed=False), [("worker", worker)])

    def _lives(self, conn: Connection, worker: str) -> bool:
        """One that was buried and has not heard of it yet takes nothing: that would at once be taken away again."""
        if worker not in self._entered:
            return True
        sql = "SELECT 1 FROM workers WHERE id=? FOR KEY SHARE"  # nobody buries it until this is committed
        return conn.execute(sql, (worker,)).fetchone() is not None

    async def bury(self) -> list[str]:
        """Hand back the runs of workers that died. Returns those workers."""
        lease = self.where.lease
        rows = await self._read(lambda conn: conn.execute(_DEAD, (lease,)).fetchall())
        found = [row[0] for row in rows if not self._leases.holds(row[0])]
        if not found:
            return []

        def hand_back(conn: Connection) -> list[str]:
            buried = []
            conn.lock(*(("worker", worker) for worker in found))
            for worker in found:
                # It may have come back since, or somebody else may have buried it: that is decided by its row, which
                # nobody renews while it is locked.
                dead = conn.execute(f"SELECT {RUN_OUT} FROM workers WHERE id=? FOR UPDATE", (lease, worker)).fetchone()
                if dead is not None and not dead[0]:
                    continue
                transactions.hand_back(conn, worker, crashed=True)
                buried.append(worker)
            return buried

        buried: list[str] = await self._write(hand_back, [("worker", worker) for worker in found])
        return buried

    def _tell_lost(self, worker: str) -> None:
        self._loop.call_soon_threadsafe(lambda: self.on_lost(worker))


def migrate(where: Place, *, dry: bool = False, known: list[schema.Step] | None = None) -> schema.Plan:
    """Bring the schema to the newest version, or only tell what that would be. Safe to call from many processes at
    once."""
    known = schema.steps("postgres") if known is None else known
    conn = connect(where, writes=not dry)
    raw = conn.raw
    try:
        with raw.transaction():
            if dry:
                return schema.plan(_NAME, _version(conn), known, lambda: _alive(conn, where))
            conn.begun()
            conn.lock(("schema", ""))
            if where.schema is not None:
                raw.execute(text.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(text.Identifier(where.schema)))
            raw.execute(
                "CREATE TABLE IF NOT EXISTS interlingua_schema "
                "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())"
            )
            plan = schema.plan(_NAME, _version(conn), known, lambda: _alive(conn, where))
            schema.refuse_beside_others(_NAME, plan)
            for step in plan.ahead:
                raw.execute(step.sql.encode())
                raw.execute("INSERT INTO interlingua_schema (version, name) VALUES (%s, %s)", (step.number, step.name))
            raw.execute("DELETE FROM writers WHERE seen_at<now()-CAST(%s AS interval)", (_FORGOTTEN,))
            return plan
    finally:
        raw.close()


def _version(conn: PostgresConnection) -> int:
    """0 where there is none yet."""
    old, new = (_exists(conn, name) for name in ("schema_migrations", "interlingua_schema"))
    if old and not new and _exists(conn, "checkpoints"):
        raise schema.too_old(_NAME, "another PostgreSQL schema")
    if not new:
        return 0
    found = conn.raw.execute("SELECT COALESCE(max(version), 0) FROM interlingua_schema").fetchone()
    return int(found[0]) if found else 0


def _exists(conn: PostgresConnection, table: str) -> bool:
    found = conn.raw.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    return found is not None and found[0] is not None


def _alive(conn: PostgresConnection, where: Place) -> list[WorkerRow]:
    sql = f"SELECT id, host, pid, started_at, queues FROM workers WHERE NOT ({RUN_OUT})"
    rows = conn.execute(sql, (where.lease,)).fetchall()
    return [WorkerRow(row[0], row[1], row[2], row[3], json_values.decode(row[4])) for row in rows]
