"""The W3C trace context that goes with a call: `traceparent`, `tracestate` and `baggage`, whatever wire they come over.

This reads them from what others send, bounds them, and counts in the baggage through how many mounts a call has gone.
It makes no spans, and knows nothing of where on a wire they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import TooManyHops

Carrier = dict[str, str]

NAMES = ("traceparent", "tracestate", "baggage")
_NAMES = frozenset(NAMES)
HOPS = "interlingua-hops"
"""The member of the baggage that says through how many mounts the call has gone."""
_FIRST_HOP = f"{HOPS}=1"

MAX_STATE = 512  # characters; these and those of the baggage are what the standards ask to be carried at least
MAX_BAGGAGE = 8192

_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")  # anything else could end the header that it is sent in
_COUNT = re.compile(r"[0-9]{1,9}")


def read(given: Any) -> Carrier | None:
    """What can be used of a trace context: headers, or members of an object among others. What is malformed is as good
    as not there; without a parent a state means nothing."""
    if type(given) is dict:
        if _NAMES.isdisjoint(given):
            return None
    elif not isinstance(given, Mapping):
        return None
    found: Carrier = {}
    parent = _parent(given.get("traceparent"))
    if parent is not None:
        found["traceparent"] = parent
        if state := _within(given.get("tracestate"), MAX_STATE):
            found["tracestate"] = state
    if baggage := _within(given.get("baggage"), MAX_BAGGAGE):
        found["baggage"] = baggage
    return found or None


def _parent(given: Any) -> str | None:
    match = _PARENT.fullmatch(given.strip(" \t")) if isinstance(given, str) else None
    if match is None or (match[1] == "00" and match[3] is not None):
        return None
    return f"00-{match[2]}"  # of a later version, what this one knows of it


def _within(given: Any, limit: int) -> str:
    """A list as far as there is room for whole members of it."""
    if not isinstance(given, str):
        return ""
    if len(given) > limit:
        given = given[: limit + 1].rpartition(",")[0]
    members = (one.strip(" \t") for one in given.split(","))
    return ",".join(one for one in members if _PRINTABLE.fullmatch(one))


def with_members(baggage: str, more: Mapping[str, str]) -> str:
    """A baggage with these members, first: where there is not room for all, they stay. All others are kept as they
    were written."""
    old = (one for one in baggage.split(",") if one and one.partition("=")[0].strip(" \t") not in more)
    return _within(",".join([*(f"{name}={value}" for name, value in more.items()), *old]), MAX_BAGGAGE)


def hops(carrier: Carrier | None) -> int:
    """Through how many mounts a call has gone. Where somebody has made several members of it, the highest counts."""
    found = 0
    for member in (carrier or {}).get("baggage", "").split(","):
        name, _, value = member.partition("=")
        count = value.partition(";")[0].strip(" \t")
        if name.strip(" \t") == HOPS and _COUNT.fullmatch(count):
            found = max(found, int(count))
    return found


def onward(carrier: Carrier | None, limit: int, more: Mapping[str, str] = {}) -> Carrier:
    """What goes on to the remote side of a mount: the same, with one hop more, and with `more` members of the baggage.
    Raises TooManyHops beyond the limit."""
    if not (carrier or more) and limit > 0:  # most calls come straight from their caller, who does not trace them
        return {"baggage": _FIRST_HOP}
    carrier = carrier or {}
    count = hops(carrier) + 1
    if count > limit:
        raise TooManyHops(
            f"the call has gone through {count - 1} mounts and is not sent through another: max_hops is {limit}. "
            "Probably mounts lead back to where the call came from; where they do not, give the engine more max_hops"
        )
    return {**carrier, "baggage": with_members(carrier.get("baggage", ""), {HOPS: str(count), **more})}
