"""Searches as SQL: runs and threads by column, and by what their JSON contains."""

from __future__ import annotations

from typing import Any

from ..model import values
from .base import RunFilter


def select_runs(columns: str, where: RunFilter) -> tuple[str, list[Any]]:
    terms, args = list[str](), list[Any]()
    for column in ("agent", "version", "caller", "thread", "parent"):
        value = getattr(where, column)
        if value is not None:
            terms.append(f"{column}=?")
            args.append(value)
    if where.root is not None:
        terms.append("(id=? OR path LIKE ?)")
        args.extend([where.root, f"/{where.root}/%"])
    if where.status is not None:
        terms.append(f"status IN ({','.join('?' * len(where.status))})")
        args.extend(status.value for status in where.status)
    if where.marked is not None:
        terms.append(
            "EXISTS (SELECT 1 FROM events e WHERE e.run=runs.id AND e.seq=1 "
            "AND json_extract(CAST(e.body AS TEXT), '$.request.extra.' || ?))"
        )
        args.append(where.marked)
    if where.metadata:
        json_matches("metadata", where.metadata, terms, args)
    sql = (
        f"SELECT {columns} FROM runs {'WHERE ' if terms else ''}{' AND '.join(terms)} ORDER BY id DESC LIMIT ? OFFSET ?"
    )
    return sql, [*args, where.limit, where.offset]


def json_matches(column: str, wanted: dict[str, Any], terms: list[str], args: list[Any]) -> None:
    """Terms that hold where the JSON in `column` contains `wanted`: objects by member, the rest by equality."""
    _members(f"CAST({column} AS TEXT)", wanted, terms, args, 1)


def _members(source: str, wanted: dict[str, Any], terms: list[str], args: list[Any], depth: int) -> None:
    """By key, not by path: SQLite has no way to write every key in a path."""
    for key, value in wanted.items():
        member = f"m{depth}"
        inner: list[str] = [f"{member}.key=?"]
        args.append(key)
        if isinstance(value, dict) and value:
            inner.append(f"{member}.type='object'")
            _members(f"{member}.value", value, inner, args, depth + 1)
        elif value is None:
            inner.append(f"{member}.type='null'")
        elif isinstance(value, bool):
            inner.append(f"{member}.type='{'true' if value else 'false'}'")
        elif isinstance(value, int | float):
            inner.append(f"{member}.type IN ('integer','real') AND {member}.value=?")
            args.append(value)
        elif isinstance(value, str):
            inner.append(f"{member}.type='text' AND {member}.value=?")
            args.append(value)
        else:
            inner.append(f"{member}.type IN ('array','object') AND {member}.value=json(?)")
            args.append(values.encode(value).decode())
        terms.append(f"EXISTS (SELECT 1 FROM json_each({source}) {member} WHERE {' AND '.join(inner)})")
