"""A connection to PostgreSQL that understands the SQL of the store, and how PostgreSQL says what differs.

Thin on purpose: `?` becomes `%s`, results come in binary, and `lock` waits for others. It begins and ends nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from uuid import uuid4

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...model import json_values
from ...model.errors import InvalidRequest
from ...runtime.clock import SYSTEM_CLOCK
from ..sql.dialect import RUN_COLUMNS, Connection, Cursor, Dialect, Lead, Lock, Wanted, insert, insert_turn
from ..sql.json_terms import TERMED, looked_for, members_of, named, number

_METADATA, _CALLER = RUN_COLUMNS.index("metadata"), RUN_COLUMNS.index("caller")
_COLUMNS = (*RUN_COLUMNS, "terms")
_KNOWN_FOR = 60.0  # seconds, of statistics
_PREPARED = 500  # statements that a connection keeps

# A connection whose other end has gone must not be waited for until the system gives up on it.
_LIVELY = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
           "tcp_user_timeout": 20_000}  # fmt: skip


class Place(msgspec.Struct, frozen=True):
    """The address of a store and its settings: those of its URL's query that libpq does not know."""

    conninfo: str
    schema: str | None = None  # of its own, so that several stores share a database; None: as the server has it
    poll: float = 1.0  # seconds between looks for what others wrote
    lease: float = 10.0  # seconds after which a worker that gives no sign is dead
    patience: float = 60.0  # seconds that writes wait for a server that is away


def place(url: str) -> Place:
    """Parses the URL of a store."""
    parts = urlsplit(url)
    given: dict[str, Any] = {}
    others = list[tuple[str, str]]()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in Place.__struct_fields__[1:]:
            given[name] = value
        else:
            others.append((name, value))
    try:
        for name in ("poll", "lease", "patience"):
            if name in given:
                given[name] = float(given[name])
                if not 0 < given[name] < 1e6:
                    raise ValueError(f"{name} is a number of seconds")
        plain = urlunsplit(parts._replace(query=urlencode(others)))
        known: dict[str, Any] = {**_LIVELY, "application_name": "interlingua", **conninfo_to_dict(plain)}
        return Place(make_conninfo(**known), **given)
    except (ValueError, psycopg.Error) as error:
        raise InvalidRequest(f"the address of the store is not understood: {error}") from error


class _Postgres(Dialect):
    error = psycopg.Error
    operational = psycopg.OperationalError
    integrity = psycopg.IntegrityError
    larger, smaller = "greatest", "least"
    position = "strpos"
    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    status_indexes = True

    def skip_locked_of(self, table: str) -> str:
        return f" FOR UPDATE OF {table} SKIP LOCKED"

    def any_of(self, column: str) -> str:
        return f"{column}=ANY(?)"

    def each_of(self, name: str) -> str:
        return f"unnest(CAST(? AS text[])) AS {name}(value)"

    def many(self, wanted: Sequence[str]) -> Any:
        return list(wanted)

    def has_bytes(self, column: str) -> str:
        return f"position(? in {column})>0"

    def lead(self, conn: Connection, table: str, wanted: Wanted, caller: str | None) -> Lead:
        assert isinstance(conn, PostgresConnection)
        terms, args = list[str](), list[Any]()
        alone = False
        for column, name, value in wanted:
            term = _of(looked_for(name, value), caller)
            terms.append(f"{_TERMS[column]} && CAST(? AS bigint[])")
            args.append([term, *_TOO_MANY])
            alone = alone or term not in conn.frequent(table)
        return Lead(terms, args, alone=alone)

    def beside(self, column: str, json: bytes, caller: str) -> tuple[list[str], list[Any]]:
        return [_TERMS[column]], [metadata_terms(json, caller)]

    def leading_number(self, text: str) -> str:
        return f"CAST(split_part({text}, '.', 1) AS bigint)"

    def indexed(self, index: str) -> str:
        return ""

    def unindexed(self, column: str) -> str:
        return column

    def aside(self, term: str) -> str:
        return f"({term}) IS TRUE"  # which no index knows, and whose chance of being true is still known

    def refusal(self, error: Exception) -> str | None:
        if isinstance(error, psycopg.DataError):  # a NUL in a text, a number beyond 64 bits
            return f"this cannot be kept: {error}"
        return super().refusal(error)

    def together(self, conn: Connection) -> contextlib.AbstractContextManager[object]:
        if isinstance(conn, PostgresConnection) and not conn.flows:
            return conn.raw.pipeline()
        return contextlib.nullcontext()

    def insert_runs(self, conn: Connection, rows: list[Any]) -> None:
        insert(conn, "runs", _COLUMNS, [(*row, metadata_terms(row[_METADATA], row[_CALLER])) for row in rows])

    def insert_run(self, conn: Connection, row: tuple[Any, ...], turn: str, args: tuple[Any, ...]) -> None:
        insert_turn(conn, _COLUMNS, (*row, metadata_terms(row[_METADATA], row[_CALLER])), turn, args)


