"""Keeps up the connections that this node opens: dials, falls back to a relay, tries again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from ....model.errors import InvalidRequest
from ....transports.channel import Channel
from ..bindings.dial import Backoff, dial
from ..bindings.http import Memory, dial_http
from ..bindings.relay import dial_relay
from ..wire import links
from ..wire.links import DIRECT, HTTP, RELAYED, Link
from .peers import Peer
from .session import Session

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("interlingua.peer")

_NAMES = {"A": "p2p_direct", "C": "relay", "D": "http", "E": "tcp"}
_DIAL_WITHIN = 5.0


class Calling:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.reconnects = 0

    def connect(self, text: object, name: str | None = None) -> tuple[Peer, bool]:
        """Returns the peer of a link, which is dialled from now on; and if it was known before."""
        if not isinstance(text, str):
            raise InvalidRequest("/link is a link such as acp://HOST:7801/TOKEN", path="/link")
        link = links.parse(text)
        if self._node.link is not None and links.same_token(link.token, self._node.token) and link.token:
            raise InvalidRequest("this is the link of this very node", path="/link")
        written = str(link)
        peer = self._node.peers.find(lambda one: one.known.link == written)
        known = peer is not None
        if peer is None:
            peer = self._node.peers.new(name or link.address, written)
        if peer.dialing is None or peer.dialing.done():
            peer.dialing = self._node.spawn(self._keep_up(peer, link))
        return peer, known

    async def hang_up(self, peer: Peer) -> None:
        if peer.dialing is not None:
            peer.dialing.cancel()
            peer.dialing = None
        if peer.session is not None:
            await peer.session.channel.close()

    async def _keep_up(self, peer: Peer, link: Link) -> None:
        node, settings = self._node, self._node.settings
        backoff = Backoff(settings.reconnect_first, settings.reconnect_last)
        again = False
        while True:
            began = time.monotonic()
            try:
                channel, binding = await self._reach(peer, link)
            except ConnectionError as error:
                peer.dial_error = str(error)
                log.info("%s: %s", peer.id, error)
            except Exception as error:  # whatever it is, it must not be the last try
                peer.dial_error = f"{link.shown} cannot be reached: {type(error).__name__}"
                log.error("%s could not be dialled: %s", peer.id, type(error).__name__)  # it may have the token in it
            else:
                self.reconnects += again
                again = True
                session = Session(node, channel, binding=binding, inbound=False, peer=peer, remote=link.address)
                await node.serve(session)
                peer.dial_error = session.refused or "the connection ended"
                if session.refused is not None:
                    log.warning("%s refused us: %s", link.shown, session.refused)
                backoff.lasted(time.monotonic() - began if session.refused is None else 0.0)
            await asyncio.sleep(backoff.next())

    async def _reach(self, peer: Peer, link: Link) -> tuple[Channel, str]:
        """Opens a channel to the peer, directly or by the relay."""
        node, settings = self._node, self._node.settings
        if link.scheme in RELAYED:
            return await self._by_relay(link), _NAMES["C"]
        if link.scheme in HTTP:
            made = await dial_http(
                link, name=node.name, max_bytes=settings.max_msg_bytes, tls=node.tls_out, memory=_Remembered(peer)
            )
            return made, _NAMES["D"]
        way_round = node.relay_link(link.token) if link.scheme in DIRECT else None
        if way_round is not None and "p2p" not in settings.transport_modes:
            return await self._by_relay(way_round), _NAMES["C"]
        try:
            channel = await dial(link, max_bytes=settings.max_msg_bytes, timeout=_DIAL_WITHIN, tls=node.tls_out)
        except ConnectionError as error:
            if way_round is None or "relay" not in settings.transport_modes:
                raise
            reached = await self._by_relay(way_round)
            node.told_of_peer(peer, "relay_fallback", reason=str(error))
            return reached, _NAMES["C"]
        return channel, _NAMES[link.binding]

    async def _by_relay(self, link: Link) -> Channel:
        node = self._node
        return await dial_relay(
            link, name=node.name, max_bytes=node.settings.max_msg_bytes, timeout=2 * _DIAL_WITHIN, tls=node.tls_out
        )


class _Remembered(Memory):
    """The state of a peer that is reached by HTTP, kept so that its replies arrive after any outage."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.place = peer.known.place

    def reached(self, place: str) -> None:
        self._peer.known.place = place
        self._peer.node.peers.changed(self._peer)

    async def sent(self, message_id: str) -> bool:
        journal = self._peer.node.journal
        letter = await journal.letter(journal.box_out, message_id)
        return letter is not None and letter.topic == self._peer.id
