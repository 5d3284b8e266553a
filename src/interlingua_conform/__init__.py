"""Checks servers from outside against the five documents, by speaking to them as any client could.

No check uses the doors or mounts of Interlingua: a mistake that both made would go unseen. A package per protocol holds
its checks; `base` defines and runs checks, and `interlingua.transports.raw_client` has the bare wires.
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
