"""The protocols that are installed, ours and others': everything under the entry point `interlingua.protocols`."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..protocols import Protocol


@cache
def protocols() -> tuple[Protocol, ...]:
    """Looked for once: to look means to open a file of every package that is installed."""
    found = importlib.metadata.entry_points(group="interlingua.protocols")
    return tuple(entry.load() for entry in sorted(found, key=lambda entry: entry.name))
