"""Provides bare wires for clients of unknown servers: HTTP with event streams, WebSockets, and JSON lines over pipes.

They send what they are given, however wrong, and keep what comes. Every wait has a time limit: a server that says
nothing is `Gone`.
"""

from __future__ import annotations

from .endpoint import Broken, Endpoint, Gone, expect, shown
from .http import LONG_HEADERS, Answer, Http, Stream, megabytes
from .messages import Heard
from .pipes import Pipes

__all__ = [
    "LONG_HEADERS", "Answer", "Broken", "Endpoint", "Gone", "Heard", "Http", "Pipes", "Stream", "expect", "megabytes",
    "shown",
]  # fmt: skip
