"""Creates the bus for an address. The bus connects when it is opened."""

from __future__ import annotations

from .. import extras
from ..runtime.clock import SYSTEM_CLOCK, Clock
from .local import LocalBus
from .port import Bus, BusSettings


def open_bus(bus: str | BusSettings | None, clock: Clock = SYSTEM_CLOCK) -> Bus:
    """Returns the bus at an address (`nats://…`, `tls://…`); without an address, the bus of this process."""
    settings = BusSettings(url=bus) if bus is None or isinstance(bus, str) else bus
    if settings.url is None:
        return LocalBus()
    extras.require("a bus on NATS", "nats-py", "nats", "nats")
    from .nats.nats_bus import NatsBus

    return NatsBus(settings, clock)
