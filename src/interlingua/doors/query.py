"""Reads the query of a request. A value that does not fit is refused, with the name of its parameter."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..model.errors import InvalidRequest

S = TypeVar("S")
Params = Mapping[str, str]
"""The query of a request: `request.query_params`."""

__all__ = ["choice", "cursor", "cursor_of", "flag", "number", "offset_of", "seconds", "time"]

_MOST = 10**15 - 1
_MOST_SECONDS = 1e9
_SHOWN = 80  # characters of a refused value
_SECONDS = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def number(params: Params, name: str, default: int, low: int = 0, high: int = _MOST, *, lowers: bool = False) -> int:
    """Returns a whole number. `lowers`: a number that is too high is lowered to the limit."""
    text = params.get(name)
    if text is None:
        return default
    fits = text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) >= low
    if not fits or (int(text) > high and not lowers):
        span = f"from {low}" + (f" to {high}" if high < _MOST else "")
        raise _refused(name, text, f"a whole number {span}")
    return min(int(text), high)


def seconds(params: Params, name: str, default: S, high: float = _MOST_SECONDS) -> float | S:
    text = params.get(name)
    if text is None:
        return default
    if not _SECONDS.fullmatch(text) or float(text) > high:
        span = "0 or more" if high == _MOST_SECONDS else f"from 0 to {high:g}"
        raise _refused(name, text, f"a number of seconds, {span}")
    return float(text)


def flag(params: Params, name: str, default: bool = False) -> bool:
    text = params.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUE + _FALSE:
        raise _refused(name, text, "true or false")
    return text.lower() in _TRUE


def choice(params: Params, name: str, choices: Sequence[str], default: str) -> str:
    text = params.get(name, default)
    if text not in choices:
        raise _refused(name, text, " or ".join([", ".join(choices[:-1]), choices[-1]]))
    return text


def time(params: Params, name: str) -> int | None:
    """Returns a time in microseconds since 1970: ISO 8601, which is UTC without a zone, or seconds since 1970."""
    text = params.get(name)
    if text is None:
        return None
    try:
        if _SECONDS.fullmatch(text):
            since = float(text)
        else:
            moment = datetime.datetime.fromisoformat(text.upper())
            since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)).timestamp()
        if not 0 <= since < _MOST_SECONDS * 1000:
            raise ValueError(since)
    except (ValueError, OverflowError):
        raise _refused(name, text, "a time of ISO 8601, or in seconds since 1970") from None
    return round(since * 1_000_000)


def cursor(params: Params, name: str = "cursor") -> int:
    """Returns the offset of a page, from the cursor that the page before it came with."""
    return offset_of(params.get(name), name)


def cursor_of(offset: int) -> str:
    """Returns the cursor of a page. It is opaque: clients must not count with it."""
    return base64.urlsafe_b64encode(str(offset).encode()).decode()


def offset_of(cursor: str | None, name: str = "cursor") -> int:
    if cursor is None:
        return 0
    try:
        return max(0, int(base64.urlsafe_b64decode(cursor.encode())))
    except (ValueError, binascii.Error, UnicodeError):
        raise _refused(name, cursor, "one that came with a page; leave it out to begin") from None


def _refused(name: str, value: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is {value[:_SHOWN]!r}; it is {wanted}", path=f"/{name}")
