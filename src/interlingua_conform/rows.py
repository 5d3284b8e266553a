"""Checks that are data: a scene, a place in what it shows, and what has to be there. A row makes its own sentence."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from .base import Suite, applies, expect, member, shown

_NAMES: dict[type, str] = {str: "a string", dict: "an object", list: "an array", int: "an integer", bool: "a boolean"}


def _itself(value: Any) -> Any:
    return value


class Source(msgspec.Struct, frozen=True):
    """The values that rows look at: what a scene gives, or each entry of it."""

    play: Callable[[Any], Awaitable[Any]]
    where: str | Callable[[Any], str] = "the answer"
    """The name of it in sentences."""
    each: bool = False
    """The scene gives a list, and a row holds for every entry."""
    value: Callable[[Any], Any] = _itself
    """The JSON of an entry."""


class Row(msgspec.Struct, frozen=True):
    """A value at a path, and what it has to be. Without a path, it is the whole that the source gives."""

    ids: str
    """The requirements that it shows, with spaces between them."""
    source: Source
    path: str = ""
    kind: type = object
    filled: bool = False
    """It is not empty."""
    equals: Any = msgspec.UNSET
    one_of: tuple[Any, ...] = ()
    matches: re.Pattern[str] | None = None
    form: str = ""
    """The form that `matches` means, in words."""
    items: type | None = None
    """It is an array of these."""
    has: tuple[str, ...] = ()
    """Its members, whatever they hold."""
    fits: Callable[[Any, str], Any] | None = None
    """Raises Broken if something else is wrong with it; gets its name too."""
    optional: bool = False
    """It may be left out; where nothing has it, the row does not apply."""
    null: bool = False
    """An optional one may also be null, which is the same as left out."""

    async def check(self, driver: Any) -> None:
        seen = await self.source.play(driver)
        looked = False
        for entry in seen if self.source.each else [seen]:
            value, where = self.source.value(entry), self.source.where
            where = where if isinstance(where, str) else where(entry)
            if self.optional and not _there(value, self.path, self.null):
                continue
            looked = True
            self._judge(member(value, self.path, self.kind, where), f"{self.path} of {where}" if self.path else where)
        why = f"{self.path} is nowhere to be seen, and may be left out" if self.optional else "there is none to look at"
        applies(looked, why)

    def _judge(self, found: Any, name: str) -> None:
        if self.filled:
            expect(found.strip() if isinstance(found, str) else found, f"{name} is empty")
        if self.equals is not msgspec.UNSET:
            same = type(found) is type(self.equals) and found == self.equals
            expect(same, f"{name} is {shown(found)}, not {shown(self.equals)}")
        if self.one_of:
            expect(
                found in self.one_of, f"{name} is {shown(found)}, which is none of {', '.join(map(str, self.one_of))}"
            )
        if self.matches is not None:
            expect(self.matches.fullmatch(found), f"{name} is {shown(found)}, which is no {self.form}")
        if self.items is not None:
            for item in found:
                right = isinstance(item, self.items) and (self.items is bool or not isinstance(item, bool))
                expect(right, f"{name} has an entry that is not {_NAMES[self.items]}: {shown(item)}")
        missing = [member_ for member_ in self.has if member_ not in found]
        expect(not missing, f"{name} has no {', '.join(missing)}: {shown(found)}")
        if self.fits is not None:
            self.fits(found, name)


def _there(value: Any, path: str, null: bool) -> bool:
    """Returns whether the last member of a path is there. What is wrong before it is for the row to find."""
    *steps, last = path.split(".")
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            return True
        value = value[step]
    return not isinstance(value, dict) or (last in value and not (null and value[last] is None))


class Rule(Protocol):
    """Anything that checks requirements, as a value."""

    @property
    def ids(self) -> str: ...

    async def check(self, driver: Any) -> None: ...


class Played(msgspec.Struct, frozen=True):
    """A scene that shows a requirement by being played at all."""

    ids: str
    play: Callable[[Any], Awaitable[Any]]

    async def check(self, driver: Any) -> None:
        await self.play(driver)


def add(suite: Suite[Any], *rows: Rule, calm: bool = False) -> None:
    """Adds rows to the checks of a suite."""
    for row in rows:
        suite.check(*row.ids.split(), calm=calm)(row.check)
