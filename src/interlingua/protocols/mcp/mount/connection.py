"""Keeps a server reachable: starts or reaches it when needed, for any number of runs, and closes it when it is idle.

A server is a process of ours or has an address; both give the same kind of link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ....model.errors import Unavailable
from ....mounts.idle import Use
from ....mounts.links import AddressLink, Link, ProcessLink, Source
from ....mounts.settings import ORDINARY, Access
from ....security.redaction import redact_text
from ....transports.jsonrpc.connection import ConnectionLost
from ....transports.process.child_process import Child, environment, words_of
from ..config import MountSettings
from .rpc_client import Peer

log = logging.getLogger("interlingua.mcp")
_said = logging.getLogger("interlingua.mcp.server")


class ProcessSource:
    """mcp:COMMAND"""

    def __init__(self, command: str, access: Access = ORDINARY) -> None:
        self.name = redact_text(command)
        self.command = words_of(command, "mcp")
        self._access = access

    async def open(self) -> Link:
        folder, env = self._access.directory or str(Path.cwd()), {**environment(os.environ), **self._access.env}
        child = await Child.start(self.command, folder, env, clean=redact_text, log=_said)
        return ProcessLink(child)


class AddressSource:
    """mcp+http(s)://…"""

    def __init__(self, address: str, settings: MountSettings, headers: Mapping[str, str] = {}) -> None:
        self._headers = headers
        self._address = address
        self.name = redact_text(address)
        self.command: list[str] = []
        self._settings = settings

    async def open(self) -> Link:
        from .http_channel import HttpChannel

        key = self._settings.key
        headers = {**({"authorization": f"Bearer {key}"} if key else {}), **self._headers}
        return AddressLink(HttpChannel(self._address, headers), self.name)


class Host:
    """The connection to one server. It belongs to an event loop, and ends with it."""

    def __init__(self, source: Source, settings: MountSettings) -> None:
        self.source = source
        self.settings = settings
        self._peer: Peer | None = None
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._use = Use(settings.idle_timeout, self._too_idle)
        self._noise_told = False
        self.starts = 0
        self.lost: Callable[[], None] = lambda: None  # called when it is gone, unless we let it go
        self.changed: Callable[[], None] = lambda: None  # called when its agents may be others

    async def peer(self) -> Peer:
        """Returns the connection with its entries known. Opens it if there is none, and lists them again if they have
        changed."""
        async with self._opening:
            try:
                return await self._listed()
            except Unavailable:
                if self._peer is None or not self._peer.forgotten:
                    raise
            return await self._listed()  # it has ended our session, and begins another

    async def _listed(self) -> Peer:
        if self._peer is None or self._peer.rpc.lost or self._peer.forgotten:
            await self._start()
        peer = self._peer
        assert peer is not None
        if peer.changed or peer.entries is None:
            await self._asked(peer, peer.list_entries())
        return peer

    async def peer_listed_again(self) -> Peer:
        """Returns the connection, with its entries listed anew also where no change was reported."""
        if self._peer is not None:
            self._peer.changed = True
        return await self.peer()

    async def _start(self) -> None:
        if self._keeper is not None:
            await asyncio.wait([self._keeper])  # the connection before it is ended first
        link = await self.source.open()
        peer = Peer(link.channel, self.source.name)
        self._link, self._noise_told = link, False
        keeper = self._keeper = asyncio.get_running_loop().create_task(_keep(peer, link))
        try:
            await self._asked(peer, peer.open())
        except BaseException:
            keeper.cancel()
            await asyncio.wait([keeper])
            raise
        self._peer = peer
        peer.on_change = lambda: self.changed()
        keeper.add_done_callback(self._ended)
        self.starts += 1
        self._use.rest()

    async def _asked(self, peer: Peer, work: Any) -> None:
        """Does something that the server must answer soon, and raises a plain error where it did not."""
        name, within = self.source.name, self.settings.start_timeout
        try:
            async with asyncio.timeout(within):
                await work
        except ConnectionLost as error:
            starts = peer.version == "" and bool(self.source.command)
            said = f"{name} {'did not start' if starts else 'is gone'}: {await self.why()}"
            if not self.source.command:
                said = str(error) if name in str(error) else f"{name} is gone: {error}"
            raise Unavailable(said, transient=not starts) from error
        except TimeoutError as error:
            raise Unavailable(f"{name} did not answer within {within:g} s") from error

    async def why(self) -> str:
        """Returns the reason why the server is gone."""
        return await self._link.why() if self._link is not None else "it was never there"

    def notes(self) -> list[tuple[str, Any]]:
        """Returns warnings about oddities of the server; each once per connection."""
        found: list[tuple[str, Any]] = []
        if self._peer is not None and self._peer.note is not None:
            found.append((self._peer.note, None))
            self._peer.note = None
        if self._link is not None and self._link.noise[0] and not self._noise_told:
            self._noise_told = True
            count, first = self._link.noise
            lines = "1 line that is no message" if count == 1 else f"{count} lines that are no messages"
            found.append((f"the server wrote {lines} to its output", {"lines": count, "first": first}))
        return found

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled():
            self.lost()

    def using(self) -> contextlib.AbstractContextManager[None]:
        """Marks the server as busy for the time of this context."""
        return self._use.counted()

    def _too_idle(self) -> None:
        if self._keeper is not None:
            log.info("%s is let go: nobody has used it for %g s", self.source.name, self.settings.idle_timeout)
            self._peer = None  # the next caller waits for its end, and starts it again
            self._keeper.cancel()

    async def close(self) -> None:
        self._use.stop()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])


async def _keep(peer: Peer, link: Link) -> None:
    """Reads messages of the server until it is gone or no longer wanted; then always ends all parts that were started
    for it."""
    try:
        await peer.rpc.run()
    except Exception:
        log.exception("the connection to a server failed")
    finally:
        ending = asyncio.ensure_future(link.end())
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):  # it takes a few seconds at most, and must be done
                await asyncio.shield(ending)
