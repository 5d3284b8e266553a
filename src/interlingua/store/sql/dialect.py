"""The connection and the dialect that the SQL of a store is written against.

There is one set of SQL for all of them. It is given a `Connection`, puts `?` for values, and asks the connection's
`dialect` for the few things that SQLite and PostgreSQL say in different words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ...model import json_values
from ...model.errors import InvalidRequest
from ...model.status import Status
from ..rows import RunRow

RUN_COLUMNS = RunRow.__struct_fields__
RUN = ", ".join(RUN_COLUMNS)
FINAL_SQL = "('succeeded','failed','cancelled','timed_out')"
_STATUS = RUN_COLUMNS.index("status")
_TURN = RUN_COLUMNS.index("turn")
_WIDEST = 64  # rows of one statement; the connection keeps the statement of every width

# What a transaction is going to touch, as (kind, name). Of kind "run" it is the row of a run, of kind "turn" that of
# the run that has a thread; all others are names.
Lock = tuple[str, str]
LockList = Collection[Lock] | Callable[[], Collection[Lock]]


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection within a transaction that the writer begins and ends."""

    dialect: Dialect

    def execute(self, sql: str, args: Sequence[Any] = (), /) -> Cursor: ...

    def executemany(self, sql: str, args: Iterable[Sequence[Any]], /) -> object: ...

    def lock(self, *names: Lock) -> None:
        """Locks these until the transaction ends. Does nothing where transactions run one at a time; elsewhere it comes
        before the reads that decide what to write."""


Call = Callable[[Connection], Any]


class Pipelined:
    """A call whose statements are sent without waiting for each: it fetches the results that it needs, and a refusal of
    the database fails the whole transaction."""

    __slots__ = ("_fn",)

    def __init__(self, fn: Call) -> None:
        self._fn = fn

    def __call__(self, conn: Connection) -> Any:
        return self._fn(conn)


# Members that are looked for: the column of JSON, the name, the value.
Wanted = Sequence[tuple[str, str, Any]]


class Lead(msgspec.Struct):
    """Terms that hold of every row with what is wanted, for an index. `alone`: the rows that they hold of are few."""

    terms: list[str] = []
    args: list[Any] = []
    alone: bool = False


class Dialect:
    """The dialect of SQLite. Others override what differs."""

    error: type[Exception]  # all that the database raises
    operational: type[Exception]  # the database's trouble, and not that of what was to be written
    integrity: type[Exception]
    larger, smaller = "max", "min"  # of two values
    position = "instr"  # of a text in another, 0 where it is not there
    for_update = ""  # after a SELECT: locks its rows until the transaction ends
    skip_locked = ""  # the same, without rows that another transaction has locked
    status_indexes = False  # has all runs in the order of caller, agent or both, then status, then id

    def together(self, conn: Connection) -> contextlib.AbstractContextManager[object]:
        """Within this, statements are sent without waiting for each other. What they find is there afterwards."""
        return contextlib.nullcontext()

    def skip_locked_of(self, table: str) -> str:
        """`skip_locked`, for the rows of one of several tables."""
        return ""

    def page(
        self, conn: Connection, table: str, columns: str, key: str, where: str, args: Sequence[Any], limit: int,
        most_bytes: int,
    ) -> list[Any]:  # fmt: skip
        """The first rows in the order of a key: bounded in number and in the bytes of `body`, and at least one."""
        sizes = f"SELECT {key} AS place, coalesce(length(body),0) AS size FROM {table} WHERE {where} ORDER BY {key}"
        last = (
            "SELECT max(place) FROM (SELECT place, sum(size) OVER (ORDER BY place) - size AS before "
            f"FROM ({sizes} LIMIT ?) AS sizes) AS page WHERE before<?"
        )
        sql = f"SELECT {columns} FROM {table} WHERE {where} AND {key}<=({last}) ORDER BY {key}"
        return conn.execute(sql, (*args, *args, limit, most_bytes)).fetchall()

    def any_of(self, column: str) -> str:
        """A term that holds where the column has one of the values that `many` makes an argument of."""
        return f"{column} IN (SELECT value FROM json_each(?))"

    def each_of(self, name: str) -> str:
        """The values that `many` makes an argument of as a table of this name, with one column `value`."""
        return f"json_each(?) AS {name}"

    def many(self, wanted: Sequence[str]) -> Any:
        return json_values.encode(wanted).decode()

    def has_bytes(self, column: str) -> str:
        """A term that holds where the bytes in a column have these bytes in them."""
        return f"instr({column}, ?)>0"

    def lead(self, conn: Connection, table: str, wanted: Wanted, caller: str | None) -> Lead:
        """Returns terms for an index that finds the rows of a table (and of a caller) whose JSON has these members."""
        raise NotImplementedError

    def aside(self, term: str) -> str:
        """A term, in a search that goes by what `lead` gives, and by nothing else."""
        raise NotImplementedError

    def beside(self, column: str, json: bytes, caller: str) -> tuple[list[str], list[Any]]:
        """Columns that are written with this JSON of a caller's thread, for `lead`, and their values."""
        return [], []

    def index_json(
        self, conn: Connection, table: str, id_: str, *, before: Mapping[str, bytes], after: Mapping[str, bytes],
        caller: str,
    ) -> None:  # fmt: skip
        """Keeps what `lead` finds a row by, where that is in another table, when JSON in its columns changes."""

    indexes_json = False  # `index_json` does something, and has to know what was before

    def leading_number(self, text: str) -> str:
        """2 of `2.1`."""
        return f"CAST({text} AS INTEGER)"

    def indexed(self, index: str) -> str:
        """After a table: by which index it is to be read. PostgreSQL has statistics for that."""
        return f" INDEXED BY {index}"

    def unindexed(self, column: str) -> str:
        """A column, in a term by which no index is to be chosen."""
        return f"+{column}"

    def refusal(self, error: Exception) -> str | None:
        """Returns the reason why a value can never be written, if the value is at fault."""
        if isinstance(error, UnicodeEncodeError):
            return "a text with half a character in it cannot be kept"
        if isinstance(error, OverflowError):
            return f"a number is too large to be kept: {error}"
        return None

    def insert_runs(self, conn: Connection, rows: list[Any]) -> None:
        insert(conn, "runs", RUN_COLUMNS, rows)

    def insert_run(self, conn: Connection, row: tuple[Any, ...], turn: str, args: tuple[Any, ...]) -> None:
        """Inserts a run whose turn an SQL expression computes."""
        insert_turn(conn, RUN_COLUMNS, row, turn, args)


