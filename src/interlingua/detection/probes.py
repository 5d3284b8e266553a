"""Collects the probes of the installed protocols."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocols.base import Protocol
from ..protocols.installed import protocols
from ..protocols.probing import Probes, Spoken


def probes() -> Iterator[tuple[Protocol, Probes]]:
    """Yields the protocols that can be recognised, the preferred one first."""
    for protocol in protocols():
        own: Probes | None = protocol.load("probes")
        if own is not None:
            yield protocol, own


def is_installed(spoken: Spoken) -> bool:
    return any(protocol.name == spoken.protocol for protocol in protocols())


def with_title(spoken: Spoken) -> Spoken:
    """Gives an installed protocol its title, with the few words that tell it from others of the name."""
    if not spoken.title:
        spoken.title = next(f"{one.title} ({one.about})" for one in protocols() if one.name == spoken.protocol)
    return spoken
