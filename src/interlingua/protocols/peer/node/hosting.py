"""A node with all its listeners: its peers' ports, the control API, discovery. From start to graceful end.

The HTTP server is given from outside. One process at a time owns the records of a node; others that share its store
leave them alone, because two that number and dial the same peers would conflict.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable

import msgspec

from ....model.documents import Drop, Put
from ....model.errors import Conflict, InvalidRequest, Unavailable
from ....security.addresses import is_loopback
from ..config import HTTP_PORT
from ..discovery.beacons import Announcement
from ..discovery.dnssd import Dnssd
from ..door.control_api import ControlApp, control_app
from .node import Node
from .node_store import Journal

log = logging.getLogger("interlingua.peer")

Serve = Callable[..., Awaitable[str]]
"""(ASGI app, host, ports to try, option=, http2=, tls=) → the address where the app is answered."""

_HOLDER = "held-by"
_PORTS = "listens-at"
_SERVER = "server"
_SLOTS = 100


class PortTaken(InvalidRequest):
    """Raised where a requested port is taken."""

    code = "cannot_listen"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NodeTaken(Conflict):
    """Raised where another process runs this node already."""

    code = "node_taken"
    hint = "give this one a name of its own with --name, or a store of its own with --store"


class Hosting:
    """Starts and stops a node, with its ports or without."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.control: str | None = None  # the address of the control API
        self.http_token: str | None = None  # the token that it requires from callers
        self._app: ControlApp | None = None
        self._dnssd: Dnssd | None = None
        self._held: str | None = None  # the space in which this process is noted as the holder
        self._started = False

    async def hold(self) -> None:
        """Takes the records of the node. Raises NodeTaken where another process has them."""
        if not await self._hold(self.node.journal):
            raise NodeTaken(f"a node called {self.node.name!r} is up already, on the same store")

    async def holder(self) -> tuple[str, bool] | None:
        """Returns the worker that has the records of the node, and if that is a server to which others can pass
        requests; None where it is gone, or never existed."""
        engine = self.node.engine
        found = await engine.documents.get(self.node.journal.facts_space, _HOLDER)
        if found is None or not await engine.cluster.has_worker(found.body.decode()):
            return None
        return found.body.decode(), found.state == _SERVER

    async def hold_as_server(self) -> bool:
        """Takes the records of the node. Returns False where another process has them."""
        return await self._hold(self.node.journal, _SERVER)

    async def hold_any(self, kind: str = "") -> bool:
        """Takes the records of the node, or else the next free ones: a second process has its own. Returns True for the
        first ones."""
        base = f"{self.node.journal.name}{kind}"
        for slot in range(1, _SLOTS):
            journal = Journal(self.node.engine.documents, base if slot == 1 else f"{base}~{slot}")
            if await self._hold(journal):
                self.node.journal = journal
                return slot == 1
        raise NodeTaken(f"there are {_SLOTS} processes with the node {self.node.name!r} on this store")

    async def _hold(self, journal: Journal, state: str = "") -> bool:
        engine, space = self.node.engine, journal.facts_space
        for _ in range(3):  # another process may be about to take it, or to leave it
            found = await engine.documents.get(space, _HOLDER)
            if found is not None and await engine.cluster.has_worker(found.body.decode()):
                return False
            version = 0 if found is None else found.version
            mine = Put(space, _HOLDER, engine.cluster.worker_id.encode(), state, version=version)
            if (await engine.documents.write([mine])).stale is None:
                self._held = space
                return True
        return False

    async def start(self, serve: Serve | None) -> None:
        """Starts the node. Without `serve`, it opens no port. Raises the errors that the owner must fix."""
        node = self.node
        if serve is None:
            node.settings = msgspec.structs.replace(node.settings, listens=False, calls=False)
        self._started = True
        log.debug("the node %s keeps its records as %s", node.name, node.journal.name)
        try:
            await self._start_node()
            await self._tell_ports()
            if serve is not None:
                await self._control(serve)
                await self._discover()
        except BaseException:
            await self.stop()
            raise

    async def _start_node(self) -> None:
        node, settings = self.node, self.node.settings
        try:
            await node.start()
        except ssl.SSLError as error:
            raise InvalidRequest(f"the certificate {settings.tls_cert} and its key cannot be used: {error}") from error
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise InvalidRequest(f"the node cannot start: {error}") from error
            option, port = ("--tcp-port", settings.tcp_port) if "ws" in node.listeners else ("--port", settings.port)
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
            raise PortTaken(f"port {port} of {settings.host} {why}", hint=f"choose another one with {option}") from None

    async def _tell_ports(self) -> None:
        """Records the ports, for replicas on other machines, which lead peers here."""
        ports = {name: listener.port for name, listener in self.node.listeners.items()}
        if ports and self._held is not None:
            await self.node.engine.documents.write([Put(self._held, _PORTS, msgspec.json.encode(ports))])

    async def listening(self, kind: str) -> int | None:
        """Returns the port on which the process with the node listens for peers."""
        found = await self.node.engine.documents.get(self.node.journal.facts_space, _PORTS)
        return msgspec.json.decode(found.body, type=dict[str, int]).get(kind) if found is not None else None

    async def _control(self, serve: Serve) -> None:
        node, settings = self.node, self.node.settings
        self.http_token = settings.http_token
        abroad = not is_loopback(settings.http_host)
        if self.http_token is None and abroad:
            self.http_token = await self._kept_token()
        self._app = control_app(node, self.http_token)
        ports = [settings.http_port]
        if settings.http_port is None:
            # The reference counts 100 up from --port: the second node of a machine is looked for there.
            ports = [HTTP_PORT, *([settings.port + 100] if settings.port and settings.port < 65_436 else []), 0]
        # On this machine no one can listen in between.
        tls = (settings.tls_cert, settings.tls_key) if abroad and settings.tls_cert is not None else None
        address = await serve(
            self._app, settings.http_host, ports, option="--http-port", http2=settings.http2, tls=tls
        )  # fmt: skip
        self.control = address
        node.http_address = address.partition("://")[2]
        port = int(address.rpartition(":")[2])
        if settings.http_port is None and port != HTTP_PORT:
            node.notices.append(f"port {HTTP_PORT} is taken; the control API is on port {port} instead")
        if node.files.base is None:
            node.files.offer_at(address)

    async def _kept_token(self) -> str:
        """Returns a token for the control API that stays the same after a restart."""
        documents, space, fresh = self.node.engine.documents, self.node.journal.facts_space, secrets.token_urlsafe(24)
        if (await documents.write([Put(space, "http-token", fresh.encode(), version=0)])).stale is None:
            return fresh
        found = await documents.get(space, "http-token")
        return found.body.decode() if found is not None else fresh

    async def _discover(self) -> None:
        """Starts discovery, only where the owner wants it: by default a node opens no port to the network."""
        node, settings = self.node, self.node.settings
        if settings.advertise_mdns:
            await node.discover()
        if settings.advertise_dnssd and "ws" in node.listeners:
            http = int((node.http_address or ":0").rpartition(":")[2])
            told = Announcement(node.name, node.listeners["ws"].port, http, node.token)
            interfaces = [settings.multicast_interface] if settings.multicast_interface else None
            self._dnssd = Dnssd(told, interfaces=interfaces)
            try:
                await self._dnssd.start()
            except OSError as error:
                self._dnssd = None
                node.notices.append(f"no DNS-SD on the network: {error.strerror or error}")
        if (settings.advertise_mdns or settings.advertise_dnssd) and is_loopback(settings.host):
            node.notices.append("others are told of this node, and cannot reach it: it listens on this machine alone")

    def lines(self) -> list[str]:
        """Returns the lines for the owner: how others connect, the address of the control API, and the notices."""
        node = self.node
        found = [f"peers connect to {node.name} with {node.link}"] if node.link is not None else []
        if node.tcp_link is not None:
            found.append(f"or, on the LAN, with {node.tcp_link}")
        if node.relay is not None:
            found.append(f"or, by the relay, with {node.relay_link(node.token)}")
        if self.control is not None:
            found.append(f"control API at {self.control}")
        if self.http_token is not None and node.settings.http_token is None:
            found.append(f"the control API wants the header Authorization: Bearer {self.http_token}")
        return [*found, *(f"note: {notice}" for notice in node.notices)]

    async def close(self) -> None:
        """Stops answering: all streams end."""
        if self._app is not None:
            await self._app.close()

    async def stop(self) -> None:
        if not self._started:
            return
        self._started = False
        await self.close()
        if self._dnssd is not None:
            with contextlib.suppress(OSError, Unavailable):
                await self._dnssd.stop()
        await self.node.stop()
        await self.release()

    async def release(self) -> None:
        """Releases the records for other processes."""
        held, self._held = self._held, None
        if held is not None:
            documents = self.node.engine.documents
            found = await documents.get(held, _HOLDER)
            if found is not None and found.body.decode() == self.node.engine.cluster.worker_id:
                await documents.write([Drop(held, _HOLDER)])
