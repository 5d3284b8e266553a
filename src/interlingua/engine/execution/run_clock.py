"""The time that a run takes: it counts while its handler does something, and stands still while that only waits."""

from __future__ import annotations

from ...runtime.clock import Timer
from ..handler.run_data import RunData
from ..handler.waits import Waits

_STILL_RUNNING = 1.0  # seconds of silence after which an agent with a waiting branch counts as waiting


class RunClock:
    __slots__ = ("_clock", "_data", "_handle", "_since", "_waits", "active_at", "timeout")

    def __init__(self, data: RunData, waits: Waits) -> None:
        agent = data.agent
        self._data = data
        self._waits = waits
        self._clock = data.clock
        self._handle: Timer | None = None
        self._since: float | None = None
        self.active_at = 0.0  # when the handler did something while one of its branches waited
        self.timeout = data.request.timeout or (agent.timeout if agent else None)

    def start(self) -> None:
        if self._since is not None:
            return
        self._since = self._clock.monotonic()
        if self.timeout is not None:
            left = max(0.0, self.timeout - self._data.row.ran / 1e6)
            self._handle = self._clock.call_at(self._since + left, self._waits.leave, "timeout")

    def stop(self) -> None:
        if self._since is not None:
            self._data.row.ran = self.ran
            self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def ran(self) -> int:
        """Microseconds that the run has taken."""
        extra = 0.0 if self._since is None else self._clock.monotonic() - self._since
        return self._data.row.ran + int(extra * 1e6)

    def stir(self) -> None:
        """The handler does something while one of its branches waits: that is running, and no time to park."""
        self.active_at = self._clock.monotonic()
        if self._since is None and not self._waits.over:
            self.start()
            self._clock.call_at(self.active_at + _STILL_RUNNING, self._quiet)

    def _quiet(self) -> None:
        if self._waits.over or not self._waits.only_waiting:
            return
        until = self.active_at + _STILL_RUNNING
        if until > self._clock.monotonic():
            self._clock.call_at(until, self._quiet)
        else:
            self.stop()
