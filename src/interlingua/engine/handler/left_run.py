"""Runs of mounted agents that end while their handler is not in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from ...model.events import Recorded
from ...model.run import RunRequest
from ..log.record_keys import place_of, step_place


class LeftRun:
    """A run that ends while its handler is not in memory: it was parked, or its process died."""

    def __init__(
        self,
        run: str,
        thread: str | None,
        request: RunRequest,
        why: Literal["cancelled", "lost"],
        records: Mapping[str, tuple[int, Recorded]],
    ) -> None:
        self.id = run
        self.thread = thread
        self.request = request
        self.why = why
        self._records = records

    def recorded(self, step: str) -> Any:
        """The result of a step, by its key or (for its first use) its name; None if it was not recorded."""
        if step_place(step) in self._records:
            return self._records[step_place(step)][1].value
        for key, (_, record) in self._records.items():
            place = place_of(key)
            if place is not None and (place.kind, place.name) == ("step", step):
                return record.value
        return None


OnCancel = Callable[[LeftRun], Awaitable[None]]
"""Tells the remote side that a run is over.

Called when a run is cancelled, or fails after crashes, while its handler is not in memory. (A handler in memory gets
CancelledError and notifies the remote side itself.) The run ends when this returns, fails or takes too long. If the
process dies meanwhile, it is called again.
"""
