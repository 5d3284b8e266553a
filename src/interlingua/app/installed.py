"""The protocols that are installed, ours and others': everything under the entry point `interlingua.protocols`."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..protocols import Protocol


def protocols() -> list[Protocol]:
    found = importlib.metadata.entry_points(group="interlingua.protocols")
    return [entry.load() for entry in sorted(found, key=lambda entry: entry.name)]