_INDEXED_BYTES = 2000  # of one entry of an index; PostgreSQL takes about 2,700


def check_indexed(*columns: str) -> None:
    """Raise InvalidRequest where texts are too long to stand in one index, whichever database it is."""
    if 4 * sum(map(len, columns)) <= _INDEXED_BYTES:
        return
    size = sum(len(column.encode(errors="replace")) for column in columns)
    if size > _INDEXED_BYTES:
        raise InvalidRequest(f"an id of {size} bytes cannot be kept; {_INDEXED_BYTES} is the limit for all its parts")


def insert(conn: Connection, table: str, columns: Sequence[str], rows: list[Any]) -> None:
    """Insert many rows in few statements: one for every 64, and one for the rest."""
    for at in range(0, len(rows), _WIDEST):
        some = rows[at : at + _WIDEST]
        conn.execute(_insert_sql(table, columns, len(some)), [value for row in some for value in row])


def insert_turn(
    conn: Connection, columns: Sequence[str], row: tuple[Any, ...], turn: str, args: tuple[Any, ...]
) -> None:
    marks = ",".join(turn if column == "turn" else "?" for column in columns)
    conn.execute(f"INSERT INTO runs ({','.join(columns)}) VALUES ({marks})", (*row[:_TURN], *args, *row[_TURN + 1 :]))


_sql_cache: dict[tuple[str, int, int], str] = {}


def _insert_sql(table: str, columns: Sequence[str], width: int) -> str:
    key = (table, len(columns), width)
    sql = _sql_cache.get(key)
    if sql is None:
        marks = f"({','.join('?' * len(columns))})"
        sql = f"INSERT INTO {table} ({','.join(columns)}) VALUES {','.join([marks] * width)}"
        _sql_cache[key] = sql
    return sql


def plain(row: RunRow) -> tuple[Any, ...]:
    """A row as its values."""
    # sqlite3 looks for an adapter of everything that is not exactly a str, which a Status is not.
    values = msgspec.structs.astuple(row)
    return (*values[:_STATUS], row.status._value_, *values[_STATUS + 1 :])


def run_row(row: tuple[Any, ...]) -> RunRow:
    """A row from its values."""
    run = RunRow(*row)
    run.status = Status(run.status)
    return run
