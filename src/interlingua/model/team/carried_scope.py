"""The scope and the limits under which a call is made, as they travel with it through a mount.

They are a member of the baggage, which every wire carries: whoever starts work of a team under them cuts the authority
of that work down to them, and sends what is left on. A caller can only narrow its own call with it. Pure.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from ..errors import Denied, InvalidRequest
from ..trace_context import Carrier
from . import authority as gates
from .authority import Authority, Ceiling, Limits, Scope

SCOPE = "interlingua-scope"
"""The member of the baggage: the scope as JSON, in base64 without padding."""

LONGEST = 4096  # characters; the baggage has room for twice as many


class CarriedScope(Scope, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`limits` are what is left: levels and runs below the agent that is called, seconds from when the call is made."""

    narrowed: bool = False  # somebody narrowed the call on purpose: it goes nowhere where that does not hold


_decoder = msgspec.json.Decoder(CarriedScope)


def left_of(authority: Authority, now: int) -> CarriedScope:
    """What a run with this authority may hand on, at a time in microseconds since 1970."""
    seconds = None if authority.deadline is None else max((authority.deadline - now) / 1e6, 0.001)
    ceiling = authority.ceiling
    return CarriedScope(
        ceiling.delegates, ceiling.tools, ceiling.scopes,
        Limits(depth=authority.depth, runs=authority.budget, seconds=seconds), authority.narrowed,
    )  # fmt: skip


def later(scope: CarriedScope, seconds: float) -> CarriedScope:
    """The same scope after some time has passed."""
    if scope.limits.seconds is None:
        return scope
    limits = msgspec.structs.replace(scope.limits, seconds=max(scope.limits.seconds - seconds, 0.001))
    return msgspec.structs.replace(scope, limits=limits)


def under(authority: Authority, scope: CarriedScope, now: int) -> Authority:
    """The authority with which a task begins, cut down to a scope that came with the call. The first agent of the team
    stands for the agent that was called: levels and runs count from there."""
    limits = scope.limits
    depth = authority.depth if limits.depth is None else min(authority.depth, limits.depth + 1)
    budget = authority.budget if limits.runs is None else min(authority.budget, limits.runs + 1)
    return msgspec.structs.replace(
        gates.narrowed(authority, Ceiling(scope.delegates, scope.tools, scope.scopes), limits.seconds, now),
        depth=depth, budget=budget, narrowed=authority.narrowed or scope.narrowed,
    )  # fmt: skip


def write(scope: CarriedScope) -> str:
    written = base64.urlsafe_b64encode(msgspec.json.encode(scope)).decode().rstrip("=")
    if len(written) > LONGEST:
        raise Denied(
            f"the scope of this call is too long to travel through a mount: {len(written)} characters, and {LONGEST} "
            "fit; name fewer agents and tools in it"
        )
    return written


def read(carrier: Carrier | None) -> CarriedScope | None:
    """The scope that a call came with. Raises InvalidRequest where one is there that cannot be read: nothing is done
    under a scope that nobody knows."""
    found: CarriedScope | None = None
    for member in (carrier or {}).get("baggage", "").split(","):
        name, _, value = member.partition("=")
        if name.strip(" \t") == SCOPE:
            given = _read(value.partition(";")[0].strip(" \t"))
            found = given if found is None else _both(found, given)
    return found


def _read(written: str) -> CarriedScope:
    try:
        return _decoder.decode(base64.urlsafe_b64decode(written + "=" * (-len(written) % 4)))
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"the member {SCOPE} of the baggage cannot be read: {error}") from None


def _both(one: CarriedScope, other: CarriedScope) -> CarriedScope:
    ceiling: Any = gates.meet(one, other)
    limits = one.limits.tightest(other.limits)
    return CarriedScope(ceiling.delegates, ceiling.tools, ceiling.scopes, limits, one.narrowed or other.narrowed)
