"""Keys of records: where a call of the handler stands, and what it was called with.

With `key=` a record has that key, whatever branch it is in: `step:KEY`. Else the key is made of its branch and its
position there: `step@1.2/3:charge` is the third call of branch 1.2, and what follows after another colon belongs to it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ...model import json_values
from ...model.errors import Invalid
from ..agents.codec import to_plain

UNKNOWN = "?"
"""The digest where no argument can be encoded: they are not compared."""

NONE = ""
"""The digest of no arguments."""

_PLACE = re.compile(r"([a-z_]+)@([0-9a-z.]*)/([0-9]+):([^:]*)")
_SHOWN = 60


class Place(NamedTuple):
    """The place of a call in the history."""

    branch: str
    position: int
    kind: str
    name: str

    @property
    def key(self) -> str:
        name = self.name.replace("%", "%25").replace(":", "%3A")
        return f"{self.kind}@{self.branch}/{self.position}:{name}"


def step_place(key: str) -> str:
    """The key in the log of a step that was given this key."""
    return f"step:{key}"


def place_of(key: str) -> Place | None:
    """The place that a key names; None where it was given with `key=`."""
    found = _PLACE.match(key)
    if found is None:
        return None
    kind, branch, position, name = found.groups()
    return Place(branch, int(position), kind, name.replace("%3A", ":").replace("%25", "%"))


def is_named(key: str) -> bool:
    """Tells whether this was given with `key=`: then the arguments of the call do not count."""
    return place_of(key) is None


def kind_of(key: str) -> str:
    return re.split("[@:]", key, maxsplit=1)[0]


def name_of(key: str) -> str:
    """The name of a call, or the key that it was given."""
    place = place_of(key)
    return place.name if place is not None else key.partition(":")[2]


class Arguments(NamedTuple):
    """The arguments of a call, as far as its record has them."""

    digest: str = UNKNOWN
    shown: str = ""

    def differs(self, digest: str) -> bool:
        return UNKNOWN not in (self.digest, digest) and self.digest != digest


NO_ARGUMENTS = Arguments(NONE)
UNKNOWN_ARGUMENTS = Arguments()


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a step. One that cannot be encoded does not count; the others do."""
    if not args and not kwargs:
        return NO_ARGUMENTS
    plain = [_plain(one) for one in args]
    named = {name: _plain(one) for name, one in kwargs.items()}
    if not any(one.counts for one in (*plain, *named.values())):
        return UNKNOWN_ARGUMENTS
    digest = json_values.digest([[one.value for one in plain], {name: one.value for name, one in named.items()}])[:16]
    shown = ", ".join([*(one.shown for one in plain), *(f"{name}={one.shown}" for name, one in named.items())])
    return Arguments(digest, shorten(shown))


class _Plain(NamedTuple):
    """An argument as JSON."""

    value: Any = None
    shown: str = "…"
    counts: bool = False


def _plain(argument: Any) -> _Plain:
    try:
        value = to_plain(argument)
        return _Plain(value, _text(value), counts=True)
    except (TypeError, ValueError, OverflowError, RecursionError, Invalid):
        return _Plain()


def show(value: Any) -> str:
    """A JSON value in a few words."""
    return shorten(_text(value))


def shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _text(value: Any) -> str:
    return json_values.encode(value)[: 4 * _SHOWN].decode(errors="replace")


def describe(kind: str, name: str, shown: str) -> str:
    """A call as messages name it: step 'charge' (10)."""
    if kind in ("uuid", "now", "random", "sleep"):
        return kind
    return f"{kind} '{name}'" + (f" ({shown})" if shown else "")
