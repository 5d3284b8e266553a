"""Finding the bus that an address names. Nothing is connected before the bus is opened."""

from __future__ import annotations

from ..model.errors import Unavailable
from .base import Bus, BusSettings
from .local import LocalBus


def open_bus(bus: str | BusSettings | None) -> Bus:
    """The bus at an address (`nats://…`, `tls://…`), or the one of this process where there is none."""
    settings = BusSettings(url=bus) if bus is None or isinstance(bus, str) else bus
    if settings.url is None:
        return LocalBus()
    try:
        from .nats import NatsBus  # only where somebody wants it: the package behind it may be missing
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "nats":
            raise
        raise Unavailable(
            "a bus on NATS needs a package that is not installed: pip install 'interlingua[nats]'", transient=False
        ) from error
    return NatsBus(settings)
