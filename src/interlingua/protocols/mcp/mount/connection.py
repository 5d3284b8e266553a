"""Keeps a server reachable, and its lists up to date."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import msgspec

from ....model.errors import InvalidRequest
from ....mounts.connection import AddressSource, Keeper, Link, ProcessSource, Source
from ....mounts.settings import ORDINARY, Access
from ....transports.channel import Channel
from .rpc_client import Peer

_said = logging.getLogger("interlingua.mcp.server")

_PREFIX = "INTERLINGUA_MCP_"


class MountSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of a mount. Each can be given in the environment, as INTERLINGUA_MCP_ and its name in capitals."""

    key: str | None = None
    """A bearer token for servers at an address."""
    start_timeout: float = 60.0
    """Seconds for a server to start and to agree on a revision. Package runners download first."""
    idle_timeout: float = 300.0
    """Seconds without a run after which the connection to a server is closed."""
    answer_within: float = 3600.0
    """Seconds to wait for the answer to a server's question; then it is declined."""
    patience: float = 60.0
    """Seconds for which a server that a run can be found at again is tried before the run fails as transient."""

    @classmethod
    def from_environment(cls, access: Access = ORDINARY) -> MountSettings:
        names = {name: _PREFIX + name.upper() for name in cls.__struct_fields__}
        given = {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}
        try:
            return msgspec.convert({**given, **access.given(cls)}, cls, strict=False)
        except msgspec.ValidationError as error:
            said = f"a setting of the mount, or a variable {_PREFIX}…, is wrong: {error}"
            raise InvalidRequest(said, path="/settings") from None


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
