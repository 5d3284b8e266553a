"""The default store: one SQLite file, shared by as many processes of one machine as like."""

from __future__ import annotations

from pathlib import Path

from ...model.errors import StoreError
from ...runtime.clock import SYSTEM_CLOCK, Clock
from ..sql.store import SqlStore
from .database import SQLiteDatabase
from .worker_locks import FileLiveness, folder_of


class SQLiteStore(SqlStore):
    database: SQLiteDatabase

    def __init__(self, path: Path | str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = Path(path)
        database = SQLiteDatabase(self.path, clock)
        self.liveness = FileLiveness(database, folder_of(self.path))
        super().__init__(database, self.liveness, str(path))

    async def open(self, *, read_only: bool = False) -> None:
        await self.database.open(lambda: self.on_change(), read_only=read_only)

    async def close(self) -> None:
        await self.database.stop_writing()
        self.liveness.release_all()
        await self.database.stop_reading()

    def trouble(self) -> str | None:
        return self.database.trouble()

    async def damaged_pages(self, *, thorough: bool) -> list[str]:
        """Lists the damage that SQLite finds in the file itself."""
        pragma = "PRAGMA integrity_check(20)" if thorough else "PRAGMA quick_check(20)"
        try:
            rows = await self.database.search(lambda conn: conn.execute(pragma).fetchall())
        except StoreError as error:  # some damage ends the search for it
            return [str(error)]
        return [row[0] for row in rows if row[0] != "ok"]
