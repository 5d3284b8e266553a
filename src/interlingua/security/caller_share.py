"""How many of a door's places one caller may have: never all, so that one who takes whatever there is locks out nobody.

Nine of ten: a caller may be a gateway with a great many users, and should not run into a wall while there is room.
"""

from __future__ import annotations

from ..model.run import Caller
from .auth import ANONYMOUS


def has_share(caller: Caller, held: int, limit: int) -> bool:
    """Whether a caller with so many of these places gets no more. Without keys nobody can be told from anybody else, so
    that all have all."""
    return caller.id != ANONYMOUS.id and held >= max(1, limit * 9 // 10)