POSTGRES = _Postgres()


# -- metadata as something an index knows ------------------------------------------------------------------


_TERMS = {"metadata": "terms", "state": "described"}
_TOO_MANY = [0]


def metadata_terms(json: bytes, caller: str) -> list[int] | None:
    """Hashes every member: its name, and its name with its value unless that is an object or a list; each for everybody
    and for the caller, whose searches must find their few rows among many that are alike. None without members."""
    members = members_of(json)
    if not members:
        return None
    if len(members) > TERMED:
        return _TOO_MANY
    texts = {text for name, value in members.items() for text in (named(name), looked_for(name, value))}
    return sorted({_of(text, whose) for text in texts for whose in (None, caller)})


def _of(text: bytes, caller: str | None) -> int:
    return number(text if caller is None else json_values.encode(caller) + b">" + text)


# -- the connection ----------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def translated(sql: str) -> str:
    """`?` as `%s`. There is no `?` in any text of ours."""
    return sql.replace("%", "%%").replace("?", "%s")


_NOWHERE = f"\uffff{uuid4()}"
_LOCK_RUNS = "SELECT 1 FROM runs WHERE id=ANY(?) ORDER BY id FOR UPDATE"
_LOCK_TURNS = (
    "SELECT 1 FROM runs WHERE id=ANY(CAST(? AS text[]) || ARRAY(SELECT active FROM threads WHERE id=ANY(?))) "
    "ORDER BY id FOR UPDATE"
)


_FREQUENT = (
    "SELECT CAST(most_common_elems AS text) FROM pg_stats WHERE schemaname=? AND tablename=? "
    "AND attname IN ('terms', 'described') AND most_common_elems IS NOT NULL"
)
_HALF = 0xFFFF_FFFF
_END_KEEPERS = (
    "SELECT pg_terminate_backend(l.pid) FROM pg_locks l "
    "JOIN unnest(CAST(? AS bigint[]), CAST(? AS bigint[])) AS given(high, low) "
    "ON CAST(l.classid AS bigint)=given.high AND CAST(l.objid AS bigint)=given.low "
    "WHERE l.locktype='advisory' AND l.objsubid=1 AND l.mode='ShareLock' AND l.granted "
    "AND l.database=(SELECT oid FROM pg_database WHERE datname=current_database())"
)


class PostgresConnection:
    dialect: Dialect = POSTGRES

    def __init__(self, raw: psycopg.Connection[Any], schema: str) -> None:
        self.raw = raw
        self._schema = schema
        self.flows = False  # statements are sent without waiting for each other now
        self._held = set[Lock]()  # in this transaction
        self._frequent: dict[str, tuple[float, frozenset[int]]] = {}

    def execute(self, sql: str, args: Sequence[Any] = (), /) -> Cursor:
        cursor = self.raw.cursor(binary=True)
        try:
            cursor.execute(translated(sql), args)
        except psycopg.DataError:
            if not sql.startswith(("SELECT", "DELETE")) or not any(
                isinstance(arg, str) and "\0" in arg for arg in args
            ):
                raise
            # A text with a NUL in it is never kept, so what is looked for by one is not there. (Nothing has been sent.)
            args = [arg.replace("\0", _NOWHERE) if isinstance(arg, str) else arg for arg in args]
            cursor.execute(translated(sql), args)
        return cursor

    def frequent(self, table: str) -> frozenset[int]:
        """Returns the terms that many rows of a table have, by the statistics of the database. Every other one is rarer
        than PostgreSQL itself assumes."""
        since, known = self._frequent.get(table, (float("-inf"), frozenset[int]()))
        if SYSTEM_CLOCK.monotonic() - since > _KNOWN_FOR:
            rows = self.execute(_FREQUENT, (self._schema, table)).fetchall()
            known = frozenset(int(term) for (terms,) in rows for term in terms.strip("{}").split(",") if term)
            self._frequent[table] = SYSTEM_CLOCK.monotonic(), known
        return known

    def executemany(self, sql: str, args: Iterable[Sequence[Any]], /) -> None:
        given = list(args)
        if given:
            self.raw.cursor().executemany(translated(sql), given)

    def begun(self) -> None:
        self._held.clear()

    def lock(self, *names: Lock) -> None:
        self.lock_all(names)

    def lock_all(self, names: Collection[Lock]) -> None:
        """The rows of runs first, then what has only a name; each in one order for everybody. Each waits in a statement
        of its own: what is read afterwards is as those who were waited for have left it."""
        new = {name for name in names if name not in self._held}
        if not new:
            return
        runs = [name for kind, name in new if kind == "run" and _can_be(name)]
        turns = [name for kind, name in new if kind == "turn" and _can_be(name)]
        named = sorted({self._key(lock) for lock in new if lock[0] not in ("run", "turn")})
        if turns:
            self.execute(_LOCK_TURNS, (runs, turns))
        elif runs:
            self.execute(_LOCK_RUNS, (runs,))
        if named:
            self.execute("SELECT pg_advisory_xact_lock(k) FROM unnest(CAST(? AS bigint[])) AS k", (named,))
        self._held |= new

    def keep(self, name: Lock) -> None:
        """Hold a lock as long as this connection lasts, with whoever else does: by it the connection can be found."""
        self.execute("SELECT pg_advisory_lock_shared(?)", (self._key(name),))

    def end_keepers(self, names: Collection[Lock]) -> None:
        """End the connections that keep one of these."""
        keys = [self._key(name) for name in names]
        self.execute(_END_KEEPERS, ([key >> 32 & _HALF for key in keys], [key & _HALF for key in keys]))

    def _key(self, lock: Lock) -> int:
        """Returns the key of an advisory lock. These count in the whole database, which may hold other stores."""
        return number("\0".join((self._schema, *lock)).encode(errors="surrogatepass"))


