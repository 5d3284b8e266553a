"""Repair of text that was cut between UTF-16 units: surrogate pairs are joined, lone surrogates are replaced.

JavaScript cuts strings between UTF-16 units, so a stream may carry the first half of a character at the end of one
piece and the second half at the start of the next. No encoder accepts such a half.
"""

from __future__ import annotations

import re
from typing import Any

from .delta import ABSENT, compose

REPLACEMENT = "\ufffd"

_HALF = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def whole(text: str) -> str:
    """Joins surrogate pairs and replaces lone surrogates by U+FFFD."""
    if text.isascii() or _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def has_halves(value: Any) -> bool:
    """True if a string or a key of a JSON value holds a surrogate."""
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str:
            if not item.isascii() and _HALF.search(item) is not None:
                return True
        elif kind is dict:
            stack.extend(item)
            stack.extend(item.values())
        elif kind is list:
            stack.extend(item)
    return False


def whole_value(value: Any) -> Any:
    """Applies `whole` to all strings and keys of a JSON value. Returns the same object if nothing changes."""
    return _replaced(value) if has_halves(value) else value


def _replaced(value: Any) -> Any:
    if type(value) is str:
        return whole(value)
    if type(value) is dict:
        return {whole(key) if type(key) is str else key: _replaced(member) for key, member in value.items()}
    if type(value) is list:
        return [_replaced(member) for member in value]
    return value


class PairJoiner:
    """Joins characters that were split between pieces of an output.

    A first half at the end of a piece is held until the next piece comes or the output ends.
    """

    __slots__ = ("_held", "step")

    def __init__(self) -> None:
        self._held: Any = ABSENT
        self.step: str | None = None  # the step that the held half belongs to

    @property
    def holds(self) -> bool:
        return self._held is not ABSENT

    def add(self, delta: Any) -> Any:
        """Returns the delta to write now, with whole characters only."""
        if has_halves(delta):
            delta = _with_whole_keys(delta)  # what is held is below whole keys too
        delta = delta if self._held is ABSENT else compose(self._held, delta)
        self._held = ABSENT
        if not has_halves(delta):
            return delta
        now, self._held = _cut(delta)
        return now

    def end(self) -> Any:
        """Returns the held delta, with its half replaced; `ABSENT` if nothing is held."""
        held, self._held = self._held, ABSENT
        return ABSENT if held is ABSENT else _replaced(held)


def _with_whole_keys(value: Any) -> Any:
    """Replaces lone surrogates in keys: a key is never cut, so no other half comes for one."""
    if type(value) is dict:
        return {whole(key) if type(key) is str else key: _with_whole_keys(member) for key, member in value.items()}
    if type(value) is list:
        return [_with_whole_keys(member) for member in value]
    return value


def _cut(delta: Any) -> tuple[Any, Any]:
    """Splits a delta into one without the trailing first half, and one that adds this half."""
    if type(delta) is str:
        joined = _PAIR.sub(lambda pair: whole(pair[0]), delta)
        if "\ud800" <= joined[-1:] <= "\udbff":
            return whole(joined[:-1]), joined[-1]
        return whole(joined), ABSENT
    if type(delta) is dict:
        now, later = {}, {}
        for key, member in delta.items():
            now[key], rest = _cut(member)
            if rest is not ABSENT:
                later[key] = rest
        return now, later or ABSENT
    if type(delta) is list and delta:
        last, rest = _cut(delta[-1])  # later deltas cannot extend the other elements
        return [*map(_replaced, delta[:-1]), last], ABSENT if rest is ABSENT else [rest]
    return delta, ABSENT
