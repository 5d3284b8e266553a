"""Opens the store at an address: PostgreSQL for `postgresql://…`, a SQLite file for anything else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import extras
from ..model.errors import StoreError
from ..runtime.clock import SYSTEM_CLOCK, Clock
from .address import CannotOpen, NoStore, is_postgres, shown, whole

if TYPE_CHECKING:
    from .ports import Store
    from .schema import Plan

__all__ = ["CannotOpen", "NoStore", "is_postgres", "migrate", "open_store", "shown"]


def migrate(where: str | Path, *, dry: bool = False) -> Plan:
    """Migrates a store to the newest schema, as opening it does. Returns the steps; with `dry`, takes none of them."""
    if not is_postgres(where):
        import sqlite3

        from .sqlite.migration import migrate as migrate_sqlite

        try:
            return migrate_sqlite(Path(where), dry=dry)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{where} cannot be read as a store", why=error) from error
    _check_driver()
    import psycopg

    from .postgres import connection
    from .postgres.migration import migrate as migrate_postgres

    try:
        return migrate_postgres(connection.place(whole(where)), dry=dry)
    except psycopg.Error as error:
        raise StoreError("the store cannot be opened", why=error) from error


def open_store(where: str | Path, clock: Clock = SYSTEM_CLOCK) -> Store:
    """Returns the store at an address. Its `open` opens it. `:memory:` is one that is gone when it is closed."""
    if where == ":memory:":
        from .sqlite.memory import MemoryStore

        return MemoryStore(clock)
    if not is_postgres(where):
        from .sqlite.store import SQLiteStore

        return SQLiteStore(where, clock)
    _check_driver()
    from .postgres.store import PostgresStore

    return PostgresStore(whole(where), clock)


def _check_driver() -> None:
    extras.require("a store on PostgreSQL", "psycopg", "postgres", "psycopg")
