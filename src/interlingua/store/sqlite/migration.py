"""The tables of a SQLite file: making them, and bringing them to the newest schema."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...model import json_values
from ...model.errors import Conflict
from .. import schema
from ..address import NoStore
from ..rows import WorkerRow
from ..sql.dialect import Connection
from .connection import SQLiteConnection, begin, connect
from .worker_locks import Locks, folder_of

_APPLICATION = 0x494C4731  # "ILG1": the mark of our files, in SQLite's application_id
_EARLY = 0x494C4753  # "ILGS": the mark of files from before the first release


def migrate(path: Path, *, dry: bool = False, known: list[schema.Step] | None = None) -> schema.Plan:
    """Bring the file to the newest schema, or only tell what that would be. Safe to call from many processes at
    once."""
    known = schema.steps("sqlite") if known is None else known
    if dry and not path.exists():
        return schema.plan(str(path), 0, known, list)
    _refuse_foreign(path)
    conn = connect(path)
    try:
        if not dry:
            path.chmod(0o600)
        begin(conn)
        try:
            done = _version(path, conn)
            plan = schema.plan(str(path), done, known, lambda: _alive(path, conn))
            if not dry:
                schema.refuse_beside_others(str(path), plan)
                for step in plan.ahead:
                    for statement in step.sql.split(";\n"):
                        if statement.strip():
                            conn.execute(statement)
                conn.execute(f"PRAGMA user_version={len(known)}")
                conn.execute(f"PRAGMA application_id={_APPLICATION}")
            conn.execute("COMMIT")
        except BaseException:
            conn.execute("ROLLBACK")
            raise
    finally:
        conn.close()
    return plan


def check_readable(path: Path, conn: Connection) -> None:
    """Raises where a file is no store, or one of another schema than this program reads."""
    plan = schema.plan(str(path), _version(path, conn), schema.steps("sqlite"), list)
    if not plan.found:
        raise NoStore(path)
    schema.check_readable(str(path), plan)


def _refuse_foreign(path: Path) -> None:
    """Raise where the file is not a store, before anything of it is changed: a connection of ours sets its journal."""
    if not path.exists() or not path.stat().st_size:
        return
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30, factory=SQLiteConnection)
    try:
        conn.execute("BEGIN")  # one view of the file: another process may be creating the tables now
        _version(path, conn)
    finally:
        conn.close()


def _version(path: Path, conn: Connection) -> int:
    """The schema version of the file; 0 for a new one. Raises where the file is not a store of this program."""
    version: int = conn.execute("PRAGMA user_version").fetchone()[0]
    mark: int = conn.execute("PRAGMA application_id").fetchone()[0]
    if mark == _APPLICATION:
        return version
    names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    if mark == _EARLY or {"runs", "events", "checkpoints"} <= names:
        raise schema.too_old(str(path), "another file")
    if names or version or mark:
        raise Conflict(f"{path} is a SQLite file of another program; name another file for the store")
    return 0


def _alive(path: Path, conn: Connection) -> list[WorkerRow]:
    locks = Locks(folder_of(path))
    rows = conn.execute("SELECT id, host, pid, started_at, queues FROM workers").fetchall()
    return [
        WorkerRow(row[0], row[1], row[2], row[3], json_values.decode(row[4])) for row in rows if not locks.dead(row[0])
    ]
