"""Suspension: a handler leaves memory while its run goes on later. It is parked, blocked, or released by a process that
stops."""

from __future__ import annotations

from typing import Literal

Leaving = Literal["cancel", "timeout", "park", "hand_back", "block", "exit", "full"]
"""Why a handler is left."""


class Suspended(BaseException):
    """Raised in a handler whose run is suspended.

    It is no cancellation and no error: neither `except Exception` nor `except asyncio.CancelledError` catches it. The
    handler runs again from the top when the run resumes.
    """


SUSPENDING = ("park", "hand_back", "block")
"""Ways to leave a handler after which its run goes on."""
