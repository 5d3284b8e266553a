"""Parking: a run whose handler does nothing but wait leaves memory, and goes on from its log when something comes.

Some runs stay in memory although they only wait: those whose question may be answered where their agent is mounted
from. In memory, a run hears of that when it happens; parked, it can only look from time to time. So a number of them
stays, those with the newest questions: the longer one has waited, the less it matters when exactly its end is heard of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ...model.run import Question
from ...runtime.clock import Timer
from ..handler.run_data import RunData
from ..handler.waits import Waits
from .agent_limit import AgentLimit
from .run_clock import RunClock

_A_TURN = 0.05  # seconds that a branch of the handler has, when it goes on while another waits
_LONGEST_PAUSE = 1.0
_NOT_WORTH_PARKING = 50_000  # microseconds until something is due


class Parked(Protocol):
    """A run that may be parked."""

    @property
    def run(self) -> str: ...
    def park_if_idle(self) -> None: ...


class Listeners:
    """The runs that stay in memory although they only wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._asked_at: dict[Parked, int] = {}

    def stays(self, run: Parked, asked_at: int) -> bool:
        """Returns True if a run stays in memory. Another one may be parked for it."""
        self._asked_at[run] = asked_at
        if len(self._asked_at) <= self._most:
            return True
        oldest = min(self._asked_at, key=lambda one: (self._asked_at[one], one.run))
        del self._asked_at[oldest]
        if oldest is run:
            return False
        oldest.park_if_idle()
        return True

    def left(self, run: Parked) -> None:
        self._asked_at.pop(run, None)

    def __contains__(self, run: object) -> bool:
        return run in self._asked_at

    def __len__(self) -> int:
        return len(self._asked_at)


class Parking:
    """Decides when one run is parked."""

    __slots__ = ("_clock", "_data", "_handle", "_listeners", "_listens", "_open_questions", "_pause", "_waits")

    def __init__(
        self, data: RunData, waits: Waits, clock: RunClock, listeners: Listeners, open_questions: Mapping[str, Question]
    ) -> None:
        self._data = data
        self._waits = waits
        self._clock = clock
        self._listeners = listeners
        self._open_questions = open_questions
        self._handle: Timer | None = None
        self._listens = 0  # branches of the handler that would miss something if the run were parked
        self._pause = _A_TURN  # seconds until the next look whether all tasks of the handler wait

    @property
    def run(self) -> str:
        return self._data.row.id

    @contextlib.contextmanager
    def exempt(self) -> Iterator[None]:
        """Keeps the run in memory, if not too many are: parked, it would miss something."""
        self._listens += 1
        try:
            yield
        finally:
            self._listens -= 1
            self._listeners.left(self)

    def consider(self) -> None:
        """Parks the run later, if the handler still only waits."""
        agent = self._data.agent
        if self._handle is None and self._waits.leaving is None and agent is not None and agent.parkable:
            self._look_in(self._data.host.settings.park_after)

    def stop(self) -> None:
        """Does not park the run: the handler works, or the run is over."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def end(self) -> None:
        self.stop()
        self._listeners.left(self)

    def park_if_idle(self) -> None:
        """Parks the run if its handler only waits."""
        waits = self._waits
        self.stop()
        if waits.over or waits.leaving is not None or not waits.only_waiting:
            return
        left = self._clock.active_at + max(self._data.host.settings.park_after, _A_TURN) - self._data.clock.monotonic()
        if left > 0:
            self._look_in(left)
            return
        deadline = waits.next_deadline()
        if deadline is not None and deadline - self._data.clock.now() < _NOT_WORTH_PARKING:
            return
        if waits.goes_on:
            waits.tick()  # a branch is about to go on: parked now, nothing would wake it
            return
        if not waits.branches.engine_code and not self._data.in_thread and waits.busy_branches():
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._look_in(self._pause)
            return
        self._pause = _A_TURN
        if self._listens:
            asked_at = max((one.asked_at for one in self._open_questions.values()), default=0)
            if self._listeners.stays(self, asked_at):
                return
        waits.leave("park")

    def _look_in(self, seconds: float) -> None:
        clock = self._data.clock
        self._handle = clock.call_at(clock.monotonic() + seconds, self.park_if_idle)


class Slots(Protocol):
    """The slots of a worker."""

    def set_idle(self, limit: AgentLimit | None, idle: bool) -> None: ...


class Activity:
    """Notes whether a handler does something or only waits: its clock, its slot and its parking depend on that."""

    __slots__ = ("_clock", "_data", "_idle", "_parking", "_slots", "_waits", "limit")

    def __init__(self, data: RunData, waits: Waits, clock: RunClock, parking: Parking, slots: Slots) -> None:
        self._data = data
        self._waits = waits
        self._clock = clock
        self._parking = parking
        self._slots = slots
        self._idle = False
        self.limit: AgentLimit | None = None  # of the agent, where its runs are counted

    def tick(self, waits: asyncio.Task[Any] | None = None) -> None:
        """Run the clock while the handler runs; stop it, and think of parking, while it only waits. `waits`: the task
        that is about to wait."""
        if self._waits.over:
            return
        waiting = self._waits.only_waiting
        self._set_idle(waiting)
        if waiting:
            self._clock.stop()
            row = self._data.row
            if row.crashes and not self._executes_beside(waits):
                row.crashes = 0  # it came as far as it could, so it did not cause the crashes
                self._data.log.touch()
            self._parking.consider()
        else:
            self._parking.stop()
            self._clock.start()

    def stir(self) -> None:
        """The handler does something while one of its branches waits."""
        self._clock.stir()

    def end(self) -> None:
        """The run is over."""
        self._clock.stop()
        self._set_idle(False)
        self._parking.end()

    def _executes_beside(self, waits: asyncio.Task[Any] | None) -> bool:
        """Tells whether another branch executes while one waits: it may be what kills the process."""
        if self._waits.branches.engine_code or self._data.in_thread:
            return False
        return any(branch.task is not waits for branch in self._waits.busy_branches())

    def _set_idle(self, idle: bool) -> None:
        """An agent that only waits takes no slot: others run, its own children for instance."""
        if idle is not self._idle:
            self._idle = idle
            self._slots.set_idle(self.limit, idle)
