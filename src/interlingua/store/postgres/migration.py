"""The tables of a PostgreSQL schema: making them, and bringing them to the newest version."""

from __future__ import annotations

from psycopg import sql as text

from ...model import json_values
from .. import schema
from ..address import NoStore
from ..rows import WorkerRow
from .connection import Place, PostgresConnection, connect
from .leases import RUN_OUT

_NAME = "the store"
_FORGOTTEN = "7 days"  # what a writer that was killed has left


def migrate(where: Place, *, dry: bool = False, known: list[schema.Step] | None = None) -> schema.Plan:
    """Bring the schema to the newest version, or only tell what that would be. Safe to call from many processes at
    once."""
    known = schema.steps("postgres") if known is None else known
    conn = connect(where, writes=not dry)
    raw = conn.raw
    try:
        with raw.transaction():
            if dry:
                return schema.plan(_NAME, _version(conn), known, lambda: _alive(conn, where))
            conn.begun()
            conn.lock(("schema", ""))
            if where.schema is not None:
                raw.execute(text.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(text.Identifier(where.schema)))
            raw.execute(
                "CREATE TABLE IF NOT EXISTS interlingua_schema "
                "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())"
            )
            plan = schema.plan(_NAME, _version(conn), known, lambda: _alive(conn, where))
            schema.refuse_beside_others(_NAME, plan)
            for step in plan.ahead:
                raw.execute(step.sql.encode())
                raw.execute("INSERT INTO interlingua_schema (version, name) VALUES (%s, %s)", (step.number, step.name))
            raw.execute("DELETE FROM writers WHERE seen_at<now()-CAST(%s AS interval)", (_FORGOTTEN,))
            return plan
    finally:
        raw.close()


def check_readable(where: Place) -> None:
    """Raises where there is no store, or one of another schema than this program reads."""
    plan = migrate(where, dry=True)
    if not plan.found:
        raise NoStore(_NAME)
    schema.check_readable(_NAME, plan)


def _version(conn: PostgresConnection) -> int:
    """0 where there is none yet."""
    old, new = (_exists(conn, name) for name in ("schema_migrations", "interlingua_schema"))
    if old and not new and _exists(conn, "checkpoints"):
        raise schema.too_old(_NAME, "another PostgreSQL schema")
    if not new:
        return 0
    row = conn.raw.execute("SELECT COALESCE(max(version), 0) FROM interlingua_schema").fetchone()
    return int(row[0]) if row else 0


def _exists(conn: PostgresConnection, table: str) -> bool:
    row = conn.raw.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    return row is not None and row[0] is not None


def _alive(conn: PostgresConnection, where: Place) -> list[WorkerRow]:
    sql = f"SELECT id, host, pid, started_at, queues FROM workers WHERE NOT ({RUN_OUT})"
    rows = conn.execute(sql, (where.lease,)).fetchall()
    return [WorkerRow(row[0], row[1], row[2], row[3], json_values.decode(row[4])) for row in rows]
