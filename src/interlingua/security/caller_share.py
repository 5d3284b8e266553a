"""Limits the share of a door's places that one caller may have: never all, so that a caller that takes all it can locks
out no other.

Nine of ten: a caller may be a gateway with a great many users, and should not run into a wall while there is room.
"""

from __future__ import annotations

from ..model.run import Caller
from .auth import ANONYMOUS


def has_share(caller: Caller, held: int, limit: int) -> bool:
    """Returns whether a caller that holds this many places gets no more. Without keys, callers cannot be told apart, so
    they have no limit of their own."""
    return caller.id != ANONYMOUS.id and held >= max(1, limit * 9 // 10)
