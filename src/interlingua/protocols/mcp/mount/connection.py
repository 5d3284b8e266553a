"""Keeps a server reachable, and its lists up to date."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ....model.errors import InvalidRequest
from ....mounts.connection import AddressSource, Keeper, Link, ProcessSource, Source
from ....mounts.settings import ORDINARY, Access
from ....transports.channel import Channel
from ..config import MountSettings
from .rpc_client import Peer

_said = logging.getLogger("interlingua.mcp.server")


class McpAddress(AddressSource):
    """mcp+http(s)://…"""

    async def connect(self) -> Channel:
        from .http_channel import HttpChannel

        return HttpChannel(self.address, self.headers)


def source_of(kind: str, rest: str, settings: MountSettings, access: Access = ORDINARY) -> Source:
    """Returns the source of a target. Raises InvalidRequest where it is none."""
    if kind == "mcp":
        return ProcessSource(rest, "mcp", directory=access.directory, env=access.env, log=_said)
    address = rest.removeprefix("mcp+")
    if not address.partition("://")[2].strip("/"):
        raise InvalidRequest(f"{rest!r} is not the address of a server; write mcp+http://HOST/PATH[#AGENT]")
    return McpAddress(address, key=settings.key, headers=access.headers)


class McpKeeper(Keeper[Peer]):
    def __init__(self, source: Source, settings: MountSettings) -> None:
        super().__init__(source, start_timeout=settings.start_timeout, idle_timeout=settings.idle_timeout)
        self.settings = settings

    def client(self, link: Link) -> Peer:
        peer = Peer(link.channel, self.source.name)
        peer.on_change = lambda: self.changed()
        return peer

    async def agree(self, client: Peer) -> None:
        async with asyncio.timeout(self.start_timeout):
            await client.open()

    async def bring_up_to_date(self, client: Peer) -> None:
        """Lists what there is to run, if that is not known or has changed."""
        if client.changed or client.entries is None:
            await self.answered_soon(client.list_entries())

    def notes(self) -> list[tuple[str, Any]]:
        notes = super().notes()
        if self.current is not None and self.current.note is not None:
            notes.append((self.current.note, None))
            self.current.note = None
        return notes
