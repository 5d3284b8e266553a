"""Searches as SQL: runs and threads by column, and by what their JSON contains."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ...model import json_values
from ...model.filters import RunFilter
from ...model.status import Status
from .dialect import FINAL_SQL, Connection, Dialect, Lead

_PAGE = 1000  # rows
STUCK = "(blocked_reason IS NOT NULL OR (worker IS NULL AND wake_at=0))"
"""Of runs that some code could not go on with: they wait for other code, or such code is gone."""
_LOOKED_FOR = 8  # members that are searched for before anything is taken apart
_UNMET = (Status.FAILED, Status.CANCELLED, Status.TIMED_OUT)
_NO_LEAD = Lead()


def select_runs(
    dialect: Dialect, columns: str, where: RunFilter, lead: Lead = _NO_LEAD, before: str | None = None
) -> tuple[str, list[Any]]:
    """A SELECT of runs, newest first. Where metadata is wanted, some that it finds do not have it: see `pages`.

    It never reads all runs because few of them are wanted: there is an index for whatever is asked for."""
    terms, args = runs_where(dialect, where, lead)
    if before is not None:
        terms.append("id<?")
        args.append(before)
    if lead.alone or where.root is not None:
        # Few: they are found before they are put in order.
        terms += map(dialect.aside, _status_is(where))
        few = f"WITH few AS MATERIALIZED (SELECT * FROM runs WHERE {' AND '.join(terms)}) "
        return few + select("few", columns, []), [*args, where.limit, where.offset]
    if where.thread is None and where.parent is None:
        if dialect.status_indexes:
            if not where.metadata and (where.caller, where.agent, where.status) != (None, None, None):
                return _select_by_status(dialect, columns, where)
        elif where.status is not None:
            return _select_each_status(dialect, columns, where, terms, args)
        else:
            return select(_in_order(dialect, where), columns, terms), [*args, where.limit, where.offset]
    terms += _status_is(where)
    return select("runs", columns, terms), [*args, where.limit, where.offset]


def _in_order(dialect: Dialect, where: RunFilter) -> str:
    """Returns the source of runs in the order of their ids, with the index that SQLite would have to guess."""
    if where.blocked:  # these are few, and have an index
        return "runs"
    index = f"runs{_tagged(where)}{_whose(where)}"
    return "runs" if index == "runs" else f"runs{dialect.indexed(index)}"


def _tagged(where: RunFilter) -> str:
    return "_tag" if where.tag is not None else ""


def _whose(where: RunFilter) -> str:
    """The end of the names of indexes: by what they begin with."""
    if where.caller is not None:
        return "_both" if where.agent is not None else "_caller"
    return "_agent" if where.agent is not None else ""


def _select_each_status(
    dialect: Dialect, columns: str, where: RunFilter, terms: list[str], args: list[Any]
) -> tuple[str, list[Any]]:
    """The newest of each status, and the newest of those. Runs that are open or did not succeed have indexes by status;
    most of the others have succeeded, so those are read in order."""
    assert where.status is not None
    unmet = dialect.indexed(f"runs{_tagged(where)}_unmet{_whose(where)}")
    statuses = dict.fromkeys(where.status)
    arms = [(f"runs{unmet}", f"status='{status.value}'") for status in _UNMET if status in statuses]
    if Status.SUCCEEDED in statuses:
        arms.append((_in_order(dialect, where), "status='succeeded'"))
    if under_way := [f"'{status.value}'" for status in statuses if not status.final]:
        source = f"runs{dialect.indexed('runs_open')}"
        arms.append((source, f"status NOT IN {FINAL_SQL} AND status IN ({','.join(under_way)})"))
    newest = [
        f"SELECT * FROM (SELECT * FROM {source} WHERE {' AND '.join([status, *terms])} ORDER BY id DESC LIMIT ?)"
        for source, status in arms
    ]
    values = [value for _ in arms for value in (*args, where.limit + where.offset)]
    candidates = f"({' UNION ALL '.join(newest)})" if newest else "(SELECT * FROM runs WHERE 1=0)"
    return select(f"{candidates} AS runs", columns, []), [*values, where.limit, where.offset]


def _select_by_status(dialect: Dialect, columns: str, where: RunFilter) -> tuple[str, list[Any]]:
    """The newest of each status, and the newest of those: each is the end of a stretch of an index, however many runs a
    caller or an agent has, and however few of them have the status."""
    terms, args = runs_where(dialect, where)
    statuses = [status.value for status in (Status if where.status is None else where.status)]
    source = "unnest(CAST(? AS text[])) AS s(status)"
    terms.append("runs.status=s.status")
    if where.caller is None and where.agent is None:
        # Of any caller: the runs of each agent. The agents are found in the same index, one by one.
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
        statuses, *args, where.limit + where.offset, where.limit, where.offset,
    ]  # fmt: skip


def select(source: str, columns: str, terms: list[str]) -> str:
    condition = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"SELECT {columns} FROM {source}{condition} ORDER BY id DESC LIMIT ? OFFSET ?"


class Judged(msgspec.Struct):
    """The members that the JSON in a column must contain, and the place of the column among those that are read."""

    column: str
    place: int
    wanted: dict[str, Any]


def pages(
    conn: Connection, table: str, wanted: Sequence[Judged], caller: str | None, limit: int, offset: int,
    page: Callable[[Lead, str | None, int], tuple[str, list[Any]]],
) -> list[Any]:  # fmt: skip
    """Rows whose JSON in some columns contains what is wanted, which no database decides as we do: what it finds is
    read a page at a time, and decided here. The id is the first column. `page`: the SELECT of so many before an id."""
    judged = [(one.place, json_values.encode(one.wanted)) for one in wanted]
    members = [(one.column, *member) for one in wanted for member in itertools.islice(one.wanted.items(), _LOOKED_FOR)]
    lead = conn.dialect.lead(conn, table, members, caller)
    matching = list[Any]()
    last: str | None = None
    size = 100
    while len(matching) < offset + limit:
        rows = conn.execute(*page(lead, last, size)).fetchall()
        matching += [row for row in rows if all(json_contains(row[place], value) for place, value in judged)]
        if len(rows) < size:
            break
        last, size = rows[-1][0], _PAGE
    return matching[offset : offset + limit]


def runs_where(dialect: Dialect, where: RunFilter, lead: Lead = _NO_LEAD) -> tuple[list[str], list[Any]]:
    """The terms that hold of every run that is wanted, but for its status."""
    aside = dialect.aside if lead.alone else str
    terms, args = list(lead.terms), list(lead.args)
    for column in ("agent", "version", "caller", "thread", "parent", "tag"):
        value = getattr(where, column)
        if value is not None:
            term = f"{column}=?"
            terms.append(term if column in ("thread", "parent") else aside(term))
            args.append(value)
    if where.before is not None:
        terms.append("id<?")
        args.append(where.before)
    if where.since is not None:
        terms.append("id>=?")
        args.append(where.since)
    if not where.sealed:
        terms.append("sealed=0")
    if where.blocked:
        terms.append(f"blocked IS NOT NULL AND {STUCK} AND status NOT IN {FINAL_SQL}")
    if where.agents is not None:
        terms.append(f"({' OR '.join(_agent_is(wanted, args) for wanted in where.agents) or '1=0'})")
    if where.root is not None:
        terms.append("(id=? OR (path<>'' AND path>=? AND path<?))")  # 0 comes after /
        args.extend([where.root, f"/{where.root}/", f"/{where.root}0"])
    if where.metadata:
        json_matches(dialect, "metadata", where.metadata, terms, args)
    return terms, args


def _status_is(where: RunFilter) -> list[str]:
    if where.status is None:
        return []
    return [f"status IN ({','.join(repr(status.value) for status in where.status)})" if where.status else "1=0"]


def _agent_is(pattern: str, args: list[Any]) -> str:
    """A term for NAME, NAME@VERSION or PREFIX*."""
    if pattern.endswith("*"):
        args.extend([len(pattern) - 1, pattern[:-1]])
        return "substr(agent, 1, ?)=?"
    args.append(pattern)
    return "agent || '@' || version=?" if "@" in pattern else "agent=?"


def json_matches(dialect: Dialect, column: str, part: dict[str, Any], terms: list[str], args: list[Any]) -> None:
    """Terms that hold where the JSON in `column` contains `part`: objects by member, the rest by equality."""
    for text in itertools.islice(_texts(part), _LOOKED_FOR):
        terms.append(dialect.has_bytes(column))
        args.append(text)


def _texts(part: dict[str, Any]) -> Iterator[bytes]:
    """Yields texts that stored JSON with these members contains byte for byte: searching for them is quick, and leaves
    few rows to decode."""
    for key, value in part.items():
        name = json_values.encode(key) + b":"
        yield name + json_values.encode(value) if isinstance(value, str) else name


@functools.lru_cache(64)
def _decoded(part: bytes) -> Any:
    return json_values.decode(part)


def json_contains(json: bytes, part: bytes) -> bool:
    """In Python, and not as SQL: that is limited in depth and width, and knows no whole and real number as equal."""
    pairs: list[tuple[Any, Any, bool]] = [(json_values.decode(json), _decoded(part), True)]
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
