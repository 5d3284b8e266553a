"""Limits the share of a door's places that one caller may have: never all, so that a caller that takes all it can locks
out no other.

Nine of ten: a caller may be a gateway with a great many users, and should not run into a wall while there is room.
"""

from __future__ import annotations

from ..model.run import Caller
from .auth import ANONYMOUS


def has_share(caller: Caller, held: int, limit: int) -> bool:
    """Returns whether a caller that holds this many places gets no more."""
    return holder(caller) is not None and held >= share_of(limit)


def share_of(limit: int, tenths: int = 9) -> int:
    """Returns the places that one caller may have, as tenths of all places."""
    return max(1, limit * tenths // 10)


def holder(caller: Caller) -> str | None:
    """Returns the id under which the places of a caller are counted. None: without keys, callers cannot be told apart,
    so they have no limit of their own."""
    return None if caller.id == ANONYMOUS.id else caller.id
