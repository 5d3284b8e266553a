"""Configured instances of agents, as SQL."""

from __future__ import annotations

from typing import Any

import msgspec

from ...model import json_values
from ...model.errors import NotFound
from ...model.run import Instance
from .database import Database
from .dialect import Connection

_instances = msgspec.json.Decoder(Instance)


class SqlInstances:
    """Configured instances of agents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, instance: Instance) -> None:
        await self._database.write(
            lambda conn: conn.execute(
                "INSERT INTO instances (id, agent, version, caller, created_at, instance) VALUES (?,?,?,?,?,?)",
                (instance.id, instance.agent, instance.version, instance.caller, instance.created_at,
                 json_values.encode(instance)),
            )
        )  # fmt: skip

    async def get(self, instance: str) -> Instance | None:
        row = await self._database.read(
            lambda conn: conn.execute("SELECT instance FROM instances WHERE id=?", (instance,)).fetchone()
        )
        return _instances.decode(row[0]) if row else None

    async def list(
        self, *, agent: str | None = None, version: str | None = None, caller: str | None = None,
        limit: int = 100, offset: int = 0,
    ) -> list[Instance]:  # fmt: skip
        terms, args = ["1=1"], list[Any]()
        for column, value in (("agent", agent), ("version", version), ("caller", caller)):
            if value is not None:
                terms.append(f"{column}=?")
                args.append(value)
        sql = f"SELECT instance FROM instances WHERE {' AND '.join(terms)} ORDER BY id LIMIT ? OFFSET ?"
        rows = await self._database.read(lambda conn: conn.execute(sql, [*args, limit, offset]).fetchall())
        return [_instances.decode(row[0]) for row in rows]

    async def delete(self, instance: str) -> None:
        def delete(conn: Connection) -> None:
            if not conn.execute("SELECT 1 FROM instances WHERE id=?", (instance,)).fetchone():
                raise NotFound(f"there is no configured instance {instance}")
            conn.execute("DELETE FROM instances WHERE id=?", (instance,))

        await self._database.write(delete)
