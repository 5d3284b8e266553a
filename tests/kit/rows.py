"""Rows of runs and events, put into a store below the engine."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from interlingua.engine.ids import new_id, now
from interlingua.model import hash_chain
from interlingua.model.status import Status
from interlingua.store.changes import Change, Sealed
from interlingua.store.ports import Store
from interlingua.store.postgres.store import PostgresStore
from interlingua.store.rows import EVENT_COLUMNS, EventRow, RunRow
from interlingua.store.sql.dialect import Connection, plain
from interlingua.store.sql.dialect import insert as insert_rows
from interlingua.store.sql.log_side_effects import apply_change
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite.store import SQLiteStore


def row(**fields: Any) -> RunRow:
    made = RunRow(
        new_id(), "a", "1", Status.PENDING, "me", None, None, "", b"{}", now(), now(), None, 0, 1, hash_chain.GENESIS,
        0, 0, 0, None,
    )  # fmt: skip
    made = msgspec.structs.replace(made, **fields)
    made.queue = made.queue or f"{made.agent}@{made.version}"
    return made


def event(run: str, seq: int, kind: str = "delta", body: bytes = b'{"kind":"thought","text":"x"}') -> EventRow:
    return EventRow(run, seq, kind, now(), b"h" * 32, body)


class Log:
    """The simplest thing that appends: one transaction, given in full."""

    def __init__(self, store: Store, sealed: Sealed) -> None:
        self.sealed = sealed
        sealed.log = self
        self.done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        store.runs.append(self)

    def seal(self) -> Sealed:
        return self.sealed

    def committed(self, sealed: Sealed) -> None:
        self.done.set_result(None)

    def refused(self, sealed: Sealed, error: BaseException) -> None:
        self.done.set_result(error)


async def append(
    store: SqlStore, r: RunRow, expected: int, *events: EventRow, insert: bool = False,
    changes: list[Change] | None = None,
) -> BaseException | None:  # fmt: skip
    """`insert`: put the row there as it is, in whatever state."""
    if insert:
        return await _insert(store, copy.copy(r), events, changes or [])
    log = Log(store, Sealed(None, copy.copy(r), expected, list(events), changes or [], 1))  # type: ignore[arg-type]
    return await log.done


async def _insert(
    store: SqlStore, r: RunRow, events: Sequence[EventRow], changes: list[Change]
) -> BaseException | None:  # fmt: skip
    def put(conn: Connection) -> None:
        conn.dialect.insert_runs(conn, [plain(r)])
        insert_rows(conn, "events", EVENT_COLUMNS, [(e.run, e.seq, e.kind, e.time, e.hash, e.body) for e in events])
        for change in changes:
            apply_change(conn, change, r.updated_at)

    try:
        await store.database.write(put)
    except Exception as error:
        return error
    return None


async def owned(store: SqlStore, **fields: Any) -> RunRow:
    """A run in the store that worker w owns."""
    r = row(worker="w", epoch=1, wake_at=None, next_seq=2, status=Status.RUNNING, **fields)
    assert await append(store, r, 1, event(r.id, 1, "created"), insert=True) is None
    return r


def at(where: Path | str) -> SqlStore:
    """The store there, not open yet."""
    return PostgresStore(where) if isinstance(where, str) else SQLiteStore(where)
