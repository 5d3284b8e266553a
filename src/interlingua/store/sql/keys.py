"""API keys as SQL: records that the security package writes and reads."""

from __future__ import annotations

from collections.abc import Callable

from .database import Database
from .dialect import Connection


class SqlKeys:
    """API keys, by their ids."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_change: Callable[[str], None] = lambda id_: None

    async def put(self, id_: str, record: bytes) -> None:
        await self._database.write(
            lambda conn: conn.execute(
                "INSERT INTO api_keys (id, record) VALUES (?,?) ON CONFLICT (id) DO UPDATE SET record=excluded.record",
                (id_, record),
            )
        )
        self.on_change(id_)

    async def change(self, id_: str, change: Callable[[bytes], bytes | None]) -> bool:
        """Read and write in one transaction: nothing that another process changes meanwhile is undone. Whether there
        was something to change."""

        def apply(conn: Connection) -> bool:
            row = conn.execute(f"SELECT record FROM api_keys WHERE id=?{conn.dialect.for_update}", (id_,)).fetchone()
            new = None if row is None else change(row[0])
            if new is not None:
                conn.execute("UPDATE api_keys SET record=? WHERE id=?", (new, id_))
            return new is not None

        done: bool = await self._database.write(apply)
        self.on_change(id_)
        return done

    async def get(self, id_: str) -> bytes | None:
        row = await self._database.read_row(
            lambda conn: conn.execute("SELECT record FROM api_keys WHERE id=?", (id_,)).fetchone()
        )
        return row[0] if row else None

    async def list(self, limit: int = -1) -> list[bytes]:
        sql = "SELECT record FROM api_keys ORDER BY id LIMIT ?"
        rows = await self._database.read(lambda conn: conn.execute(sql, (limit if limit >= 0 else 1 << 62,)).fetchall())
        return [row[0] for row in rows]
