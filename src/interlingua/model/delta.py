"""The delta algebra of agents over MCP: joining partial outputs, coalescing deltas, computing them.

`combine` puts a delta onto an output, `compose` makes two deltas one, `diff` finds the delta between two
outputs; `Joiner` and `Composer` do the first two for long streams, at a cost linear in what was added.
Nothing here does I/O or knows schemas and progress tokens; doors decide how to react to a bad delta.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, TypeAlias, final, overload

# The values that a JSON decoder returns, of exactly these types: subclasses and other Python types are refused, as
# is every number that is not finite.
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Path: TypeAlias = tuple[str | int, ...]

# Containers nested deeper than this are refused. The functions below recurse, with at most two frames per
# level, so hostile input cannot reach the limit of the interpreter (1,000 frames, the caller's frames included).
MAX_DEPTH: Final = 200


@final
class Absent(Enum):
    """The type of `ABSENT`; an enum because type checkers then narrow on `is ABSENT`."""

    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


# No value at all, as opposed to null: the output before the first delta, the member that a key does not have
# yet, and the empty delta. As a delta it changes nothing; null, by contrast, creates a missing member. It is not
# JSON, so sending it by mistake fails at the encoder and not at the peer.
ABSENT: Final = Absent.ABSENT


class DeltaError(ValueError):
    """A delta that cannot be applied; `path` says where in the output, `problem` says why."""

    def __init__(self, problem: str, path: Path = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return f"{self.problem} at {format_path(self.path)}"


class NotAnExtension(DeltaError):
    """No delta leads from the old value to the new one; send the whole new value instead."""


def format_path(path: Path) -> str:
    """Writes a path as `$.a[3]["odd key"]`."""
    return "$" + "".join(
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{json.dumps(step)}]" for step in path
    )


# --- one step at a time -------------------------------------------------------------------------------------


@overload
def combine(output: Json | Absent, delta: Json) -> Json: ...
@overload
def combine(output: Json | Absent, delta: Json | Absent) -> Json | Absent: ...
def combine(output: Json | Absent, delta: Json | Absent) -> Json | Absent:
    """Returns `output` extended by `delta`; neither argument is changed or shared with the result.

    Not associative: a leading null of an array is dropped where the output has no array yet. To join deltas before
    there is an output, use `compose`.
    """
    joiner = Joiner(output)
    joiner.add(delta)
    return joiner.value


@overload
def compose(first: Json | Absent, second: Json) -> Json: ...
@overload
def compose(first: Json | Absent, second: Json | Absent) -> Json | Absent: ...
def compose(first: Json | Absent, second: Json | Absent) -> Json | Absent:
    """Returns one delta with the effect of `first` followed by `second`, on any output.

    `combine(combine(o, a), b)` and `combine(o, compose(a, b))` give the same value or both fail (with
    fractions: up to the rounding of floats), and `compose` is associative.
    """
    return compose_all((first, second))


def compose_all(deltas: Iterable[Json | Absent]) -> Json | Absent:
    """Composes any number of deltas, in order; returns `ABSENT` if there are none."""
    composer = Composer()
    for delta in deltas:
        composer.add(delta)
    return composer.value


def require_object(delta: object) -> dict[str, Json]:
    """Returns `delta` if it is an object, as the root of an output and of a delta on the wire must be."""
    if type(delta) is not dict:
        raise DeltaError(f"a delta must be an object, not {_describe(delta)}")
    return delta


# --- many steps ---------------------------------------------------------------------------------------------


class _Accumulator:
    """A private tree that deltas extend in place."""

    __slots__ = ("_holder", "_markers", "_value")

    def __init__(self, start: Json | Absent, markers: _Markers) -> None:
        # The tree is the only element of a list, so that its root is replaced like any other node. It consists of
        # plain JSON, except that a string that has grown is a _Text.
        self._holder: list[Any] = [ABSENT if start is ABSENT else _copy(start, _Markers.KEEP, ())]
        self._markers = markers  # treatment of the leading null of an array where there was no array
        self._value: Any = _STALE  # the tree as plain JSON, or _STALE after a change

    def add(self, delta: Json | Absent) -> None:
        """Extends the value by `delta`. A delta that fails changes nothing, and other deltas can follow."""
        # Shortcut for the most frequent delta, {"text": "fragment"} after an earlier fragment. A fragment that may
        # start with half a surrogate pair sorts at or after _LOW and takes the general path.
        if type(delta) is dict and len(delta) == 1 and type(root := self._holder[0]) is dict:
            for key, fragment in delta.items():
                if type(fragment) is str and "" < fragment < _LOW and type(text := root.get(key)) is _Text:
                    text.append(fragment)
                    self._value = _STALE
                    return
        if delta is ABSENT:
            return
        changes: _Changes = []
        _plan(self._holder, 0, self._holder[0], delta, self._markers, (), changes)
        for container, place, value in changes:
            container[place] = value
        if changes:
            self._value = _STALE

    @property
    def value(self) -> Json | Absent:
        """The value so far, as plain JSON; `ABSENT` before the first delta.

        The first access after a change builds the result; later accesses return the same object. A later `add` never
        changes it, and the caller should not change it either.
        """
        if self._value is _STALE:
            self._value = _plain(self._holder[0])
        value: Json | Absent = self._value
        return value


@final
class Joiner(_Accumulator):
    """Combines a stream of deltas: holds the output while its deltas arrive."""

    __slots__ = ()

    def __init__(self, start: Json | Absent = ABSENT) -> None:
        super().__init__(start, _Markers.DROP)


@final
class Composer(_Accumulator):
    """Composes a stream of deltas: coalesces waiting deltas into one."""

    __slots__ = ()

    def __init__(self, start: Json | Absent = ABSENT) -> None:
        super().__init__(start, _Markers.KEEP)


# --- finding a delta ----------------------------------------------------------------------------------------


class TextDigest:
    """Length and digest of a text that grows in pieces, to compare it later without holding it."""

    def __init__(self) -> None:
        self.length = 0
        self._hash = hashlib.blake2b()

    def add(self, text: str) -> None:
        self.length += len(text)
        self._hash.update(text.encode("utf-8", "surrogatepass"))

    def begins(self, text: str) -> bool:
        """Returns True if `text` begins with the text so far."""
        beginning = hashlib.blake2b(text[: self.length].encode("utf-8", "surrogatepass"))
        return len(text) >= self.length and beginning.digest() == self._hash.digest()


def diff(old: Json | Absent, new: Json | Absent) -> Json | Absent:
    """Returns the delta with which `combine` turns `old` into `new`; `ABSENT` if they are equal.

    Outputs only grow: strings and arrays at their end, objects by keys, null into anything, numbers by any
    difference. Every other change raises `NotAnExtension`. Numbers compare by value: 1 equals 1.0.
    """
    if new is ABSENT and old is not ABSENT:
        raise NotAnExtension(f"{_describe(old)} cannot be removed")
    delta: Json | Absent = ABSENT if new is ABSENT else _diff(old, new, ())
    return delta


def _diff(old: Any, new: Any, path: Path) -> Any:
    if old is ABSENT or old is None:
        return ABSENT if old is None and new is None else _copy(new, _Markers.ADD, path)
    kind = _KINDS.get(type(old))
    if kind != _KINDS.get(type(new)) or kind is None:
        for value in (old, new):
            _copy(value, _Markers.KEEP, path)  # raises if the value is not JSON at all, a different mistake
        raise NotAnExtension(f"{_describe(old)} cannot become {_describe(new)}", path)
    if kind == "array":
        return _diff_array(old, new, path)
    if kind == "object":
        return _diff_object(old, new, path)
    if kind == "number":
        for value in (old, new):
            _copy(value, _Markers.KEEP, path)
    if old == new:
        return ABSENT
    delta = _difference(old, new) if kind == "number" else _suffix(old, new) if kind == "string" else None
    if delta is None:
        raise NotAnExtension(f"no {kind} can be added to the old {kind} to get the new one", path)
    return delta


def _diff_object(old: dict[str, Any], new: dict[str, Any], path: Path) -> Any:
    _check_depth(path)
    delta = {}
    for key, value in new.items():
        if type(key) is not str:
            raise _bad_key(key, path)
        change = _diff(old.get(key, ABSENT), value, (*path, key))
        if change is not ABSENT:
            delta[key] = change
    for key in old:
        if key not in new:
            raise NotAnExtension(f"{_describe(old[key])} cannot be removed", (*path, key))
    return delta or ABSENT


def _diff_array(old: list[Any], new: list[Any], path: Path) -> Any:
    _check_depth(path)
    if not old:
        return _copy(new, _Markers.ADD, path) if new else ABSENT
    if len(new) < len(old):
        raise NotAnExtension(f"array of {len(old)} cannot become array of {len(new)}", path)
    last = len(old) - 1
    for index in range(last):
        if _diff(old[index], new[index], (*path, index)) is not ABSENT:
            raise NotAnExtension(f"{_describe(old[index])} cannot change before the end of its array", (*path, index))
    change = _diff(old[last], new[last], (*path, last))
    if change is ABSENT and len(new) == len(old):
        return ABSENT
    fresh = (_copy(new[index], _Markers.ADD, (*path, index)) for index in range(last + 1, len(new)))
    return [None if change is ABSENT else change, *fresh]


def _difference(old: float, new: float) -> float | None:
    if type(old) is int and type(new) is int:
        return new - old
    candidates: list[float] = []
    try:
        guess = float(new) - float(old)
    except OverflowError:  # an integer beyond the range of floats
        pass
    else:
        # The numbers that lead to `new` form an interval around the exact difference. If it contains a float, it
        # contains the nearest one below or above the difference: the guess, or a neighbour of the guess.
        candidates += [guess, math.nextafter(guess, -math.inf), math.nextafter(guess, math.inf)]
    if type(old) is int and float(new).is_integer():
        candidates.insert(1, int(new) - old)
    for candidate in candidates:
        if (type(candidate) is int or math.isfinite(candidate)) and _sum(old, candidate) == new:
            return candidate
    return None


def _suffix(old: str, new: str) -> str | None:
    end = len(old)
    suffix = new[end:]
    if not new.startswith(old) and end <= len(new):
        # The last character of `old` may be half of a character that `new` has in full.
        suffix = chr(0xDC00 | ord(new[end - 1]) & 0x3FF) + suffix
    return suffix if "".join(_seam(old, suffix)) == new else None


# --- the rules ----------------------------------------------------------------------------------------------


class _Markers(Enum):
    """Treatment of an array's leading null, the "append" marker, where there was no array before."""

    DROP = 1  # the array becomes part of an output
    KEEP = 2  # the array stays what it is: part of a delta, or of an output that is only copied
    ADD = 3  # the array was part of an output and becomes part of a delta: protect a null that is data


