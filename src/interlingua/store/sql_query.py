"""Searches as SQL: runs and threads by column, and by what their JSON contains."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ..model import values
from ..model.status import Status
from .base import RunFilter
from .sql import FINAL_SQL, Connection, Dialect

_PAGE = 1000  # rows
STUCK = "(blocked_reason IS NOT NULL OR (worker IS NULL AND wake_at=0))"
"""Of runs that some code could not go on with: they wait for other code, or such code is gone."""
_LOOKED_FOR = 8  # members whose text is searched for before anything is taken apart


def select_runs(dialect: Dialect, columns: str, where: RunFilter) -> tuple[str, list[Any]]:
    """A SELECT of runs. Where the database does not know what JSON contains, some of them are not wanted."""
    if dialect.status_indexes:
        if where.root is not None:
            return _select_tree(dialect, columns, where)
        if _by_status(where):
            return _select_by_status(dialect, columns, where)
    terms, args = runs_where(dialect, where)
    return select("runs", columns, terms), [*args, where.limit, where.offset]


def _by_status(where: RunFilter) -> bool:
    """Whether the indexes by status are those that lead to what is wanted."""
    others = (where.thread, where.parent, where.metadata)
    return not any(others) and (where.caller, where.agent, where.status) != (None, None, None)


def _select_by_status(dialect: Dialect, columns: str, where: RunFilter) -> tuple[str, list[Any]]:
    """The newest of each status, and the newest of those: each is the end of a stretch of an index, however many runs a
    caller or an agent has, and however few of them have the status."""
    terms, args = runs_where(dialect, msgspec.structs.replace(where, status=None))
    wanted = [status.value for status in (Status if where.status is None else where.status)]
    source = "unnest(CAST(? AS text[])) AS s(wanted)"
    terms.append("runs.status=s.wanted")
    if where.caller is None and where.agent is None:
        # Nobody's in particular: those of each agent. Which agents there are is found in the same index, one by one.
        source = (
            "(WITH RECURSIVE known AS ((SELECT agent FROM runs ORDER BY agent LIMIT 1) UNION ALL "
            "SELECT (SELECT r.agent FROM runs r WHERE r.agent>known.agent ORDER BY r.agent LIMIT 1) "
            "FROM known WHERE known.agent IS NOT NULL) SELECT agent AS one FROM known WHERE agent IS NOT NULL) AS a "
            f"CROSS JOIN {source}"
        )
        terms.append("runs.agent=a.one")
    newest = f"SELECT * FROM runs WHERE {' AND '.join(terms)} ORDER BY id DESC LIMIT ?"
    sql = f"SELECT {columns} FROM (SELECT found.* FROM {source} CROSS JOIN LATERAL ({newest}) AS found) AS runs "
    return f"{sql}ORDER BY id DESC LIMIT ? OFFSET ?", [
        wanted, *args, where.limit + where.offset, where.limit, where.offset,
    ]  # fmt: skip


def _select_tree(dialect: Dialect, columns: str, where: RunFilter) -> tuple[str, list[Any]]:
    """The runs of a tree are few: they are found before they are put in order."""
    terms, args = runs_where(dialect, where)
    sql = f"WITH tree AS MATERIALIZED (SELECT * FROM runs WHERE {' AND '.join(terms)}) "
    return sql + select("tree", columns, []), [*args, where.limit, where.offset]


def select(source: str, columns: str, terms: list[str]) -> str:
    given = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"SELECT {columns} FROM {source}{given} ORDER BY id DESC LIMIT ? OFFSET ?"


class Judged(msgspec.Struct):
    """What the JSON in a column contains, and which column of those that are read that is."""

    column: str
    place: int
    wanted: dict[str, Any]


def pages(
    conn: Connection, table: str, source: str, columns: str, terms: Callable[[bool], tuple[list[str], list[Any]]],
    wanted: Sequence[Judged], caller: str | None, limit: int, offset: int,
) -> list[Any]:  # fmt: skip
    """Rows whose JSON in some columns contains what is wanted, where the database cannot tell: what it finds is read a
    page at a time, and decided here. The id is the first column. `terms`: what else holds; its argument is whether the
    search is to go by the JSON alone."""
    judged = [(one.place, values.encode(one.wanted)) for one in wanted]
    rare = conn.dialect.rare(conn, table, {one.column: one.wanted for one in wanted}, caller)
    holds, args = terms(rare)
    sql, first = select(source, columns, [*holds, "id<?"]), select(source, columns, holds)
    if rare:  # they are found before they are put in order
        few = f"WITH few AS MATERIALIZED (SELECT * FROM {source} WHERE {' AND '.join(holds)}) "
        sql, first = few + select("few", columns, ["id<?"]), few + select("few", columns, [])
    found = list[Any]()
    last: str | None = None
    size = 100
    while len(found) < offset + limit:
        page = conn.execute(*((first, [*args, size, 0]) if last is None else (sql, [*args, last, size, 0]))).fetchall()
        found += [row for row in page if all(json_contains(row[place], value) for place, value in judged)]
        if len(page) < size:
            break
        last, size = page[-1][0], _PAGE
    return found[offset : offset + limit]


def runs_where(dialect: Dialect, where: RunFilter, *, by_metadata: bool = False) -> tuple[list[str], list[Any]]:
    terms, args = list[str](), list[Any]()
    aside = dialect.aside if by_metadata else str
    for column in ("agent", "version", "caller", "thread", "parent", "marked"):
        value = getattr(where, column)
        if value is not None:
            term = f"{column}=?"
            terms.append(term if column in ("thread", "parent") else aside(term))
            args.append(value)
    if not where.sealed:
        terms.append("sealed=0")
    if where.blocked:
        terms.append(f"blocked IS NOT NULL AND {STUCK} AND status NOT IN {FINAL_SQL}")
    if where.agents is not None:
        terms.append(f"({' OR '.join(_agent_is(wanted, args) for wanted in where.agents) or '1=0'})")
    if where.root is not None:
        terms.append("(id=? OR (path<>'' AND path>=? AND path<?))")  # 0 comes after /
        args.extend([where.root, f"/{where.root}/", f"/{where.root}0"])
    if where.status is not None:
        terms.append(aside(f"status IN ({','.join('?' * len(where.status))})"))
        args.extend(status.value for status in where.status)
    if where.metadata:
        json_matches(dialect, "metadata", where.metadata, where.caller, terms, args)
    return terms, args


def _agent_is(wanted: str, args: list[Any]) -> str:
    """A term for NAME, NAME@VERSION or PREFIX*."""
    if wanted.endswith("*"):
        args.extend([len(wanted) - 1, wanted[:-1]])
        return "substr(agent, 1, ?)=?"
    args.append(wanted)
    return "agent || '@' || version=?" if "@" in wanted else "agent=?"


def json_matches(
    dialect: Dialect, column: str, wanted: dict[str, Any], caller: str | None, terms: list[str], args: list[Any]
) -> None:
    """Terms that hold where the JSON in `column` contains `wanted`: objects by member, the rest by equality."""
    dialect.narrow(column, wanted, caller, terms, args)
    for text in itertools.islice(_texts(wanted), _LOOKED_FOR):
        terms.append(dialect.has_bytes(column))
        args.append(text)
    if dialect.contains_json:
        terms.append(f"json_contains({column}, ?)")
        args.append(values.encode(wanted))


def _texts(wanted: dict[str, Any]) -> Iterator[bytes]:
    """What any JSON with these members has in it, byte for byte, because we wrote it: searching for that is quick, and
    leaves few to be taken apart."""
    for key, value in wanted.items():
        name = values.encode(key) + b":"
        yield name + values.encode(value) if isinstance(value, str) else name


@functools.lru_cache(64)
def _decoded(wanted: bytes) -> Any:
    return values.decode(wanted)


def json_contains(json: bytes, wanted: bytes) -> bool:
    """In Python, and not as SQL: that is limited in depth and width, and knows no whole and real number as equal."""
    pairs: list[tuple[Any, Any, bool]] = [(values.decode(json), _decoded(wanted), True)]
    while pairs:
        have, want, partly = pairs.pop()
        if isinstance(want, dict):
            if not isinstance(have, dict) or not have.keys() >= want.keys():
                return False
            if (not partly or not want) and len(have) != len(want):
                return False
            pairs.extend((have[key], value, partly) for key, value in want.items())
        elif isinstance(want, list):
            if not isinstance(have, list) or len(have) != len(want):
                return False
            pairs.extend((one, other, False) for one, other in zip(have, want, strict=True))
        elif have != want or isinstance(have, bool) is not isinstance(want, bool):
            return False
    return True
