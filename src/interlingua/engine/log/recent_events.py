"""The newest events of a run in memory, for its readers: without gaps, bounded in number and bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...model.events import Event

_KEEP_EVENTS = 512


class RecentEvents:
    """A window over the end of a log. The store has earlier events. The last event always stays."""

    __slots__ = ("_events", "bytes", "most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> None:
        events = self._events
        events.append(event)
        self.bytes += event.size
        while len(events) > 1 and (len(events) > _KEEP_EVENTS or self.bytes > self.most_bytes):
            self.bytes -= events.popleft().size

    def extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(event)

    def clear(self) -> None:
        self._events.clear()
        self.bytes = 0

    @property
    def last(self) -> Event | None:
        return self._events[-1] if self._events else None

    def since(self, seq: int) -> list[Event] | None:
        """The events after `seq`; None if the window starts later or is empty."""
        events = self._events
        if not events or events[0].seq > seq + 1:
            return None
        count = events[-1].seq - seq  # there are no gaps
        if count <= 0:
            return []
        return [events[place] for place in range(-count, 0)] if count < len(events) else list(events)
