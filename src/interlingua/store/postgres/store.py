"""The store for many machines: a PostgreSQL database, or a schema of one, shared by as many processes as like."""

from __future__ import annotations

from ...runtime.clock import SYSTEM_CLOCK, Clock
from ..address import shown
from ..sql.store import SqlStore
from .connection import place
from .database import PostgresDatabase
from .leases import Leases
from .liveness import LeaseLiveness


class PostgresStore(SqlStore):
    database: PostgresDatabase

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK) -> None:
        database = PostgresDatabase(place(url), clock)
        self.liveness = LeaseLiveness(database)
        super().__init__(database, self.liveness, shown(url))

    async def open(self, *, read_only: bool = False) -> None:
        await self.database.open(lambda: self.on_change(), self.waits_for_server, read_only=read_only)
        self.liveness.leases = Leases(self.database.where, self._tell_lost, self.clock)

    async def close(self) -> None:
        await self.database.stop_writing()
        await self.database.loop.run_in_executor(None, self.liveness.leases.close)
        await self.database.stop_reading()

    def _tell_lost(self, worker: str) -> None:
        self.database.loop.call_soon_threadsafe(lambda: self.claims.on_lost(worker))
