"""Checks of servers of CAP, the protocol of agent teams.

The document says what participants say to each other, and not how it travels: `wires` has what is taken for granted.
Where it says two things (an inquiry as a message or of a type of its own, a timestamp that its examples leave out of
the envelope), a server may do either. The checks are in a module per subject; the order of the imports is that of the
report.
"""

from __future__ import annotations

# isort: off
from .checks import (
    handed_over, talking, shapes, manifests, delegating, overseeing, tools, failing, example,
)  # fmt: skip
from .driver import suite
# isort: on

__all__ = [
    "delegating", "example", "failing", "handed_over", "manifests", "overseeing", "shapes", "suite", "talking", "tools",
]  # fmt: skip
