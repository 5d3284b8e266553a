"""Describes the server that a raw client talks to, and the two ways in which it disappoints."""

from __future__ import annotations

import json
from typing import Any

import msgspec


class Broken(Exception):
    """The server does not do what is asked of it. The text says what it did instead."""


class Gone(Exception):
    """The server closed the connection, or never answered."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A server: at an address, or a command that speaks over its pipes."""

    address: str | None = None
    command: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    patience: float = 10.0
    """Seconds that an answer may take."""
    most: int = 64 * 1024 * 1024
    """Bytes of an answer, a stream or a line that are read: some have no end."""
    quiet: float = 0.2
    """Seconds after which an unwanted message counts as one that does not come."""


def expect(holds: object, why: str) -> None:
    """Raises Broken unless something holds."""
    if not holds:
        raise Broken(why)


def shown(value: Any, most: int = 200) -> str:
    """A value as a reader of a report wants to see it."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    except RecursionError:
        return "something that is nested too deeply to be shown"
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate pair is JSON, and no text
    return text if len(text) <= most else text[: most - 1] + "…"
