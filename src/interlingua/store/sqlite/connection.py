"""Connections to a SQLite file, and SQL as SQLite has it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ...runtime.clock import SYSTEM_CLOCK
from ..sql.dialect import RUN_COLUMNS, Connection, Dialect, Lead, Lock, Wanted, insert
from ..sql.document_writes import chunks, marks
from ..sql.json_terms import rows_of, searched

_LOCK_PATIENCE = 30.0
_ID, _METADATA, _CALLER = (RUN_COLUMNS.index(name) for name in ("id", "metadata", "caller"))
_FEW = 1000  # rows that are read and put in order rather than walked past
_SOME = 50_000  # rows whose ids are listed, so that others are not read on the way


class _SQLite(Dialect):
    error = sqlite3.Error
    operational = sqlite3.OperationalError
    integrity = sqlite3.IntegrityError
    indexes_json = True

    def page(
        self, conn: Connection, table: str, columns: str, key: str, where: str, args: Sequence[Any], limit: int,
        most_bytes: int,
    ) -> list[Any]:  # fmt: skip
        """Reads row by row: SQLite reads all of a row to pass it, so the sizes of later ones cost as much as they."""
        assert isinstance(conn, SQLiteConnection)
        rows, size, body = list[Any](), 0, columns.split(", ").index("body")
        sql = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {key} LIMIT ?"
        with closing(conn.execute(sql, (*args, limit))) as found:
            while size < most_bytes and (row := found.fetchone()) is not None:
                rows.append(row)
                size += len(row[body] or b"")
        return rows

    def lead(self, conn: Connection, table: str, wanted: Wanted, caller: str | None) -> Lead:
        """SQLite has no statistics: of what is wanted, the rarest is found by counting, up to what is worth a list."""
        fewest: tuple[int, tuple[int, int]] = _SOME + 1, (0, 0)
        for column, name, value in wanted:
            terms = searched(f"{table}.{column}", name, value, caller)
            sql = "SELECT count(*) FROM (SELECT 1 FROM terms WHERE term IN (?,?) LIMIT ?)"
            fewest = min(fewest, (int(conn.execute(sql, (*terms, fewest[0])).fetchone()[0]), terms))
        count, rarest = fewest
        if count > _SOME:
            return Lead()
        return Lead(["id IN (SELECT id FROM terms WHERE term IN (?,?))"], [*rarest], alone=count <= _FEW)

    def aside(self, term: str) -> str:
        return f"({term}) IS TRUE"  # which no index knows

    def index_json(
        self, conn: Connection, table: str, id_: str, *, before: Mapping[str, bytes], after: Mapping[str, bytes],
        caller: str,
    ) -> None:  # fmt: skip
        old, new = (
            {term for column, json in some.items() for term in rows_of(f"{table}.{column}", json, caller)}
            for some in (before, after)
        )
        for at in chunks(sorted(old - new)):
            conn.execute(f"DELETE FROM terms WHERE id=? AND term IN {marks(at)}", (id_, *at))
        if new - old:
            insert(conn, "terms", ("term", "id"), [(term, id_) for term in sorted(new - old)])

    def insert_runs(self, conn: Connection, rows: list[Any]) -> None:
        super().insert_runs(conn, rows)
        terms = [
            (term, row[_ID]) for row in rows for term in sorted(rows_of("runs.metadata", row[_METADATA], row[_CALLER]))
        ]
        if terms:
            insert(conn, "terms", ("term", "id"), terms)

    def insert_run(self, conn: Connection, row: tuple[Any, ...], turn: str, args: tuple[Any, ...]) -> None:
        super().insert_run(conn, row, turn, args)
        metadata = {"metadata": row[_METADATA]}
        self.index_json(conn, "runs", row[_ID], before={}, after=metadata, caller=row[_CALLER])


SQLITE = _SQLite()


class SQLiteConnection(sqlite3.Connection):
    dialect: Dialect = SQLITE

    def lock(self, *names: Lock) -> None:
        """Does nothing: a transaction that writes is alone, see `begin`."""


def connect(path: Path, *, read_only: bool = False) -> SQLiteConnection:
    """A connection with the settings that everything here counts on. One that only reads never makes a file."""
    conn = _open(f"{path.absolute().as_uri()}?mode={'rw' if read_only else 'rwc'}")
    _patiently(conn, "PRAGMA journal_mode=WAL")  # two processes that make a new file together: SQLite does not wait
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("PRAGMA foreign_keys=OFF")
    conn.execute("PRAGMA wal_autocheckpoint=4000")
    if read_only:
        _settle_reader(conn)
    else:
        conn.execute("PRAGMA cache_size=-32768")
        conn.execute("PRAGMA temp_store=MEMORY")
        conn.execute("PRAGMA busy_timeout=0")  # see begin()
    return conn


def connect_read_only(path: Path) -> SQLiteConnection:
    """A connection that cannot change the file, nor the settings of its journal."""
    # To follow a journal, SQLite needs a file that readers share. Where that cannot be made and there is no journal,
    # the store file is all there is: no process is writing it now.
    immutable = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    conn = _open(f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}")
    _settle_reader(conn)
    return conn


def _open(uri: str) -> SQLiteConnection:
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=_LOCK_PATIENCE,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=SQLiteConnection,
    )


def _settle_reader(conn: SQLiteConnection) -> None:
    conn.execute("PRAGMA cache_size=-4096")  # readers are many, and the system keeps the file's pages for all of them
    conn.execute("PRAGMA temp_store=MEMORY")
    conn.execute("PRAGMA query_only=ON")


def begin(conn: sqlite3.Connection) -> None:
    _patiently(conn, "BEGIN IMMEDIATE")


def _patiently(conn: sqlite3.Connection, sql: str) -> None:
    """Execute what needs the lock, waiting in short steps: SQLite's own waiting grows to 100 ms and starves the
    unlucky."""
    deadline = SYSTEM_CLOCK.monotonic() + _LOCK_PATIENCE
    pause = 0.0005
    while True:
        try:
            conn.execute(sql)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error):
                raise
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)
