"""A store as it is after ten million runs, made in the database itself, with the shapes that searches stumble over:
callers and agents with most of the runs and with few, statuses that are rare, metadata of one run and of many.
"""

from __future__ import annotations

from typing import Any, cast

import psycopg
from psycopg import sql

import interlingua as il
from interlingua.model import json_values
from interlingua.model.events import RunCreated
from interlingua.store.postgres.connection import metadata_terms, place
from interlingua.store.postgres.store import PostgresStore

NOW = 1_800_000_000_000_000  # microseconds; after everything
RARE = "rare"  # an agent, and a caller, with few runs
_START = 1_700_000_000_000_000
_LIVE = 2_000  # runs that are under way, of whatever many
_ELSEWHERE_PART = 100  # of so many runs one is due, of agents that no worker has


def run_id(n: int) -> str:
    """As the engine makes them: the milliseconds come first, so ids rise with time."""
    digits = f"{_START // 1000 + n:012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-{n:012x}"


def _id(n: str) -> str:
    """The same, in SQL."""
    return (
        f"(SELECT substr(h,1,8)||'-'||substr(h,9)||'-7000-8000-'||lpad(to_hex({n}), 12, '0') "
        f"FROM (SELECT lpad(to_hex({_START // 1000} + {n}), 12, '0') AS h) AS hex)"
    )


def _terms(caller: str, **metadata: str) -> str:
    found = metadata_terms(json_values.encode(metadata), caller)
    return f"ARRAY[{','.join(str(one) for one in found or ())}]::bigint[]"


def _member(name: str) -> int:
    """What is kept of a member of whatever value."""
    found = metadata_terms(json_values.encode({name: []}), "")
    assert found is not None
    return found[0]  # one of two; the other one is as frequent


_PROD = _terms("", env="prod")
_OWN_PROD = _terms("caller-1", env="prod")
_LOOKED_FOR = _terms("caller-1", ticket="looked-for")
_NAMED = _terms("caller-1", name="looked-for")

# By its number n of {size}: a half is of three agents and of two callers, the rest of 50 and of 1,000. The last 2,000
# are under way; of those before, one in a hundred failed, one in 500 was cancelled.
_RUNS = """
INSERT INTO runs (id, agent, version, status, caller, thread, parent, path, metadata, created_at, updated_at, worker,
    epoch, next_seq, head, wake_at, crashes, ran, queued, tag, sealed, terms, turn)
SELECT {id}, CASE WHEN n %% (1 + {size} / 5) = 3 THEN 'rare' WHEN n %% 2 = 0 THEN 'agent-' || n / 2 %% 3
        ELSE 'agent-' || n / 2 %% 50 END,
    '1.0', status,
    CASE WHEN n %% (1 + {size} / 5) = 3 AND n < {size} / 2 THEN 'caller-1' WHEN n %% (1 + {size} / 5) = 4 THEN 'rare'
        WHEN n %% 3 = 0 THEN 'caller-' || n / 3 %% 2 ELSE 'caller-' || n / 3 %% 1000 END,
    CASE WHEN n %% 5 = 0 THEN 'thread-' || n / 10 END, CASE WHEN n %% 1000 BETWEEN 2 AND 4 THEN {parent} END,
    CASE WHEN n %% 1000 BETWEEN 2 AND 4 THEN '/' || {parent} || '/' ELSE '' END,
    convert_to(CASE WHEN n = {size} / 3 THEN '{{"ticket":"looked-for"}}' WHEN n %% 4 = 1 THEN '{{"env":"prod"}}'
        WHEN n %% 4 = 2 THEN '{{"ticket":"' || n || '"}}' ELSE '{{}}' END, 'UTF8'),
    {start} + n::bigint * 1000, {start} + n::bigint * 1000 + 500,
    CASE WHEN status = 'running' THEN 'worker-' || n %% 4 END, 1, 3, decode(md5(n::text) || md5(n::text), 'hex'),
    CASE WHEN status = 'pending' THEN CASE WHEN n %% 3 = 0 THEN {now} + n ELSE 0 END END, 0, 1000, NULL, NULL, 0,
    CASE WHEN n = {size} / 3 THEN {looked_for}
        WHEN n %% 4 = 1 AND n %% 3 = 0 AND n / 3 %% 2 = 1 THEN {own_prod} WHEN n %% 4 = 1 THEN {prod}
        WHEN n %% 4 = 2 THEN ARRAY[hashtextextended(n::text, 1), hashtextextended(n::text, 3), {ticket}] END,
    n
FROM (SELECT n, CASE WHEN n > {size} - {live}
        THEN CASE n %% 4 WHEN 0 THEN 'running' WHEN 1 THEN 'waiting' ELSE 'pending' END
        WHEN n %% 100 = 7 THEN 'failed' WHEN n %% 500 = 8 THEN 'cancelled' ELSE 'succeeded' END AS status
    FROM generate_series(1, {size}) AS n) AS numbered
"""
_ELSEWHERE = """
INSERT INTO runs (id, agent, version, status, caller, path, metadata, created_at, updated_at, epoch, next_seq, head,
    wake_at, crashes, ran, turn)
SELECT {id}, CASE WHEN n = {many} / 2 THEN 'rare' ELSE 'elsewhere-' || n %% 3 END, '1.0', 'pending',
    'caller-' || n %% 10, '', '{{}}', {start}, {start}, 0, 2, '\\x00', 0, 0, 0, n
FROM generate_series(1, {many}) AS n
"""
_EVENTS = """
INSERT INTO events (run, seq, kind, time, hash, body)
SELECT {id}, seq, CASE seq WHEN 1 THEN 'created' ELSE 'finished' END, {start} + n::bigint * 1000 + seq,
    decode(md5(n::text) || md5(n::text), 'hex'), {body}
FROM generate_series(1, {size}) AS n, generate_series(1, 1) AS seq
"""
_REST = (
    """
INSERT INTO threads (id, caller, created_at, updated_at, version, checkpoint, state, active, failed, metadata,
    terms, described)
SELECT 'thread-' || n, CASE WHEN n %% (1 + {size} / 100) = 3 THEN 'rare' WHEN n %% 3 = 0 THEN 'caller-' || n / 3 %% 2
        ELSE 'caller-' || n %% 1000 END,
    {start} + n::bigint * 1000, {start} + n::bigint * 1000, 1, NULL,
    convert_to('{{"name":"' || CASE WHEN n = 77 THEN 'looked-for' ELSE 'n' || n END || '","turns":3}}', 'UTF8'),
    CASE WHEN n >= ({size} - {live}) / 10 + 1 THEN {active} END,
    n %% 1000 = 9,
    convert_to(CASE WHEN n = 77 THEN '{{"ticket":"looked-for"}}' WHEN n %% 2 = 0 THEN '{{"env":"prod"}}'
        ELSE '{{"ticket":"' || n || '"}}' END, 'UTF8'),
    CASE WHEN n = 77 THEN {looked_for} WHEN n %% 2 = 0 THEN {prod}
        ELSE ARRAY[hashtextextended(n::text, 1), hashtextextended(n::text, 3), {ticket}] END,
    CASE WHEN n = 77 THEN {named} ELSE ARRAY[hashtextextended(n::text, 2), hashtextextended(n::text, 4), {name}] END
FROM generate_series(1, {size} / 10 - 1) AS n
""",
    """
INSERT INTO checkpoints (id, thread, version, state, messages, run, created_at, metadata)
SELECT 'checkpoint-' || n, 'thread-' || n / 2, 1 + n %% 2, '{{}}', 1, NULL, {start}, '{{}}'
FROM generate_series(1, {size} / 10) AS n
""",
    """
INSERT INTO messages (thread, n, run, message)
SELECT 'thread-' || n / 2, n %% 2, NULL, '{{"role":"user","parts":[]}}' FROM generate_series(1, {size} / 10) AS n
""",
    """
INSERT INTO questions (id, run, path, root, state, asked_at, question, closed_at, change,
    caller)
SELECT 'question-' || n, {id}, '/' || {id} || '/', {id},
    CASE WHEN n < {size} / 10 * 9 THEN 'answered' ELSE 'open' END, {start} + n::bigint * 1000,
    convert_to('{{"id":"question-' || n || '","run":"' || {id} || '","type":"confirm","payload":{{}},'
        || '"answer_schema":{{}},"asked_at":1}}', 'UTF8'),
    {start}, n, 'caller-' || CASE WHEN n %% 3 = 0 THEN n %% 2 ELSE n %% 1000 END
FROM generate_series(1, {size}, 10) AS n
""",
    """
INSERT INTO keys (caller, key, run, digest)
SELECT 'caller-' || n %% 1000, 'key-' || n, {id}, md5(n::text) FROM generate_series(1, {size}, 2) AS n
""",
)


