"""Checks of servers from outside: what of the five documents a server keeps, seen by speaking to it as anyone could.

Nothing in here uses our doors or mounts: a mistake that both made would go unseen. A package per protocol holds its
checks; `base` has what they are written with and what runs them, `raw` the bare wires.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Suite

PROTOCOLS: tuple[str, ...] = ("mcp", "connect", "peer", "editor", "cap")


def suite(protocol: str) -> Suite[Any]:
    """The checks of a protocol."""
    found: Suite[Any] = import_module(f"{__name__}.{protocol}").suite
    return found
