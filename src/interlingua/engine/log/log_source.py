"""Sources of a run's log: the memory of its owner, what another process publishes, or the store and a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ...bus.port import Bus
from ...model.events import Event
from ...model.run import Blocked
from ...runtime.clock import Clock
from ...store.ports import Store
from ...store.rows import RunRow
from .run_log import RunLog


class LogSource(Protocol):
    """Serves one reader. What it does not have is in the store."""

    def since(self, seq: int) -> list[Event] | None:
        """Committed events after `seq`; None: look in the store."""

    def changed(self) -> asyncio.Future[None]:
        """Resolves at the next news, or when it is time to look in the store."""

    def look(self, seq: int) -> asyncio.Future[None]:
        """As `changed`. Called before the store is read for the events after `seq`."""

    def found(self, events: Sequence[Event]) -> None:
        """The store had these events."""

    def row(self) -> RunRow | None:
        """The row of the run as it is committed; None: it is in the store."""

    def leave(self) -> None: ...


class BlockedReader(Protocol):
    """A reader that waits for news of a run that is not executed here."""

    def tell_blocked(self, why: Blocked) -> None:
        """The run is due, and no process serves its code."""


class LogSources(Protocol):
    """Everything that a reader needs of the engine."""

    @property
    def store(self) -> Store: ...

    def live(self, run: str) -> RunLog | None:
        """The log of a run that is here, or that finished here a moment ago."""

    def followed(self, run: str, after: int) -> LogSource | None:
        """The source of a run that was just submitted here to run elsewhere: all after an event is published."""

    async def distant(self, run: str, first: Event | None) -> LogSource:
        """The source of news of a run that is not here. `first`: its first event, where that is known."""

    async def check_open(self, run: str) -> None:
        """Raise RunNotFound for a sealed run."""

    def watch(self, run: str, reader: BlockedReader) -> None:
        """Tell a reader where a run is due and no process serves its code."""

    def unwatch(self, run: str, reader: BlockedReader) -> None: ...


class LiveSource:
    """The log in the memory of its owner: this process."""

    def __init__(self, log: RunLog) -> None:
        self.log = log

    def since(self, seq: int) -> list[Event] | None:
        return self.log.since(seq)

    def changed(self) -> asyncio.Future[None]:
        return self.log.changed()

    def look(self, seq: int) -> asyncio.Future[None]:
        return self.log.changed()

    def found(self, events: Sequence[Event]) -> None:
        pass

    def row(self) -> RunRow | None:
        return self.log.committed_row

    def leave(self) -> None:
        pass


class StoredSource:
    """The store, and hints of this process that it has more."""

    def __init__(self, bus: Bus, clock: Clock, run: str, look_every: float) -> None:
        self._bus = bus
        self._clock = clock
        self._run = run
        self._look_every = look_every

    def since(self, seq: int) -> list[Event] | None:
        return None

    def changed(self) -> asyncio.Future[None]:
        return next_hint(self._bus, self._clock, self._run, self._look_every)

    def look(self, seq: int) -> asyncio.Future[None]:
        return self.changed()

    def found(self, events: Sequence[Event]) -> None:
        pass

    def row(self) -> RunRow | None:
        return None

    def leave(self) -> None:
        pass


def next_hint(bus: Bus, clock: Clock, topic: str, look_every: float) -> asyncio.Future[None]:
    """Resolves at the next news of a topic, or when it is time to look anyway: hints may get lost."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fire() -> None:
        if not future.done():
            future.set_result(None)

    end = bus.subscribe(topic, fire)
    timer = clock.call_at(clock.monotonic() + look_every, fire)

    def clean(_: object) -> None:
        end()
        timer.cancel()

    future.add_done_callback(clean)
    return future