async def fill(url: str, schema: str, size: int) -> bool:
    """Put so many runs into a store, where they are not in it already. Indexes are built when all is there."""
    store = PostgresStore(url)
    await store.open()
    await store.close()
    with psycopg.connect(place(url).conninfo, autocommit=True) as conn:
        conn.execute(sql.SQL("SET search_path={}").format(sql.Identifier(schema)))
        found = conn.execute("SELECT 1 FROM runs LIMIT 1").fetchone()
        if found is not None:
            return False
        indexes = conn.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname=%s AND indexdef NOT LIKE 'CREATE UNIQUE%%'",
            (schema,),
        ).fetchall()
        for name, _ in indexes:
            conn.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
        created = json_values.encode(RunCreated(il.RunRequest("agent-1", input={"text": "x" * 100}), "0" * 64))
        words: dict[str, Any] = {
            "id": _id("n"), "parent": _id("(n / 1000 * 1000 + 1)"), "size": size, "live": _LIVE,
            "start": _START, "now": NOW, "looked_for": _LOOKED_FOR, "prod": _PROD, "own_prod": _OWN_PROD,
            "ticket": _member("ticket"), "name": _member("name"), "named": _NAMED,
            "body": f"'\\x{created.hex()}'::bytea", "active": _id("(n * 10 + CASE WHEN n % 4 = 0 THEN 5 ELSE 0 END)"),
        }  # fmt: skip
        for text in (_RUNS, _EVENTS, *_REST):
            _do(conn, text.format(**words).replace("%%", "%"))
        words |= {"id": _id(f"(n - {size})"), "many": size // _ELSEWHERE_PART}
        _do(conn, _ELSEWHERE.format(**words).replace("%%", "%"))
        for n in range(4):
            _do(conn, f"INSERT INTO workers VALUES ('worker-{n}', 'h', 1, 1, '[]', now() + interval '1 day')")
        for _, definition in indexes:
            _do(conn, definition)
        conn.execute("VACUUM ANALYZE")
    return True


def _do(conn: psycopg.Connection[Any], text: str) -> None:
    conn.execute(cast(Any, text))
