"""Configured instances, API keys and delegations, as SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...model import json_values
from ...model.errors import NotFound
from ...model.run import Instance
from ..changes import CountDelegation, Counted
from ..rows import DelegationRow
from .database import Connection, Queries
from .delegations import COLUMNS, count_now, counted, started

_instances = msgspec.json.Decoder(Instance)


class RecordQueries(Queries):
    """The part of a store that keeps records which are no runs and no threads."""

    on_key_change: Callable[[str], None]

    # -- configured instances -----------------------------------------------------------------------------

    async def put_instance(self, instance: Instance) -> None:
        await self._write(
            lambda conn: conn.execute(
                "INSERT INTO instances (id, agent, version, caller, created_at, instance) VALUES (?,?,?,?,?,?)",
                (instance.id, instance.agent, instance.version, instance.caller, instance.created_at,
                 json_values.encode(instance)),
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
        terms, args = ["1=1"], list[Any]()
        for column, value in (("agent", agent), ("version", version), ("caller", caller)):
            if value is not None:
                terms.append(f"{column}=?")
                args.append(value)
        sql = f"SELECT instance FROM instances WHERE {' AND '.join(terms)} ORDER BY id LIMIT ? OFFSET ?"
        rows = await self._read(lambda conn: conn.execute(sql, [*args, limit, offset]).fetchall())
        return [_instances.decode(row[0]) for row in rows]

    async def delete_instance(self, instance: str) -> None:
        def delete(conn: Connection) -> None:
            if not conn.execute("SELECT 1 FROM instances WHERE id=?", (instance,)).fetchone():
                raise NotFound(f"there is no configured instance {instance}")
            conn.execute("DELETE FROM instances WHERE id=?", (instance,))

        await self._write(delete)

    # -- API keys, as the security package writes them ----------------------------------------------------

    async def put_key(self, id_: str, record: bytes) -> None:
        await self._write(
            lambda conn: conn.execute(
                "INSERT INTO api_keys (id, record) VALUES (?,?) ON CONFLICT (id) DO UPDATE SET record=excluded.record",
                (id_, record),
            )
        )
        self.on_key_change(id_)

    async def change_key(self, id_: str, change: Callable[[bytes], bytes | None]) -> bool:
        """Read and write in one transaction: nothing that another process changes meanwhile is undone. Whether there
        was something to change."""

        def apply(conn: Connection) -> bool:
            found = conn.execute(f"SELECT record FROM api_keys WHERE id=?{conn.dialect.for_update}", (id_,)).fetchone()
            new = None if found is None else change(found[0])
            if new is not None:
                conn.execute("UPDATE api_keys SET record=? WHERE id=?", (new, id_))
            return new is not None

        done: bool = await self._write(apply)
        self.on_key_change(id_)
        return done

    async def key_record(self, id_: str) -> bytes | None:
        row = await self._point(lambda conn: conn.execute("SELECT record FROM api_keys WHERE id=?", (id_,)).fetchone())
        return row[0] if row else None

    async def key_records(self, limit: int = -1) -> list[bytes]:
        sql = "SELECT record FROM api_keys ORDER BY id LIMIT ?"
        rows = await self._read(lambda conn: conn.execute(sql, (limit if limit >= 0 else 1 << 62,)).fetchall())
        return [row[0] for row in rows]

    # -- delegations --------------------------------------------------------------------------------------

    async def delegations(self, task: str) -> list[DelegationRow]:
        sql = f"SELECT {COLUMNS} FROM delegations WHERE task=? ORDER BY run"
        found = await self._read(lambda conn: conn.execute(sql, (task,)).fetchall())
        return [DelegationRow(*row) for row in found]

    async def started(self, task: str, runs: Sequence[str]) -> list[int]:
        return await self._read(lambda conn: started(conn, task, runs))

    async def delegate(self, wanted: CountDelegation) -> Counted:
        # Most were counted with the log of the run that delegates, and then there is nothing to write.
        found = await self._read(lambda conn: counted(conn, wanted.run))
        if found is None:
            found = await self._write(lambda conn: count_now(conn, wanted), [("task", wanted.task)])
        return found

    async def labelled(self, label: str) -> list[DelegationRow]:
        sql = f"SELECT {COLUMNS} FROM delegations WHERE label=? OR (label>? AND label<?) ORDER BY run"
        found = await self._read(lambda conn: conn.execute(sql, (label, f"{label}.", f"{label}/")).fetchall())
        return [DelegationRow(*row) for row in found]

    async def undelegate(self, run: str) -> None:
        await self._write(lambda conn: conn.execute("DELETE FROM delegations WHERE run=?", (run,)))
