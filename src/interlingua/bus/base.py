"""The port to the bus. The store is truth; what travels here is a hint that there is something to read.

A bus may lose everything: readers and workers then find out by looking, later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Bus(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def publish(self, topic: str) -> None:
        """Tell whoever listens to a topic (a run id, or WORK) that something changed."""

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, on the event loop, after each change of a topic. Returns what ends it."""

    def publish_all(self) -> None:
        """Something changed and nobody can say what (another process wrote to the file)."""


WORK = "work"  # there may be runs to claim, or inboxes to read
