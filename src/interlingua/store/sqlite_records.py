"""Callbacks, configured instances and API keys in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..model import values
from ..model.errors import NotFound
from ..model.run import Instance
from .base import CallbackRow
from .sqlite_writer import Call

T = TypeVar("T")

_CALLBACK = "id, run, url, format, status, time, state, attempts, next_at, error"
_instances = msgspec.json.Decoder(Instance)


class RecordQueries:
    """The part of SQLiteStore that keeps records which are no runs and no threads."""

    _write: Callable[[Call], asyncio.Future[Any]]

    async def _read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        raise AssertionError("given by SQLiteStore")

    # -- callbacks ----------------------------------------------------------------------------------------

    async def claim_callbacks(self, now: int, lease_until: int, limit: int) -> list[CallbackRow]:
        """Those that are due, the oldest of each run. Nobody else gets them before `lease_until`."""

        def claim(conn: sqlite3.Connection) -> list[CallbackRow]:
            rows = conn.execute(
                f"SELECT {_CALLBACK} FROM callbacks c WHERE state='due' AND next_at<=? AND NOT EXISTS "
                "(SELECT 1 FROM callbacks o WHERE o.run=c.run AND o.id<c.id AND o.state='due') "
                "ORDER BY next_at LIMIT ?",
                (now, limit),
            ).fetchall()
            conn.executemany("UPDATE callbacks SET next_at=? WHERE id=?", [(lease_until, row[0]) for row in rows])
            return [CallbackRow(*row) for row in rows]

        found: list[CallbackRow] = await self._write(claim)
        return found

    async def next_callback(self) -> int | None:
        row = await self._read(
            lambda conn: conn.execute("SELECT MIN(next_at) FROM callbacks WHERE state='due'").fetchone()
        )
        return None if row is None else row[0]

    async def settle_callback(self, id_: int, *, state: str, attempts: int, next_at: int, error: str | None) -> None:
        await self._write(
            lambda conn: conn.execute(
                "UPDATE callbacks SET state=?, attempts=?, next_at=?, error=? WHERE id=?",
                (state, attempts, next_at, error, id_),
            )
        )

    async def callbacks(
        self, *, run: str | None = None, state: str | None = None, limit: int = 100
    ) -> list[CallbackRow]:
        terms, args = ["1"], list[Any]()
        for column, value in (("run", run), ("state", state)):
            if value is not None:
                terms.append(f"{column}=?")
                args.append(value)
        sql = f"SELECT {_CALLBACK} FROM callbacks WHERE {' AND '.join(terms)} ORDER BY id LIMIT ?"
        rows = await self._read(lambda conn: conn.execute(sql, [*args, limit]).fetchall())
        return [CallbackRow(*row) for row in rows]

    # -- configured instances -----------------------------------------------------------------------------

    async def put_instance(self, instance: Instance) -> None:
        await self._write(
            lambda conn: conn.execute(
                "INSERT INTO instances (id, agent, version, caller, created_at, instance) VALUES (?,?,?,?,?,?)",
                (instance.id, instance.agent, instance.version, instance.caller, instance.created_at,
                 values.encode(instance)),
            )
        )  # fmt: skip

    async def instance(self, instance: str) -> Instance | None:
        row = await self._read(
            lambda conn: conn.execute("SELECT instance FROM instances WHERE id=?", (instance,)).fetchone()
        )
        return _instances.decode(row[0]) if row else None

    async def instances(
        self, *, agent: str | None = None, version: str | None = None, caller: str | None = None,
        limit: int = 100, offset: int = 0,
    ) -> list[Instance]:  # fmt: skip
        terms, args = ["1"], list[Any]()
        for column, value in (("agent", agent), ("version", version), ("caller", caller)):
            if value is not None:
                terms.append(f"{column}=?")
                args.append(value)
        sql = f"SELECT instance FROM instances WHERE {' AND '.join(terms)} ORDER BY id LIMIT ? OFFSET ?"
        rows = await self._read(lambda conn: conn.execute(sql, [*args, limit, offset]).fetchall())
        return [_instances.decode(row[0]) for row in rows]

    async def delete_instance(self, instance: str) -> None:
        def delete(conn: sqlite3.Connection) -> None:
            if not conn.execute("SELECT 1 FROM instances WHERE id=?", (instance,)).fetchone():
                raise NotFound(f"there is no configured instance {instance}")
            conn.execute("DELETE FROM instances WHERE id=?", (instance,))

        await self._write(delete)

    # -- API keys, as the security package writes them ----------------------------------------------------

    async def put_key(self, id_: str, record: bytes) -> None:
        await self._write(
            lambda conn: conn.execute("INSERT OR REPLACE INTO api_keys (id, record) VALUES (?,?)", (id_, record))
        )

    async def key_record(self, id_: str) -> bytes | None:
        row = await self._read(lambda conn: conn.execute("SELECT record FROM api_keys WHERE id=?", (id_,)).fetchone())
        return row[0] if row else None

    async def key_records(self) -> list[bytes]:
        rows = await self._read(lambda conn: conn.execute("SELECT record FROM api_keys ORDER BY id").fetchall())
        return [row[0] for row in rows]
