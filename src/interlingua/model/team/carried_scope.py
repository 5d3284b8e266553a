"""The scope and limits of a call, as they travel with it through a mount. Pure.

They are a member of the baggage, which every wire carries. A server that starts a team's work restricts its authority
to them and forwards the remainder. A caller can only narrow its own call with them.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from ..errors import Denied, InvalidRequest
from ..trace_context import Carrier, with_members
from . import authority as gates
from .authority import Authority, Ceiling, Limits, Scope

SCOPE = "interlingua-scope"
"""The member of the baggage: the scope as JSON, in base64 without padding."""

MAX_LENGTH = 4096  # characters; the baggage has room for twice as many


class CarriedScope(Scope, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A scope whose `limits` are the remainder: levels and runs below the called agent, seconds from the call."""

    narrowed: bool = False  # a delegation narrowed the call, so it may reach only servers that enforce the scope


_decoder = msgspec.json.Decoder(CarriedScope)


def remaining_scope(authority: Authority, now: int) -> CarriedScope:
    """The scope that a run with this authority passes on. `now` is in microseconds since 1970."""
    seconds = None if authority.deadline is None else max((authority.deadline - now) / 1e6, 0.001)
    ceiling = authority.ceiling
    return CarriedScope(
        ceiling.delegates, ceiling.tools, ceiling.scopes,
        Limits(depth=authority.depth, runs=authority.budget, seconds=seconds), authority.narrowed,
    )  # fmt: skip


def after(scope: CarriedScope, seconds: float) -> CarriedScope:
    """The same scope some seconds later."""
    if scope.limits.seconds is None:
        return scope
    limits = msgspec.structs.replace(scope.limits, seconds=max(scope.limits.seconds - seconds, 0.001))
    return msgspec.structs.replace(scope, limits=limits)


def restrict_to(authority: Authority, scope: CarriedScope, now: int) -> Authority:
    """Restricts the first authority of a task to the scope that came with the call.

    The first agent of the team stands for the called agent: levels and runs count from there.
    """
    limits = scope.limits
    depth = authority.depth if limits.depth is None else min(authority.depth, limits.depth + 1)
    budget = authority.budget if limits.runs is None else min(authority.budget, limits.runs + 1)
    return msgspec.structs.replace(
        gates.restrict(authority, Ceiling(scope.delegates, scope.tools, scope.scopes), limits.seconds, now),
        depth=depth, budget=budget, narrowed=authority.narrowed or scope.narrowed,
    )  # fmt: skip


def write(scope: CarriedScope) -> str:
    encoded = base64.urlsafe_b64encode(msgspec.json.encode(scope)).decode().rstrip("=")
    if len(encoded) > MAX_LENGTH:
        raise Denied(
            f"the scope of this call is too long to travel through a mount: {len(encoded)} characters, at most "
            f"{MAX_LENGTH}; name fewer agents and tools in it"
        )
    return encoded


def read(carrier: Carrier | None) -> CarriedScope | None:
    """Reads the scope of a received call. Raises InvalidRequest if it is unreadable."""
    combined: CarriedScope | None = None
    for member in (carrier or {}).get("baggage", "").split(","):
        name, _, value = member.partition("=")
        if name.strip(" \t") == SCOPE:
            scope = _read(value.partition(";")[0].strip(" \t"))
            combined = scope if combined is None else _intersect(combined, scope)
    return combined


def deduct_seconds(carrier: Carrier | None, seconds: float) -> Carrier | None:
    """Deducts elapsed seconds from the scope in a trace context."""
    scope = read(carrier)
    if carrier is None or scope is None or scope.limits.seconds is None:
        return carrier
    return {**carrier, "baggage": with_members(carrier["baggage"], {SCOPE: write(after(scope, seconds))})}


def _read(encoded: str) -> CarriedScope:
    try:
        return _decoder.decode(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"the member {SCOPE} of the baggage cannot be read: {error}") from None


def _intersect(left: CarriedScope, right: CarriedScope) -> CarriedScope:
    ceiling: Any = gates.intersect(left, right)
    limits = left.limits.tightest(right.limits)
    return CarriedScope(ceiling.delegates, ceiling.tools, ceiling.scopes, limits, left.narrowed or right.narrowed)
