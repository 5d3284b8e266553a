"""Which store an address means: a PostgreSQL database for `postgresql://…`, a SQLite file for anything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from .. import extras
from ..model.errors import InvalidRequest, StoreError

if TYPE_CHECKING:
    from .ports import Store
    from .schema import Plan

# One slash is enough: a Path has made one of several.
_POSTGRES = re.compile("(postgres(?:ql)?):/+")


class CannotOpen(InvalidRequest):
    """What is at a place is no store, and none can be made there."""

    def __init__(self, where: str | Path, why: object) -> None:
        super().__init__(f"the store {where} cannot be opened: {why}")
        self.hint = "choose another one with --store or INTERLINGUA_STORE"


def is_postgres(where: str | Path) -> bool:
    return _POSTGRES.match(str(where)) is not None


def shown(where: str | Path) -> str:
    """An address as it may be seen: without its password."""
    if not is_postgres(where):
        return str(where)
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:***@", _whole(where))


def _whole(where: str | Path) -> str:
    return _POSTGRES.sub(r"\1://", str(where), count=1)


def migrate(where: str | Path, *, dry: bool = False) -> Plan:
    """Bring a store to the newest schema, as opening it does, and tell what was done; `dry`: what would be."""
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
        return migrate_postgres(connection.place(_whole(where)), dry=dry)
    except psycopg.Error as error:
        raise StoreError("the store cannot be opened", why=error) from error


def open_store(where: str | Path) -> Store:
    """The store at an address. It is opened by its `open`."""
    if not is_postgres(where):
        from .sqlite.store import SQLiteStore

        return SQLiteStore(where)
    _check_driver()
    from .postgres.store import PostgresStore

    return PostgresStore(_whole(where))


def _check_driver() -> None:
    extras.require("a store on PostgreSQL", "psycopg", "postgres", "psycopg")
