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
    if where.metadata:
        json_matches("metadata", where.metadata, terms, args)
    sql = (
        f"SELECT {columns} FROM runs {'WHERE ' if terms else ''}{' AND '.join(terms)} ORDER BY id DESC LIMIT ? OFFSET ?"
    )
    return sql, [*args, where.limit, where.offset]


def json_matches(column: str, wanted: dict[str, Any], terms: list[str], args: list[Any], path: str = "$") -> None:
    """Terms that hold where the JSON in `column` contains `wanted`: objects by member, the rest by equality."""
    for key, value in wanted.items():
        if '"' in key:  # SQLite has no way to write such a key in a path
            terms.append("0")
            continue
        at = f'{path}."{key}"'
        if isinstance(value, dict) and value:
            json_matches(column, value, terms, args, at)
        elif value is None:
            terms.append(f"json_type({column}, ?)='null'")
            args.append(at)
        elif isinstance(value, bool):
            terms.append(f"json_type({column}, ?)=?")
            args.extend([at, "true" if value else "false"])
        elif isinstance(value, int | float):
            terms.append(f"json_type({column}, ?) IN ('integer','real') AND json_extract({column}, ?)=?")
            args.extend([at, at, value])
        elif isinstance(value, str):
            terms.append(f"json_type({column}, ?)='text' AND json_extract({column}, ?)=?")
            args.extend([at, at, value])
        else:
            terms.append(f"json_extract({column}, ?)=json(?)")
            args.extend([at, values.encode(value).decode()])
