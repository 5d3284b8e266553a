"""The W3C trace context of a call: `traceparent`, `tracestate` and `baggage`, on any wire.

Reads and bounds received values, and counts in the baggage the mounts that a call has passed. Creates no spans; the
protocols know where on their wire the values stand.
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
"""The member of the baggage with the number of mounts that the call has passed."""
_FIRST_HOP = f"{HOPS}=1"

MAX_STATE = 512  # characters; the standards require at least this for the state and the baggage
MAX_BAGGAGE = 8192

_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")  # other characters could break out of the header
_COUNT = re.compile(r"[0-9]{1,9}")


def read(received: Any) -> Carrier | None:
    """Reads a trace context from headers or from the members of an object.

    Malformed values are ignored, and so is a state without a parent.
    """
    if type(received) is dict:
        if _NAMES.isdisjoint(received):
            return None
    elif not isinstance(received, Mapping):
        return None
    carrier: Carrier = {}
    parent = _parent(received.get("traceparent"))
    if parent is not None:
        carrier["traceparent"] = parent
        if state := _whole_members(received.get("tracestate"), MAX_STATE):
            carrier["tracestate"] = state
    if baggage := _whole_members(received.get("baggage"), MAX_BAGGAGE):
        carrier["baggage"] = baggage
    return carrier or None


def _parent(header: Any) -> str | None:
    match = _PARENT.fullmatch(header.strip(" \t")) if isinstance(header, str) else None
    if match is None or (match[1] == "00" and match[3] is not None):
        return None
    return f"00-{match[2]}"  # of a later version, the part that version 00 knows


def _whole_members(header: Any, limit: int) -> str:
    """Cuts a list to as many whole members as fit, without unprintable ones."""
    if not isinstance(header, str):
        return ""
    if len(header) > limit:
        header = header[: limit + 1].rpartition(",")[0]
    members = (member.strip(" \t") for member in header.split(","))
    return ",".join(member for member in members if _PRINTABLE.fullmatch(member))


def with_members(baggage: str, more: Mapping[str, str]) -> str:
    """Puts members in front of a baggage, so that they survive its limit. The others stay as written."""
    others = (member for member in baggage.split(",") if member and member.partition("=")[0].strip(" \t") not in more)
    return _whole_members(",".join([*(f"{name}={value}" for name, value in more.items()), *others]), MAX_BAGGAGE)


def hops(carrier: Carrier | None) -> int:
    """The number of mounts that a call has passed. Of several members the highest counts."""
    highest = 0
    for member in (carrier or {}).get("baggage", "").split(","):
        name, _, value = member.partition("=")
        count = value.partition(";")[0].strip(" \t")
        if name.strip(" \t") == HOPS and _COUNT.fullmatch(count):
            highest = max(highest, int(count))
    return highest


def next_hop(carrier: Carrier | None, limit: int, more: Mapping[str, str] = {}) -> Carrier:
    """The trace context for the remote side of a mount: one hop more, and `more` members in the baggage.

    Raises TooManyHops beyond the limit.
    """
    if not (carrier or more) and limit > 0:  # most calls come directly from a caller without tracing
        return {"baggage": _FIRST_HOP}
    carrier = carrier or {}
    count = hops(carrier) + 1
    if count > limit:
        raise TooManyHops(
            f"the call has gone through {count - 1} mounts and is not sent through another: max_hops is {limit}. "
            "The mounts probably form a loop; if they do not, raise max_hops"
        )
    return {**carrier, "baggage": with_members(carrier.get("baggage", ""), {HOPS: str(count), **more})}
