"""The port to the bus. The store is truth; what travels here is a hint that there is something to read.

A bus may lose everything, tell it twice or in another order: readers and workers then find out by looking, later.
`Bus` is all that one process needs; `RemoteBus` is what a bus can do besides that reaches other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec


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
QUESTIONS = "questions"  # one was asked, answered or withdrawn


class News(msgspec.Struct, array_like=True, gc=False):
    """What a run's owner has committed, as it travels: events `first` to `last` of the log."""

    sent: int  # microseconds since 1970, by the sender's clock
    first: int
    last: int
    rows: bytes = b""  # the events, in the engine's words; empty: look in the store


ANYTHING = News(0, 0, -1)
"""Something may have been missed: look in the store."""


class Presence(msgspec.Struct, omit_defaults=True):
    """Who is there, and which queues it serves, as it said a moment ago."""

    worker: str
    host: str
    pid: int
    queues: list[str]  # of runs: origin, agent and version
    running: int = 0
    room: int = 0  # slots that are free
    started_at: int = 0
    sent: int = 0
    asks: bool = False  # it has just come, and wants to know who else is there
    leaves: bool = False


class Health(msgspec.Struct):
    """How a bus is doing, for metrics. Counters are since it was opened."""

    connected: bool = False
    connects: int = 0
    sent: int = 0
    received: int = 0
    dropped: int = 0  # on the way out: not connected, or too much at once
    overflowed: int = 0  # on the way in: read too slowly
    lag: float = 0.0  # seconds from publishing to receipt, smoothed; of two clocks, where that is two machines
    work_lag: float = 0.0  # the same, of work that is handed out: how long it lay there


class Ear(Protocol):
    """Who a remote bus serves: the worker of this process. Everything is called on the event loop."""

    @property
    def worker(self) -> str: ...

    def presence(self) -> Presence: ...

    def missed(self) -> None:
        """Anything may have been missed: look everywhere, and call `publish_all`."""

    def told(self, run: str) -> None:
        """Another process put something into the inbox of a run that may be here."""

    def watched(self, run: str) -> None:
        """Another process has begun to read a run that may be here."""

    async def room(self, queue: str) -> None:
        """Return when there is a free slot for a run of this queue."""

    async def offered(self, queue: str, run: str, *, again: bool) -> bool:
        """A run is due; `again`: that was said before, to somebody. Returns when the store has decided whose it is;
        false: there is no free slot here."""


@runtime_checkable
class RemoteBus(Bus, Protocol):
    """A bus that reaches other processes."""

    health: Health

    def attach(self, ear: Ear) -> None: ...

    def detach(self) -> None:
        """Nothing is called any more, and no work taken. What is to be told still goes out."""

    # committed events
    def wanted(self, run: str) -> bool:
        """Whether another process reads this run now. Where not, nothing of it needs to be sent."""

    def publish_events(self, run: str, first: int, last: int, rows: bytes) -> None:
        """As `publish`, with what was committed. Called only after the commit. Without rows: how far the log is."""

    def follow(self, run: str, callback: Callable[[News], None]) -> Callable[[], None]:
        """Call back with what the owner of a run sends, wherever that is. Returns what ends it."""

    # inboxes
    def tell(self, worker: str | None, run: str) -> None:
        """There is something in the inbox of a run that this worker owns; None: whoever owns it."""

    # work
    def hand_out(self, queue: str, run: str, entry: int) -> bool:
        """Offer a run that is due to whoever serves its queue and has a free slot. False: this bus cannot do that now.

        The same entry (of a run that was entered so many times) is offered once, however often this is called.
        """

    def take(self, queues: list[str]) -> None:
        """Take work of these queues from now on, and for no others."""

    # presence
    def present(self) -> list[Presence]:
        """Who is there, without this process."""


class BusSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Where the bus is, and how to get in. Secrets stay out of messages."""

    url: str | None = None
    prefix: str | None = None
    token: str | None = None
    credentials: Path | None = None
    nkey: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    hand_out: str = "memory"