def _can_be(id_: str) -> bool:
    """Returns true if the database can hold this id. Writing any other fails later, with a reason."""
    return "\0" not in id_ and not any("\ud800" <= letter <= "\udfff" for letter in id_)


def connect(where: Place, *, writes: bool, searches: bool = False) -> PostgresConnection:
    """`searches`: each is planned for what it looks for. How rare that is decides by which index it is found."""
    options = []
    if where.schema is not None:
        options.append(f"-c search_path={_option(where.schema)}")
    if writes:
        # All that is written is found by an index. Without statistics (a new store, a store that grew quickly)
        # PostgreSQL would take every table for a small one, and keep to that in what it has prepared. Without bitmaps
        # it reads in the order of an index, and need not sort all that is in line to find the first.
        unwanted = ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
        options += [f"-c enable_{way}=off" for way in unwanted] + _not_for_long(where)
    else:
        options.append("-c default_transaction_read_only=on")
    known: dict[str, Any] = conninfo_to_dict(where.conninfo)
    known["options"] = " ".join([str(known.get("options") or ""), *options]).strip()
    raw = psycopg.connect(make_conninfo(**known), autocommit=True)
    raw.prepare_threshold = None if searches else 3
    raw.prepared_max = _PREPARED
    raw.add_notice_handler(lambda notice: None)
    schema = where.schema
    if schema is None:
        found = raw.execute("SELECT current_schema()").fetchone()
        schema = str(found[0]) if found else ""
    return PostgresConnection(raw, schema)


def _not_for_long(where: Place) -> list[str]:
    """A process that is stopped, or cut off, in the middle of a transaction keeps its locks as long as the server
    believes in it: by default for ever, or for hours. Whoever buries it waits for those, and so would everybody. So the
    server gives it up before its lease has run out: when it says nothing more, or when its machine does not answer.
    (Not where it was stopped while it was sending: see `Leases`.)"""
    seconds = max(where.lease, 2.0)  # who is only busy is not to be cut off
    return [
        f"-c idle_in_transaction_session_timeout={round(seconds / 2 * 1000)}",
        f"-c tcp_keepalives_idle={math.ceil(seconds / 4)}",
        f"-c tcp_keepalives_interval={math.ceil(seconds / 8)}",
        "-c tcp_keepalives_count=3",
        f"-c tcp_user_timeout={round(seconds * 1000)}",
    ]


def _option(text: str) -> str:
    """As libpq wants a value in `options`, and PostgreSQL the name of a schema."""
    quoted = '"' + text.replace('"', '""') + '"'
    return "".join(f"\\{letter}" if letter in "\\ " else letter for letter in quoted)


def lost(conn: PostgresConnection | None, error: BaseException) -> bool:
    """Returns true if the connection failed, and another one may work."""
    if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate or ""
    return conn is None or bool(conn.raw.closed) or not state or state.startswith(("08", "57P"))


_NOT_NOW = (
    "starting up", "shutting down", "in recovery", "not yet accepting connections", "too many clients",
    "connection slots", "administrator command", "crash of another server process",
)  # fmt: skip


def is_away(error: psycopg.OperationalError) -> bool:
    """Returns true if a connection failed because there is no server now, or it accepts no connections yet; false if it
    refused this one (a wrong password, an unknown database). Errors of connecting have no code, so their text decides:
    messages of the server itself begin with FATAL."""
    if error.sqlstate:
        return error.sqlstate.startswith(("08", "57P", "53"))
    text = str(error)
    return "FATAL:" not in text or any(reason in text for reason in _NOT_NOW)