class _Text(list[str]):
    """The fragments of a growing string. There is at least one, and the last one is not empty."""

    __slots__ = ()


# Assignments container[key] = value. They are all collected before the first is carried out, so that a wrong delta
# changes nothing. Appending is an assignment to the empty slice at the end.
_Changes: TypeAlias = list[tuple[Any, str | int | slice, Any]]

_STALE: Final = object()
_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    _Text: "string",
    list: "array",
    dict: "object",
}
_HARMLESS: Final = frozenset({type(None), bool, int, str})  # immutable, and nothing to check
_HIGH, _LOW, _BEYOND = "\ud800", "\udc00", "\ue000"  # the ranges of the two halves of surrogate pairs


def _plan(holder: Any, key: str | int, node: Any, delta: Any, markers: _Markers, path: Path, changes: _Changes) -> None:
    """Finds the assignments that extend `node`, which is `holder[key]` or `ABSENT`, by `delta`."""
    if delta is None:
        if node is ABSENT:
            changes.append((holder, key, None))
        return
    if node is None or node is ABSENT:
        changes.append((holder, key, _copy(delta, markers, path)))
        return
    # By exact type, not isinstance: to Python a bool is an int, and this is also the fastest test.
    kind, node_kind = type(delta), type(node)
    if kind is str and (node_kind is str or node_kind is _Text):
        _plan_text(holder, key, node, delta, changes)
        return
    if kind is dict and node_kind is dict:
        _plan_object(node, delta, markers, path, changes)
        return
    if kind is list and node_kind is list:
        _plan_array(holder, key, node, delta, markers, path, changes)
        return
    if kind is bool:
        if node_kind is bool:
            if node is not delta:
                raise DeltaError(f"cannot combine {json.dumps(node)} with {json.dumps(delta)}", path)
            return
    elif (kind is int or kind is float) and (node_kind is int or node_kind is float):
        changes.append((holder, key, _finite_sum(node, delta, path)))
        return
    elif kind not in _KINDS:
        _copy(delta, markers, path)  # raises
    raise DeltaError(f"cannot combine {_describe(node)} with {_describe(delta)}", path)


