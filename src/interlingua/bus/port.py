"""The port to the bus. The store is the truth; a message on the bus is only a hint to read it.

A bus may lose, repeat or reorder messages: readers and workers then find the changes later, by polling the store.
`Bus` is enough for one process; `ClusterBus` adds the operations of a bus that reaches other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

_FILE = {"metavar": "FILE"}


class Bus(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def publish(self, topic: str) -> None:
        """Notifies the subscribers of a topic (a run id, or WORK) of a change."""

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, on the event loop, after each change of a topic. Returns the function that unsubscribes."""

    def publish_all(self) -> None:
        """Notifies all subscribers, after a change of unknown content (another process wrote to the file)."""


WORK = "work"  # the topic of runs to claim and inboxes to read
QUESTIONS = "questions"  # the topic of questions asked, answered or withdrawn


class CommittedEvents(msgspec.Struct, array_like=True, gc=False):
    """Committed events of a run, from its owner: `first` to `last` of the log."""

    sent: int  # microseconds since 1970, by the sender's clock
    first: int
    last: int
    rows: bytes = b""  # the events, encoded by the engine; empty: read the store


ANYTHING = CommittedEvents(0, 0, -1)
"""Messages may have been lost: read the store."""


class Presence(msgspec.Struct, omit_defaults=True):
    """The announcement of a worker: its process and the queues that it serves."""

    worker: str
    host: str
    pid: int
    queues: list[str]  # of runs: origin, agent and version
    running: int = 0
    room: int = 0  # free slots
    started_at: int = 0
    sent: int = 0
    asks: bool = False  # it has just connected and asks the others to announce themselves
    leaves: bool = False  # it is shutting down


class Health(msgspec.Struct):
    """The state of a bus, for metrics. Counters start when it is opened."""

    connected: bool = False
    connects: int = 0
    sent: int = 0
    received: int = 0
    dropped: int = 0  # outgoing messages: not connected, or the queue was full
    overflowed: int = 0  # incoming messages: read too slowly
    lag: float = 0.0  # seconds from publishing to receipt, smoothed; between two machines their clocks may differ
    work_lag: float = 0.0  # seconds that offers of work waited, smoothed


class BusListener(Protocol):
    """The listener of a remote bus: the worker of this process. All methods are called on the event loop."""

    @property
    def worker(self) -> str: ...

    def presence(self) -> Presence: ...

    def missed(self) -> None:
        """Messages may have been lost: check everything, and call `publish_all`."""

    def inbox_changed(self, run: str) -> None:
        """Another process put an item into the inbox of a run that may be here."""

    def reader_joined(self, run: str) -> None:
        """Another process has started to read a run that may be here."""

    async def wait_for_slot(self, queue: str) -> None:
        """Waits for a free slot for a run of this queue."""

    async def offered(self, queue: str, run: str, *, again: bool) -> bool:
        """Claims a run that is due. `again`: the offer was delivered before, perhaps to another worker.

        Returns once the store has decided who owns the run; False if no slot is free here.
        """


@runtime_checkable
class ClusterBus(Bus, Protocol):
    """A bus that reaches other processes."""

    health: Health

    def attach(self, listener: BusListener) -> None: ...

    def detach(self) -> None:
        """Stops all callbacks and offers. Messages that wait to be sent still go out."""

    # committed events
    def has_readers(self, run: str) -> bool:
        """True if another process reads this run now. If not, its events need not be sent."""

    def publish_events(self, run: str, first: int, last: int, rows: bytes) -> None:
        """Publishes committed events, after the commit. Without rows: only the length of the log."""

    def follow(self, run: str, callback: Callable[[CommittedEvents], None]) -> Callable[[], None]:
        """Calls back with the messages of a run's owner in any process. Returns the function that ends it."""

    # inboxes
    def notify_owner(self, worker: str | None, run: str) -> None:
        """Notifies the owner of a run of a new item in its inbox; None: the owner is unknown."""

    # work
    def offer(self, queue: str, run: str, entry: int) -> bool:
        """Offers a due run to a worker that serves its queue and has a free slot. False: this bus cannot do that now.

        Each entry of a run (`entry` counts them) is offered once, however often this is called.
        """

    def serve(self, queues: list[str]) -> None:
        """Takes offers of these queues from now on, and of no others."""

    # presence
    def present(self) -> list[Presence]:
        """The workers of the other processes."""


class BusSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The address of the bus, and the credentials for it. Messages never contain the secrets."""

    url: Annotated[
        str | None,
        Meta(
            description="The NATS server that several servers on one store share: "
            "`nats://[USER:PASSWORD@]HOST[:PORT][/PREFIX]`, or `tls://…`; several servers of one cluster are separated "
            "by commas. Needs `interlingua[nats]`. Without a bus, processes poll the store for changes.",
            extra={"flag": "--bus", "env": "INTERLINGUA_BUS", "metavar": "URL", "secret": True},
        ),
    ] = None
    prefix: Annotated[
        str | None,
        Meta(
            description="The prefix of all subjects, for installations that share a NATS server; by default the path "
            "of the address, or `interlingua`."
        ),
    ] = None
    token: Annotated[str | None, Meta(description="The token for the NATS server.", extra={"secret": True})] = None
    credentials: Annotated[
        Path | None, Meta(description="The file of credentials (`.creds`) for the NATS server.", extra=_FILE)
    ] = None
    nkey: Annotated[
        Path | None, Meta(description="The file with the seed of an nkey for the NATS server.", extra=_FILE)
    ] = None
    ca: Annotated[
        Path | None,
        Meta(
            description="The authority of the NATS server's certificate, if the system does not know it.", extra=_FILE
        ),
    ] = None
    certificate: Annotated[
        Path | None, Meta(description="Our certificate, if the NATS server wants one.", extra=_FILE)
    ] = None
    key: Annotated[Path | None, Meta(description="The key of our certificate.", extra=_FILE)] = None
    hand_out: Annotated[
        Literal["memory", "file", "off"],
        Meta(
            description="Where JetStream keeps the runs that are offered to other workers. With `off`, no runs are "
            "offered, and workers look for due runs every `sweep_every` seconds."
        ),
    ] = "memory"
