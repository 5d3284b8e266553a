"""Checks servers of CAP, the protocol of agent teams.

The document defines the messages of participants, and no transport: `wires` has the checker's assumptions about it. If
the document allows two things (an inquiry as a message or of a type of its own, a timestamp that its examples leave out
of the envelope), a server may do either. The checks are in a module per subject; the order of the imports is that of
the report.
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