def _finite_sum(node: float, delta: float, path: Path) -> float:
    total = _sum(node, delta)
    if type(total) is float and not math.isfinite(total):
        raise DeltaError("cannot combine number with number: the sum is not finite", path)
    return total


def _plan_text(holder: Any, key: str | int, node: str | _Text, delta: str, changes: _Changes) -> None:
    if not delta:
        return
    if isinstance(node, str):
        changes.append((holder, key, _Text(_seam(node, delta))))
    else:
        last = len(node) - 1
        changes.append((node, slice(last, None), _seam(node[last], delta)))


def _plan_object(node: dict[str, Any], delta: dict[str, Any], markers: _Markers, path: Path, changes: _Changes) -> None:
    for name, value in delta.items():
        if type(name) is not str:
            raise _bad_key(name, path)
        _plan(node, name, node.get(name, ABSENT), value, markers, (*path, name), changes)


def _plan_array(
    holder: Any, key: str | int, node: list[Any], delta: list[Any], markers: _Markers, path: Path, changes: _Changes
) -> None:
    if not node:
        changes.append((holder, key, _copy(delta, markers, path)))
    elif delta:
        end = len(node)
        if delta[0] is not None:
            _plan(node, end - 1, node[-1], delta[0], markers, (*path, end - 1), changes)
        if len(delta) > 1:
            fresh = [_copy(item, markers, (*path, at)) for at, item in enumerate(delta[1:], end)]
            changes.append((node, slice(end, end), fresh))


