"""Searches as SQL: runs and threads by column, and by what their JSON contains."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from ..model import values
from .base import RunFilter

_LOOKED_FOR = 8  # members whose text is searched for before anything is taken apart


def select_runs(columns: str, where: RunFilter) -> tuple[str, list[Any]]:
    terms, args = list[str](), list[Any]()
    for column in ("agent", "version", "caller", "thread", "parent", "marked"):
        value = getattr(where, column)
        if value is not None:
            terms.append(f"{column}=?")
            args.append(value)
    if not where.sealed:
        terms.append("sealed=0")
    if where.agents is not None:
        terms.append(f"({' OR '.join(_agent_is(wanted, args) for wanted in where.agents) or '0'})")
    if where.root is not None:
        terms.append("(id=? OR path LIKE ?)")
        args.extend([where.root, f"/{where.root}/%"])
    if where.status is not None:
        terms.append(f"status IN ({','.join('?' * len(where.status))})")
        args.extend(status.value for status in where.status)
    if where.metadata:
        json_matches("metadata", where.metadata, terms, args)
    sql = (
        f"SELECT {columns} FROM runs {'WHERE ' if terms else ''}{' AND '.join(terms)} ORDER BY id DESC LIMIT ? OFFSET ?"
    )
    return sql, [*args, where.limit, where.offset]


def _agent_is(wanted: str, args: list[Any]) -> str:
    """A term for NAME, NAME@VERSION or PREFIX*."""
    if wanted.endswith("*"):
        args.extend([len(wanted) - 1, wanted[:-1]])
        return "substr(agent, 1, ?)=?"
    args.append(wanted)
    return "agent || '@' || version=?" if "@" in wanted else "agent=?"


def json_matches(column: str, wanted: dict[str, Any], terms: list[str], args: list[Any]) -> None:
    """Terms that hold where the JSON in `column` contains `wanted`: objects by member, the rest by equality."""
    for text in itertools.islice(_texts(wanted), _LOOKED_FOR):
        terms.append(f"instr({column}, ?)")
        args.append(text)
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
