"""Implements the delta algorithm of the document for checks: it finds the rules that a run's deltas needed, and the
rule that a server got wrong if its deltas do not join to its output.

It is written from the text, and not with `interlingua.model.delta`: a mistake that the door and the mounts share would
go unseen. If the text can be read in two ways, a server may have read it in either.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Collection
from typing import Any

import msgspec

from ..base import shown

Path = tuple[str | int, ...]

ORDERED = "fold"
TYPES = "types-differ"
NUMBERS = "numbers-add"
STRINGS = "strings-concatenate"
EDGE = "arrays-join-edge"
REST = "arrays-append-rest"
BLIND = "exception-append-blind"
EMPTY_OUTPUT = "exception-empty-output"
NULL_OUTPUT = "exception-null-output"
NO_OUTPUT = "exception-undefined-output"
EMPTY = "empty-array-is-neutral"
NULL = "null-is-neutral"
COMMON = "objects-common-keys"
MERGE = "objects-merge"

MISTAKES: dict[str, str] = {
    STRINGS: "a string replaces the one before it; send only what is new of it",
    NUMBERS: "a number replaces the one before it; send the difference to it",
    EDGE: "arrays are put one behind the other; begin what is appended with null",
    EMPTY_OUTPUT: "the null that begins an array is kept, where there was an empty array; it is left out there",
    NULL_OUTPUT: "the null that begins an array is kept, where there was null; it is left out there",
    NO_OUTPUT: "the null that begins an array is kept, where there was nothing; it is left out there",
    BLIND: "the null that begins an array is kept, behind other elements; it only says that what follows is appended",
    REST: "of an array only the first element counts; those after it are appended",
    EMPTY: "an empty array takes away what was there; it changes nothing",
    NULL: "null takes away what was there; it changes nothing",
    MERGE: "an object replaces the one before it; both are merged",
    COMMON: "a member replaces the one of the same name; both are joined",
}
"""The mistake that is made with a rule, and what is right. The first that explains an output is taken for the cause, so
those that concern less come first."""

_ORDERS = 6  # deltas of which all orders are tried
_PLACES = 20  # at which a mistake is looked for by itself


class Absent:
    """No value at all."""


ABSENT = Absent()


class CannotJoin(Exception):
    """Two values of different types have met."""


class Joined(msgspec.Struct):
    value: Any = ABSENT
    met: dict[str, list[Path]] = {}  # the rules that were needed, and where
    unsure: set[Path] = set()  # places of two different booleans, which the text does not cover
    problem: str | None = None


class _Joining:
    def __init__(self, *, deep: bool, mistake: str | None = None, at: Path | None = None) -> None:
        self.deep = deep  # true if "undefined" also means the inside of a new value
        self.mistake = mistake
        self.at = at  # the place of the mistake; None: everywhere
        self.seen = Joined(ABSENT, {}, set())

    def _need(self, rule: str, path: Path) -> bool:
        """Notes that a rule is needed. Returns whether the rule is to be applied wrongly."""
        places = self.seen.met.setdefault(rule, [])
        if path not in places:
            places.append(path)
        return self.mistake == rule and self.at in (None, path)

    def combine(self, out: Any, delta: Any, path: Path) -> Any:
        if delta is None:
            if out is ABSENT or out is None:
                return None
            return None if self._need(NULL, path) else out
        if out is ABSENT or out is None:
            if out is None:
                self._need(NULL, path)  # a server that gets this one wrong cannot have the value
            return self._fresh(delta, path, NO_OUTPUT if out is ABSENT else NULL_OUTPUT)
        if kind(out) != kind(delta):
            self._need(TYPES, path)
            raise CannotJoin(f"{kind(delta)} meets {kind(out)} at {told(path)}: {shown(delta, 60)}")
        if path or out:  # nothing has met anything where the first delta comes
            self._need(TYPES, path)
        match out:
            case bool():
                if out is not delta:
                    self.seen.unsure.add(path)
                return delta
            case str():
                return delta if self._need(STRINGS, path) else out + delta
            case list():
                return self._arrays(out, delta, path)
            case dict():
                return self._objects(out, delta, path)
            case _:
                return delta if self._need(NUMBERS, path) else out + delta

    def _fresh(self, value: Any, path: Path, rule: str | None) -> Any:
        """Returns the value that a delta makes where there was none. `rule` is the one by which a null at its beginning
        is left out, if any."""
        if isinstance(value, list):
            if value and value[0] is None and rule is not None:
                wrong = self._need(rule, path)
                self._need(BLIND, path)
                value = value if wrong else value[1:]
            return [self._fresh(entry, (*path, n), self._inner()) for n, entry in enumerate(value)]
        if isinstance(value, dict):
            return {name: self._fresh(entry, (*path, name), self._inner()) for name, entry in value.items()}
        return value

    def _inner(self) -> str | None:
        return NO_OUTPUT if self.deep else None

    def _arrays(self, out: list[Any], delta: list[Any], path: Path) -> list[Any]:
        if not out or not delta:
            if not out and delta and delta[0] is None:
                wrong = self._need(EMPTY_OUTPUT, path)
                self._need(BLIND, path)
                rest = delta if wrong else delta[1:]
                return [self._fresh(entry, (*path, n), self._inner()) for n, entry in enumerate(rest)]
            wrong = bool(out or delta) and self._need(EMPTY, path)
            if out and not wrong:
                return out
            return [self._fresh(entry, (*path, n), self._inner()) for n, entry in enumerate(delta)]
        first, rest = delta[0], delta[1:]
        last = len(out) - 1
        if first is None:
            if self._need(BLIND, path):
                return [*out, *delta]
        elif self._need(EDGE, path):
            return [*out, *delta]
        made = [*out[:-1], self.combine(out[-1], first, (*path, last))]
        if rest and self._need(REST, path):
            return made
        return made + [self._fresh(entry, (*path, last + 1 + n), self._inner()) for n, entry in enumerate(rest)]

    def _objects(self, out: dict[str, Any], delta: dict[str, Any], path: Path) -> dict[str, Any]:
        made = dict(out)
        for name, value in delta.items():
            if name not in out:
                if out and self._need(MERGE, path):
                    return {name: self._fresh(entry, (*path, name), NO_OUTPUT) for name, entry in delta.items()}
                made[name] = self.combine(ABSENT, value, (*path, name))
            elif self._need(COMMON, path):
                made[name] = value
            else:
                made[name] = self.combine(out[name], value, (*path, name))
        return made


def joined(
    deltas: list[Any], *, deep: bool = True, mistake: str | None = None, at: Path | None = None
) -> Joined:  # fmt: skip
    joining = _Joining(deep=deep, mistake=mistake, at=at)
    seen = joining.seen
    seen.value = {}  # an output is an object at its root
    for number, delta in enumerate(deltas, 1):
        try:
            seen.value = joining.combine(seen.value, delta, ())
        except CannotJoin as problem:
            seen.problem = f"delta {number} cannot be joined: {problem}"
            break
        except OverflowError:
            seen.problem = f"delta {number} cannot be joined: a sum is no number any more"
            break
    return seen


# -- what a run's deltas show ---------------------------------------------------------------------------------


class Judged(msgspec.Struct):
    """The findings about a server from the deltas of one run."""

    needed: Collection[str]  # the rules that the deltas make use of
    wrong: dict[str, str] = {}  # rules, and what the server did
    unclear: set[str] = set()  # rules that were needed where the output is another, for no reason that is known
    problem: str = ""  # why the deltas do not make the output


def judged(deltas: list[Any], output: Any) -> Judged:
    """Compares the value that deltas join to with the output that they should lead to."""
    try:
        return _judged(deltas, output)
    except RecursionError:
        return Judged([], problem="the deltas are nested too deeply to be joined")


def _judged(deltas: list[Any], output: Any) -> Judged:
    right = joined(deltas)
    needed = [*right.met, *([ORDERED] if len(deltas) > 1 else [])]
    if right.problem is not None:
        return Judged(needed, {TYPES: right.problem}, set(needed), right.problem)
    readings = [right, joined(deltas, deep=False)]
    if any(alike(reading.value, output, reading.unsure) for reading in readings):
        return Judged(needed)
    problem = f"the deltas join to {shown(right.value, 120)}, and the output is {shown(output, 120)}"
    if len(deltas) <= _ORDERS and any(_fits(list(order), output) for order in itertools.permutations(deltas)):
        return Judged(
            needed, {ORDERED: f"in another order the deltas join to the output: {problem}"}, set(needed), problem
        )
    for rule, mistake in MISTAKES.items():
        for place in (None, *right.met.get(rule, [])[:_PLACES]):
            if rule in right.met and _fits(deltas, output, rule, place):
                where = told(right.met[rule][0] if place is None else place)
                return Judged(needed, {rule: f"at {where} {mistake}. {problem}"}, set(needed), problem)
    return Judged(needed, {}, set(needed), problem)


def _fits(deltas: list[Any], output: Any, mistake: str | None = None, at: Path | None = None) -> bool:
    for deep in (True, False):
        made = joined(deltas, deep=deep, mistake=mistake, at=at)
        if made.problem is None and alike(made.value, output, made.unsure):
            return True
    return False


def alike(one: Any, other: Any, unsure: Collection[Path] = (), path: Path = ()) -> bool:
    """Returns whether two outputs say the same. A member that is null counts as missing."""
    if path in unsure:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return all(alike(one.get(name), other.get(name), unsure, (*path, name)) for name in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            alike(a, b, unsure, (*path, n)) for n, (a, b) in enumerate(zip(one, other, strict=True))
        )
    if kind(one) == kind(other) == "a number":
        with contextlib.suppress(OverflowError):
            return bool(one == other) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(kind(one) == kind(other) and one == other)


def kind(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return "null"


def told(path: Path) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
