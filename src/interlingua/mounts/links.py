"""An open connection to a remote peer, a process of ours or an address, which a mount keeps and closes."""

from __future__ import annotations

from typing import Protocol

from ..transports.channel import Channel
from ..transports.process.child_process import Child


class Link(Protocol):
    @property
    def channel(self) -> Channel: ...

    @property
    def noise(self) -> tuple[int, str]:
        """The number of lines that were no messages, and the first of them."""
        ...

    async def why(self) -> str:
        """Returns the reason why it ended."""
        ...

    async def end(self) -> None: ...


class Source(Protocol):
    """Opens a link."""

    name: str  # for messages, without secrets
    command: list[str]  # none where it is an address

    async def open(self) -> Link: ...


class ProcessLink:
    def __init__(self, child: Child) -> None:
        self._child = child
        self.channel: Channel = child.channel
        self.end = child.end
        self.why = child.how_it_ended

    @property
    def noise(self) -> tuple[int, str]:
        return self._child.channel.noise, self._child.channel.first_noise


class AddressLink:
    def __init__(self, channel: Channel, name: str) -> None:
        self.channel = channel
        self.noise = (0, "")
        self._name = name

    async def why(self) -> str:
        return getattr(self.channel, "reason", "") or f"the connection to {self._name} ended"

    async def end(self) -> None:
        await self.channel.close()
