"""Text between UTF-16 and Unicode: halves of surrogate pairs are joined where both are there, and replaced elsewhere.

JavaScript cuts strings between UTF-16 units, so a stream may carry the first half of a character at the end of one
piece and the second half at the start of the next. No encoder writes such a half.
"""

from __future__ import annotations

import re
from typing import Any

from .delta import ABSENT, compose

REPLACEMENT = "\ufffd"

_HALF = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def whole(text: str) -> str:
    """The text with pairs joined and halves that stay alone replaced by U+FFFD."""
    if text.isascii() or _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def has_halves(value: Any) -> bool:
    """Says whether a string or a key of a JSON value holds half a character."""
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
    """A JSON value with `whole` applied to all its strings and keys. Gives the same object where nothing changes."""
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
    """Joins characters that the pieces of an output split. A piece ends without its first half, which is held back
    until the next piece comes or the output ends."""

    __slots__ = ("_held", "step")

    def __init__(self) -> None:
        self._held: Any = ABSENT
        self.step: str | None = None  # the step that the held half belongs to

    @property
    def holds(self) -> bool:
        return self._held is not ABSENT

    def add(self, delta: Any) -> Any:
        """The delta to write now: whole characters only."""
        delta = delta if self._held is ABSENT else compose(self._held, delta)
        self._held = ABSENT
        if not has_halves(delta):
            return delta
        now, self._held = _cut(delta)
        return now

    def end(self) -> Any:
        """What is still held, with its half replaced; `ABSENT` for nothing."""
        held, self._held = self._held, ABSENT
        return ABSENT if held is ABSENT else _replaced(held)


def _cut(delta: Any) -> tuple[Any, Any]:
    """A delta without the first half that one of its strings ends with, and a delta that adds this half after it."""
    if type(delta) is str:
        joined = _PAIR.sub(lambda pair: whole(pair[0]), delta)
        if "\ud800" <= joined[-1:] <= "\udbff":
            return whole(joined[:-1]), joined[-1]
        return whole(joined), ABSENT
    if type(delta) is dict:
        now, later = {}, {}
        for key, member in delta.items():
            now[whole(key)], rest = _cut(member)
            if rest is not ABSENT:
                later[whole(key)] = rest
        return now, later or ABSENT
    if type(delta) is list and delta:
        last, rest = _cut(delta[-1])  # nothing can be added to the others any more
        return [*map(_replaced, delta[:-1]), last], ABSENT if rest is ABSENT else [rest]
    return delta, ABSENT
