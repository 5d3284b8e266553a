"""A node: its name, its link, its peers, and its records; assembled from the modules beside it.

It lives beside an engine. With agents, they work on messages and tasks; without, it is a relay between its peers and
the programs of its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any

from .... import extras
from ....engine.engine import Engine
from ....engine.ids import new_id
from ....model.documents import Put
from ..bindings.dial import trusting
from ..bindings.listen import Incoming, Listener, listen_tcp, listen_ws
from ..bindings.relay import RelayListener, listen_relay
from ..config import WS_PORT, NodeSettings
from ..discovery import dnssd
from ..discovery.beacons import Announcement, Discovery, FoundPeer
from ..wire import frames, links
from ..wire.links import Link
from ..wire.signatures import Identity
from .agent_runs import Working
from .base import NodeBase
from .dial_loop import Calling
from .inbound import Inbound
from .outbound import Sending
from .own_card import OwnCard, Patches
from .peers import Peer, Peers
from .session import Session
from .tasks import Tasking

log = logging.getLogger("interlingua.peer")

_UPKEEP_EVERY = 3600.0


class Node(NodeBase):
    def __init__(self, engine: Engine, settings: NodeSettings | None = None) -> None:
        super().__init__(engine, settings or NodeSettings())
        if self.settings.advertise_dnssd:
            dnssd.check_installed()
        if self.settings.http2:
            extras.look_for("HTTP/2", "hypercorn", "http2", "hypercorn")
        self.token = ""
        self.http_address: str | None = None  # of the control API, once it is up
        self.started_at: float | None = None
        self.tasks_created = 0
        self.own_card = OwnCard(engine, self.settings, self.trust, self.journal, self._transports)
        self.peers = Peers(self)
        self.inbound = Inbound(self)
        self.sending = Sending(self)
        self.working = Working(self)
        self.tasking = Tasking(self)
        self.calling = Calling(self)
        self.discovery: Discovery | None = None
        self.listeners: dict[str, Listener] = {}
        self.relay: RelayListener | None = None
        self.bindings: list[str] = []  # where it is reached by something that does not listen
        self.notices: list[str] = []  # notices for the owner at the start
        self._end_listening: Callable[[], None] = lambda: None

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        settings = self.settings
        if settings.identity is not None:
            self.trust.identity = Identity.load_or_create(settings.identity)
            self.notices += self.trust.identity.warnings
        self.token = await self._kept("token", links.new_token())
        await self.own_card.load()
        await self.peers.load()
        self.running = True
        self.started_at = time.time()
        self._end_listening = self.engine.on_store_change(self._foreign_change)
        try:
            if settings.listens and ("p2p" in settings.transport_modes or settings.relay is None):
                await self._listen()
            if settings.relay is not None and "relay" in settings.transport_modes and settings.listens:
                link = self.relay_link(self.token)
                assert link is not None
                self.relay = await listen_relay(
                    link, self._came_by_relay, name=self.name, max_bytes=settings.max_msg_bytes, tls=self.tls_out,
                    takes_left=self._takes_left,
                )  # fmt: skip
            await self.working.start()
            await self.tasking.start()
        except BaseException:
            await self.stop()
            raise
        if settings.calls:
            for named in settings.join:
                self.calling.connect(named)
            for peer in self.peers:
                if peer.known.link is not None and peer.dialing is None:
                    self.calling.connect(peer.known.link)
        self.spawn(self._upkeep())

    async def discover(self) -> None:
        """Listens for others on the network, and announces this node where the owner wants that. It starts after the
        HTTP API, because beacons name its port. Nothing is sent, and no port is open, unless the owner asks for one or
        the other."""
        settings = self.settings
        announced = None
        if settings.advertise_mdns:
            ws = self.listeners["ws"].port if "ws" in self.listeners else 0
            http = int((self.http_address or ":0").rpartition(":")[2])
            announced = Announcement(self.name, ws, http, self.token)
        wanted = [settings.multicast_interface] if settings.multicast_interface else []
        self.discovery = Discovery(announced, on_found=self._found, interfaces=wanted)
        try:
            await self.discovery.start()
        except OSError as error:
            self.discovery = None
            self.notices.append(f"no discovery on the network: {error.strerror or error}")

    def _foreign_change(self) -> None:
        self.journal.foreign_change()
        self.woke()

    async def stop(self) -> None:
        self.running = False
        self._end_listening()
        if self.discovery is not None:
            await self.discovery.stop()
        if self.relay is not None:
            await self.relay.close()
        for listener in self.listeners.values():
            await listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self.peers.save()

    async def _kept(self, name: str, fresh: str) -> str:
        """Returns a value of this node that stays the same after a restart."""
        space = self.journal.facts_space
        kept = await self.engine.documents.write([Put(space, name, fresh.encode(), version=0)])
        if kept.stale is None:
            return fresh
        found = await self.engine.documents.get(space, name)
        return found.body.decode() if found is not None else fresh

    async def _upkeep(self) -> None:
        """Removes old records."""
        documents, journal, settings = self.engine.documents, self.journal, self.settings
        while True:
            before = int((time.time() - settings.keep_messages) * 1_000_000)
            for feed in journal.feeds():
                await documents.trim_feed(feed, settings.keep_events)
            for box in (journal.box_in, journal.box_door, journal.box_asked):
                await documents.forget_letters(box, before, ["done", "run"], 10_000)
            await documents.forget_letters(journal.box_out, before, ["delivered", "dropped"], 10_000)
            await documents.forget_followed(f"{journal.name}/work", before, 10_000)
            await self.files.forget(before)
            await asyncio.sleep(_UPKEEP_EVERY)

    # -- listening ----------------------------------------------------------------------------------------

    @property
    def tls_in(self) -> ssl.SSLContext | None:
        if self.settings.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.settings.tls_cert, self.settings.tls_key)
        return context

    @property
    def tls_out(self) -> ssl.SSLContext | None:
        """Returns the TLS context for connections to peers, with the authorities that are trusted beside those of the
        system."""
        return trusting(self.settings.tls_ca)

    async def _listen(self) -> None:
        settings = self.settings
        port = WS_PORT if settings.port is None else settings.port
        try:
            self.listeners["ws"] = await self._listen_ws(port)
        except OSError as error:
            if settings.port is not None or error.errno != errno.EADDRINUSE:
                raise
            self.listeners["ws"] = listener = await self._listen_ws(0)
            self.notices.append(f"port {port} is taken; peers connect on port {listener.port} instead")
        if settings.tcp_port is not None:
            self.listeners["tcp"] = await listen_tcp(
                settings.host, settings.tcp_port, self._came, check_token=self._is_token,
                max_bytes=settings.max_msg_bytes, tls=self.tls_in,
            )  # fmt: skip

    async def _listen_ws(self, port: int) -> Listener:
        return await listen_ws(
            self.settings.host, port, self._came, check_token=self._is_token, max_bytes=self.settings.max_msg_bytes,
            tls=self.tls_in,
        )  # fmt: skip

    def _is_token(self, token: str) -> bool:
        return links.same_token(token, self.token)

    async def _came(self, channel: Any, incoming: Incoming) -> None:
        binding = {"ws": "host", "tcp": "tcp"}.get(incoming.binding, incoming.binding)
        await self.serve(Session(self, channel, binding=binding, inbound=True, remote=incoming.remote))

    async def _came_by_relay(self, channel: Any, incoming: Incoming) -> None:
        await self.serve(Session(self, channel, binding="relay", inbound=True, remote="the relay"))

    async def _takes_left(self, name: str, message_id: str) -> bool:
        """Tells if a message that was left at the relay is taken. A message that was taken before is read again only so
        that its sender is known for the answer: it is dropped as known."""
        for peer in self.peers.named(name):
            if await self.inbound.has(peer, message_id):
                return self.peers.same(name) is peer
        return True

    async def serve(self, session: Session) -> None:
        """Serves a connection until it ends."""
        try:
            await session.run()
        except ConnectionError as error:
            log.info("the connection with %s ended: %s", session.who, error)
        except Exception:  # the peer dials again
            log.exception("the connection with %s ended by an error", session.who)

    @property
    def link(self) -> str | None:
        """Returns the link at which peers reach this node; None where they cannot."""
        listener = self.listeners.get("ws")
        if listener is None:
            return None
        host = self.settings.public_host or listener.host
        if host in ("0.0.0.0", "::", ""):  # noqa: S104 - where it listens is the owner's choice
            host = _own_address()
        return str(links.direct(host, listener.port, self.token, secure=self.settings.tls_cert is not None))

    @property
    def tcp_link(self) -> str | None:
        listener = self.listeners.get("tcp")
        if listener is None:
            return None
        host = self.settings.public_host or listener.host
        return str(Link("tcp", host, listener.port, self.token, False))

    def relay_link(self, token: str) -> Link | None:
        """Returns the link of a token at the owner's relay."""
        if self.settings.relay is None:
            return None
        base = self.settings.relay.rstrip("/").removesuffix("/acp")
        return links.parse(f"{base}/acp/{token}")

    # -- the card -----------------------------------------------------------------------------------------

    def _transports(self) -> list[str]:
        found = self.bindings or ["http", *(name for name in ("ws", "tcp") if name in self.listeners)]
        return [*found, "h2c"] if self.settings.http2 else found

    async def patch(self, patches: Patches) -> None:
        """Changes the card permanently, and sends it to the connected peers."""
        await self.own_card.change(patches)
        for peer in self.peers.connected:
            if peer.session is not None:
                peer.session.send(frames.agent_card(self.own_card.view()))

    # -- news ---------------------------------------------------------------------------------------------

    async def undeliverable(self, peer: Peer, frame: dict[str, Any], code: str, why: str) -> None:
        """Reports a frame that can never be sent to a peer."""
        id_ = str(frame.get("message_id"))
        log.warning("%s cannot be sent to %s: %s", id_, peer.id, why)
        self.told_of_peer(peer, "error", code=code, error=why, message_id=id_)
        self.sending.refused(peer, id_, why)
        if frame.get("type") == "task.delegate":
            task = await self.journal.task("", frame["task_id"])
            if task is not None:
                await self.inbound.apply(task, "failed", None, f"it could not be delegated: {why}", {})

    def got_card(self, peer: Peer) -> None:
        if self.running:
            self.told_of_peer(peer, "card", verified=bool((peer.known.verification or {}).get("valid")))

    def _found(self, found: FoundPeer) -> None:
        body = {"event": "discovered", "name": found.name, "link": found.link, "ip": found.ip}
        self.keep_beside([self.journal.event("mdns", body)])

    # -- for the modules beside ---------------------------------------------------------------------------

    async def thread_of(self, whose: str, context: str | None) -> str | None:
        """Returns the thread of a context. Two senders with the same context id do not share it."""
        if context is None:
            return None
        named = f"{self.journal.name.removeprefix('peer:')}|{whose}|{context}"
        return await self.engine.links.add("peer.context", named, new_id())


def _own_address() -> str:
    """Returns the address by which this machine is most likely reached. Nothing is sent."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
