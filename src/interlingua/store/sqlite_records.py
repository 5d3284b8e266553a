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
# In order per run: while one waits, those after it wait too.
_OLDEST = "NOT EXISTS (SELECT 1 FROM callbacks o WHERE o.run=c.run AND o.id<c.id AND o.state='due')"
_instances = msgspec.json.Decoder(Instance)


class RecordQueries:
    """The part of SQLiteStore that keeps records which are no runs and no threads."""

    _write: Callable[[Call], asyncio.Future[Any]]

    async def _read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        raise AssertionError("given by SQLiteStore")

    # -- callbacks ----------------------------------------------------------------------------------------

    async def claim_callbacks(
        self, now: int, lease_until: int, limit: int, *, busy: dict[str, int], per_receiver: int
    ) -> list[CallbackRow]:
        """Those that are due, the oldest of each run. Nobody else gets them before `lease_until`.

        `busy` counts what is under way to each receiver: one that hangs must not take every place.
        """

        def claim(conn: sqlite3.Connection) -> list[CallbackRow]:
            rows = conn.execute(
                f"SELECT {_CALLBACK} FROM callbacks c WHERE state='due' AND next_at<=? AND {_OLDEST} "
                "ORDER BY next_at, id",
                (now,),
            )
            taken: list[CallbackRow] = []
            under_way = dict(busy)
            for found in rows:
                row = CallbackRow(*found)
                if under_way.get(row.receiver, 0) >= per_receiver:
                    continue
                under_way[row.receiver] = under_way.get(row.receiver, 0) + 1
                taken.append(row)
                if len(taken) >= limit:
                    break
            rows.close()
            conn.executemany("UPDATE callbacks SET next_at=? WHERE id=?", [(lease_until, row.id) for row in taken])
            return taken

        claimed: list[CallbackRow] = await self._write(claim)
        return claimed

    async def next_callback(self) -> int | None:
        """When the next one is due. Those that wait for an earlier one of their run do not count."""
        sql = f"SELECT MIN(next_at) FROM callbacks c WHERE state='due' AND {_OLDEST}"
        row = await self._read(lambda conn: conn.execute(sql).fetchone())
        return None if row is None else row[0]

    async def settle_callback(self, id_: int, *, state: str, attempts: int, next_at: int, error: str | None) -> None:
        await self._write(
            lambda conn: conn.execute(
                "UPDATE callbacks SET state=?, attempts=?, next_at=?, error=? WHERE id=?",
                (state, attempts, next_at, error, id_),
            )
        )

    async def callbacks(
        self, *, run: str | None = None, state: str | None = None, failing: bool = False, newest: bool = False,
        limit: int = 100,
    ) -> list[CallbackRow]:  # fmt: skip
        """`failing`: those that failed and were not taken since, given up or not."""
        terms, args = ["1"], list[Any]()
        for column, value in (("run", run), ("state", state)):
            if value is not None:
                terms.append(f"{column}=?")
                args.append(value)
        if failing:
            terms.append("(state='failed' OR (state='due' AND attempts>0))")
        order = "id DESC" if newest else "id"
        sql = f"SELECT {_CALLBACK} FROM callbacks WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"
        rows = await self._read(lambda conn: conn.execute(sql, [*args, limit]).fetchall())
        return [CallbackRow(*row) for row in rows]

    async def count_callbacks(self) -> dict[str, int]:
        """How many there are, by state."""
        sql = "SELECT state, COUNT(*) FROM callbacks WHERE state<>'sent' GROUP BY state"
        return dict(await self._read(lambda conn: conn.execute(sql).fetchall()))

    async def retry_callbacks(self, ids: list[int] | None, now: int) -> list[int]:
        """Make those that failed due now, as if they had never been tried; all of them, or some. Which were there."""

        def retry(conn: sqlite3.Connection) -> list[int]:
            failing = "(state='failed' OR (state='due' AND attempts>0))"
            wanted = "" if ids is None else f" AND id IN ({','.join('?' * len(ids))})"
            found = conn.execute(f"SELECT id FROM callbacks WHERE {failing}{wanted} ORDER BY id", ids or []).fetchall()
            conn.executemany("UPDATE callbacks SET state='due', attempts=0, next_at=? WHERE id=?",
                             [(now, id_) for (id_,) in found])  # fmt: skip
            return [id_ for (id_,) in found]

        done: list[int] = await self._write(retry)
        return done

    async def forget_callbacks(self, before: int) -> None:
        await self._write(
            lambda conn: conn.execute("DELETE FROM callbacks WHERE state<>'due' AND time<?", (before,))
        )  # fmt: skip

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
