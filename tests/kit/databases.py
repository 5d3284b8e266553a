"""Behind a store's back: looking into its database, changing it, and keeping it from committing or keeping."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interlingua.model.errors import StoreError
from interlingua.store.postgres.connection import connect, place


def sql(store: Path | str, query: str, *args: Any) -> list[Any]:
    """One statement, committed, and the rows that it gives back. Values are `?`."""
    if isinstance(store, str):
        conn = connect(place(store), writes=True)
        try:
            found = conn.execute(query, args)
            return found.fetchall() if _has_rows(found) else []
        finally:
            conn.raw.close()
    file = sqlite3.connect(store, timeout=10)
    try:
        rows = file.execute(query, args).fetchall()
        file.commit()
    finally:
        file.close()
    return rows


def _has_rows(cursor: Any) -> bool:
    return cursor.description is not None


@contextmanager
def disk_is_busy(store: Path | str) -> Iterator[None]:
    """As long as this lasts, nothing can be committed."""
    if isinstance(store, str):
        conn = connect(place(store), writes=True)
        with conn.raw.transaction():
            conn.execute("LOCK TABLE writers IN EXCLUSIVE MODE")  # every transaction notes itself there
            yield
        conn.raw.close()
        return
    file = sqlite3.connect(store, isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        file.execute("ROLLBACK")
        file.close()


def keeps_not_once(store: Any, which: Callable[[Any], bool]) -> list[Any]:
    """The first changes of which one is of this kind are not kept. They are in what this returns then."""
    keep, failed = store.documents.write, list[Any]()

    def fails_once(changes: Any, heed: Any = None) -> Any:
        if not failed and any(which(change) for change in changes):
            failed.append(changes)
            future = asyncio.get_running_loop().create_future()
            future.set_exception(StoreError("the disk is full"))
            return future
        return keep(changes, heed)

    store.documents.write = fails_once
    return failed
