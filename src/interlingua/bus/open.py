"""Finding the bus that an address names. Nothing is connected before the bus is opened."""

from __future__ import annotations

from .. import extras
from .local import LocalBus
from .port import Bus, BusSettings


def open_bus(bus: str | BusSettings | None) -> Bus:
    """The bus at an address (`nats://…`, `tls://…`), or the one of this process where there is none."""
    settings = BusSettings(url=bus) if bus is None or isinstance(bus, str) else bus
    if settings.url is None:
        return LocalBus()
    extras.require("a bus on NATS", "nats-py", "nats", "nats")
    from .nats.nats_bus import NatsBus

    return NatsBus(settings)
