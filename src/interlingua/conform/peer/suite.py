"""The suite that checks of this protocol are registered with; apart from them, so that all of them can import it."""

from __future__ import annotations

from ..base import Suite
from .driver import Node, open_node

suite: Suite[Node] = Suite("peer", open_node)
check = suite.check