def _copy(value: Any, markers: _Markers, path: Path) -> Any:
    """Returns a deep copy of `value`, with its markers dropped, kept or added."""
    kind = type(value)
    if kind in _HARMLESS:
        return value
    if kind is dict:
        _check_depth(path)
        members = {}
        for name, item in value.items():
            if type(name) is not str:
                raise _bad_key(name, path)
            members[name] = item if type(item) in _HARMLESS else _copy(item, markers, (*path, name))
        return members
    if kind is list:
        _check_depth(path)
        items: list[Any] = []
        if value and value[0] is None:
            if markers is _Markers.DROP:
                value = value[1:]
            elif markers is _Markers.ADD:
                items.append(None)
        for item in value:
            items.append(item if type(item) in _HARMLESS else _copy(item, markers, (*path, len(items))))
        return items
    if kind is float:
        if not math.isfinite(value):
            raise DeltaError(f"number is not finite ({value})", path)
        return value
    raise DeltaError(f"not a JSON value ({kind.__name__})", path)


def _plain(node: Any) -> Any:
    """Returns a node of the private tree as plain JSON that shares nothing mutable with it."""
    kind = type(node)
    if kind is _Text:
        node[:] = ["".join(node)]  # the next access joins only fragments added since
        return node[0]
    if kind is list:
        return [item if type(item) in _HARMLESS else _plain(item) for item in node]
    if kind is dict:
        return {key: item if type(item) in _HARMLESS else _plain(item) for key, item in node.items()}
    return node


def _sum(left: float, right: float) -> float:
    # Skipping zero lets 0.0, too, leave every number as it is, even an integer that no float can hold.
    try:
        return left + right if right else left
    except OverflowError:  # an integer beyond the range of floats met a float
        return math.inf


def _seam(left: str, right: str) -> tuple[str, str]:
    """Returns two strings that, joined, are `left` followed by `right`.

    UTF-16 peers may split a character into its surrogates, one at the end of a delta and one at the start of the next.
    Python would keep two characters, which no encoder accepts, so they are joined into one.
    """
    if _LOW <= right < _BEYOND and _HIGH <= left[-1:] < _LOW:
        return left[:-1], chr(0x10000 + ((ord(left[-1]) & 0x3FF) << 10 | ord(right[0]) & 0x3FF)) + right[1:]
    return left, right


def _check_depth(path: Path) -> None:
    if len(path) >= MAX_DEPTH:
        raise DeltaError(f"nested deeper than {MAX_DEPTH} levels", path)


def _bad_key(key: object, path: Path) -> DeltaError:
    return DeltaError(f"object key is not a string ({type(key).__name__})", path)


def _describe(value: object) -> str:
    return _KINDS.get(type(value)) or type(value).__name__
