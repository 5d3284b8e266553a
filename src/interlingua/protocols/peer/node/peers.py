"""The peers that a node knows, and the letters that wait for each of them.

A peer is recognized by a proof: by the link that we dial, by the token that we gave it to come back with, or by its
verified key. A name proves nothing, and is used only where a peer offers nothing better. Letters for a peer stay on the
shelf until it has them, and go out by priority, and in order within one priority.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from ....model.documents import Change, Drop, Post, Put, Settle, WriteResult
from ....model.errors import NotFound, TooLarge
from ....transports.channel import Channel
from ..wire.card import MAX_MSG_BYTES, has, largest
from ..wire.frames import now_z
from .base import NodeBase

log = logging.getLogger("interlingua.peer")

RANKS = {"critical": 3, "high": 2, "normal": 1, "low": 0}
QUEUED, DELIVERED, DROPPED = "queued", "delivered", "dropped"
_PAGE = 256
_LAST = "last-peer"  # where the number of the newest peer is kept
_SETTLE_AFTER = 0.02  # seconds: delivered letters are recorded with the next transaction, or after this time
_MOST_BEHIND = 256 * 1024  # bytes of output that wait for the pump


class Known(msgspec.Struct, omit_defaults=True):
    """The stored facts of a peer."""

    id: str
    name: str
    link: str | None = None  # the one that we dial
    did: str | None = None  # shown by something that was signed just then
    resume: str | None = None  # the hash of the token that it comes back with
    resumed: bool = False  # it has come back with that
    comes_back_with: str | None = None  # the peer's token for coming back to it
    card: dict[str, Any] | None = None
    verification: dict[str, Any] | None = None
    place: str | None = None  # how far its stream was read, where it is reached by HTTP
    expected: bool = False  # no peer yet: stands for the first that comes, with the letters for that one
    renamed: bool = False  # by our owner: its card does not change that
    connected_at: str | None = None
    disconnected_at: str | None = None
    sent: int = 0
    received: int = 0
    delivered: int = 0
    read: int = 0


class PeerSession(Protocol):
    """The connection of a peer, as far as others use it."""

    channel: Channel
    replaced: bool

    @property
    def congested(self) -> bool: ...

    def acks(self, frame: dict[str, Any]) -> bool: ...

    def send(self, frame: dict[str, Any]) -> None: ...

    def send_data(self, data: bytes) -> None: ...

    def send_letter(self, frame: dict[str, Any], number: int, data: bytes | None = None) -> None: ...

    def send_numbered(self, data: bytes, number: int) -> None: ...

    def send_confirmations(self) -> None: ...

    def when_written(self, then: Callable[[], None]) -> None: ...

    def stop_pumping(self) -> None: ...

    async def drain(self) -> None: ...

    async def ping(self, timeout: float) -> float: ...


class Peer:
    """A peer, as long as this process runs."""

    def __init__(self, node: NodeBase, known: Known) -> None:
        self.node = node
        self.known = known
        self.session: PeerSession | None = None
        self.binding: str | None = None  # how it is connected
        self.missing: list[str] = []  # extensions that it requires and we do not have
        self.typing: str | None = None  # since when
        self.ping_ms: float | None = None
        self.ping_at: str | None = None
        self.pings = 0
        self.dialing: asyncio.Task[None] | None = None
        self.dial_error: str | None = None
        self.outbox = Outbox(self)
        self._able: tuple[dict[str, Any] | None, dict[str, bool]] = (None, {})  # cached abilities of a card
        self._limit: tuple[dict[str, Any] | None, int] = (None, MAX_MSG_BYTES)  # the same for how much it takes

    @property
    def id(self) -> str:
        return self.known.id

    @property
    def name(self) -> str:
        return self.known.name

    @property
    def scope(self) -> str:
        return f"peer:{self.known.id}"

    @property
    def connected(self) -> bool:
        return self.session is not None

    def able(self, flag: str) -> bool:
        """Tells if the peer's card declares an ability."""
        card, known = self._able
        if card is not self.known.card:
            card, known = self._able = (self.known.card, {})
        found = known.get(flag)
        if found is None:
            found = known[flag] = has(card, flag)
        return found

    @property
    def limit(self) -> int:
        """The bytes of the longest frame that the peer takes."""
        card, limit = self._limit
        if card is not self.known.card:
            card, limit = self._limit = (self.known.card, largest(self.known.card))
        return limit

    def takes(self, size: int) -> bool:
        """Tells if a frame of so many bytes can be sent to the peer, with its additions on the way."""
        return size + self.node.trust.room <= self.limit

    def check_size(self, size: int) -> None:
        """Raises TooLarge for a frame that the peer would not take. The limit of a peer without a card is not known."""
        if self.known.card is not None and not self.takes(size):
            raise TooLarge(f"{self.name} takes at most {self.limit} bytes, and this is larger", path="/parts")

    @property
    def unused(self) -> bool:
        """Tells if the peer can be forgotten without a loss."""
        known = self.known
        counted = known.sent or known.received or self.outbox.waiting
        return not (counted or known.link or known.did or known.resumed or known.renamed or self.connected)

    @property
    def ours(self) -> bool:
        """Tells if the peer works on delegated tasks, and reports their progress."""
        return self.able("task_delegation")

    def view(self) -> dict[str, Any]:
        known = self.known
        return {
            "id": known.id,
            "peer_id": known.id,
            "name": known.name,
            "link": known.link,
            "connected": self.connected,
            "ws_ready": self.connected,
            "connecting": self.dialing is not None and not self.connected,
            "connection_type": self.binding,
            "connected_at": known.connected_at,
            "disconnected_at": None if self.connected else known.disconnected_at,
            "messages_sent": known.sent,
            "messages_received": known.received,
            "messages_delivered": known.delivered,
            "messages_read": known.read,
            "queued": self.outbox.waiting,
            "typing": self.typing is not None,
            "typing_since": self.typing,
            "last_ping_rtt_ms": self.ping_ms,
            "last_ping_at": self.ping_at,
            "ping_count": self.pings,
            "error": self.dial_error,
            "agent_card": known.card,
        }


class Outbox:
    """The letters to one peer. Lives as long as the peer; sends while it is connected."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.live = False  # everything older is sent: new letters go straight out
        self.waiting = 0  # on the shelf, as far as is known
        self._news = asyncio.Event()
        self._flying: dict[int, str] = {}  # sent in this session and not confirmed: number → message id
        self._by_id: dict[str, int] = {}
        self._posted: list[tuple[int, Post]] = []  # messages that were just written down
        self._settled: list[int] = []
        self._behind: list[bytes] = []  # output that follows the letters on the shelf
        self._unwritten: set[int] = set()  # they have arrived, and the shelf does not know it yet
        self._settling: asyncio.Task[None] | None = None

    # -- posting ------------------------------------------------------------------------------------------

    def heed(self, changes: Sequence[Change], kept: WriteResult) -> None:
        """Sends a message that was kept (the first change), with all that were kept together with it, before the
        callers that wait for that go on."""
        self._peer.node.journal.heed(changes, kept)
        number, post = kept.numbers[0] if kept.stale is None else None, changes[0]
        if number is not None and type(post) is Post:
            if not self._posted:
                asyncio.get_running_loop().call_soon(self._go_out)
            self._posted.append((number, post))

    def _go_out(self) -> None:
        posted, self._posted = self._posted, []
        peer, flying, by_id = self._peer, self._flying, self._by_id
        self.waiting += len(posted)
        peer.node.peers.changed(peer)
        session, most, signs = peer.session, peer.node.settings.in_flight, peer.node.trust.signs
        acks = peer.able("delivery_ack")
        for number, post in posted:
            if not self.live or session is None or len(flying) >= most:
                self.live = False  # the others wait on the shelf
                self._news.set()
                return
            if signs or not acks:
                self._send(session, number, msgspec.json.decode(post.body), post.body)
            else:
                session.send_numbered(post.body, number)
                peer.known.sent += 1
                flying[number] = post.key
                by_id[post.key] = number
            if session.congested:
                self.live = False  # later letters wait on the shelf, and not in memory
                self._news.set()

    def posted(self, number: int, frame: dict[str, Any], data: bytes | None = None) -> None:
        """Sends a letter that was recorded (as `data`), now or when its turn comes."""
        self.waiting += 1
        session = self._peer.session
        if self.live and session is not None and len(self._flying) < self._peer.node.settings.in_flight:
            self._send(session, number, frame, data)
            if session.congested:
                self.live = False  # later letters wait on the shelf, and not in memory
                self._news.set()
        else:
            self.live = False
            self._behind.clear()  # it would come after this, and is part of it in the end
            self._news.set()

    def send_along(self, frame: dict[str, Any]) -> None:
        """Sends a piece of output, which is no letter: now, or after the letters that the pump sends right now. A piece
        that is left out comes later with the whole."""
        session = self._peer.session
        if session is None or session.congested:
            return
        if self.live:
            session.send(frame)
        elif sum(map(len, self._behind)) + len(data := msgspec.json.encode(frame)) <= _MOST_BEHIND:
            self._behind.append(data)

    def _catch_up(self, session: PeerSession) -> None:
        behind, self._behind = self._behind, []
        for data in behind:
            session.send_data(data)

    def _send(self, session: PeerSession, number: int, frame: dict[str, Any], data: bytes | None = None) -> None:
        id_ = frame.get("message_id")
        session.send_letter(frame, number, data)
        self._peer.known.sent += 1
        if isinstance(id_, str) and session.acks(frame):
            self._flying[number] = id_
            self._by_id[id_] = number
        else:
            self._flying[number] = ""
            session.when_written(lambda: self._gone(number))

    def confirmed(self, message_id: str) -> None:
        """Takes a peer's confirmation of a letter."""
        number = self._by_id.pop(message_id, None)
        if number is not None:
            self._peer.known.delivered += 1
            self._gone(number)

    def _gone(self, number: int) -> None:
        if self._flying.pop(number, None) is None:
            return
        if self.waiting:
            self.waiting -= 1
        self._settled.append(number)
        self._unwritten.add(number)
        self._news.set()
        if self._settling is None:
            self._settling = self._peer.node.spawn(self._settle())

    async def _settle(self) -> None:
        """Records many delivered letters at once. It may be late: after a crash a peer recognizes repeated letters."""
        try:
            while self._settled:
                await asyncio.sleep(_SETTLE_AFTER)
                for change in self.settle():
                    await self._peer.node.journal.keep([change])
                    self._unwritten.difference_update(change.numbers)
        finally:
            self._settling = None

    def settle_along(self) -> None:
        """Records delivered letters in the next transaction: one of their own would cost as much as that of a message,
        and delay it."""
        if not self._settled:
            return
        for change in self.settle():

            def written(kept: asyncio.Future[WriteResult], numbers: list[int] = change.numbers) -> None:
                if not kept.cancelled() and kept.exception() is None:
                    self._unwritten.difference_update(numbers)

            self._peer.node.journal.keep([change]).add_done_callback(written)

    def settle(self) -> list[Settle]:
        """Returns the changes that record delivered letters now."""
        numbers, self._settled = self._settled, []
        return [Settle(self._peer.node.journal.box_out, numbers, DELIVERED)] if numbers else []

    # -- sending the letters on the shelf -----------------------------------------------------------------

    async def pump(self, session: PeerSession) -> None:
        """Sends the letters on the shelf while the peer is connected, oldest of the highest priority first."""
        self.live = False
        self._flying.clear()
        self._by_id.clear()
        self._behind.clear()
        full = self._peer.node.settings.in_flight
        try:
            while True:
                self._news.clear()
                if not self.live and len(self._flying) < full and not await self._send_some(session):
                    # A letter that was posted while the shelf was read set the news: then it is read again.
                    self.live = not self._news.is_set()
                    if not self.live:
                        continue
                    self._catch_up(session)
                elif not self.live and len(self._flying) < full:
                    continue
                await self._news.wait()
        finally:
            self.live = False

    async def _send_some(self, session: PeerSession) -> bool:
        """Sends a page of letters. Returns False where there were none."""
        node = self._peer.node
        before = self._flying.keys() | self._unwritten  # letters that arrive while the shelf is read are still on it
        letters = await node.engine.documents.letters(
            node.journal.box_out,
            states=[QUEUED],
            topic=self._peer.id,
            limit=_PAGE + len(self._flying) + len(self._unwritten),
            ranked=True,
        )
        fresh = [letter for letter in letters if letter.number not in before and letter.number not in self._flying]
        fresh = fresh[:_PAGE]
        for letter in fresh:
            await session.drain()
            if letter.number not in self._flying:
                frame = msgspec.json.decode(letter.body)
                if not self._peer.takes(len(letter.body)):
                    await self._drop(letter.number, frame)
                    continue
                self._send(session, letter.number, {**frame, "_was_queued": True})
        return bool(fresh)

    async def _drop(self, number: int, frame: dict[str, Any]) -> None:
        """Drops a letter that is too large for the peer. It was written before the peer's limit was known, and must not
        stop the rest."""
        peer = self._peer
        why = f"it is larger than the {peer.limit} bytes that {peer.name} takes"
        await peer.node.journal.keep([Settle(peer.node.journal.box_out, [number], DROPPED)])
        self.waiting = max(0, self.waiting - 1)
        await peer.node.undeliverable(peer, frame, "message_too_large", why)

    def in_flight(self, number: int) -> bool:
        return number in self._flying

    def holds(self, number: int) -> bool:
        """Tells if a letter that has not arrived waits here: on the shelf, or in a connection that the peer does not
        read."""
        session = self._peer.session
        return number not in self._unwritten and (number not in self._flying or session is None or session.congested)


class Peers:
    """All peers, by id."""

    def __init__(self, node: NodeBase) -> None:
        self._node = node
        self._peers: dict[str, Peer] = {}
        self._last = 0
        self._dirty: set[str] = set()

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def __len__(self) -> int:
        return len(self._peers)

    async def load(self) -> None:
        last = await self._node.engine.documents.get(self._node.journal.facts_space, _LAST)
        self._last = 0 if last is None else int(last.body)
        for document in await self._node.engine.documents.search(self._node.journal.peers_space, limit=100_000):
            known = msgspec.json.decode(document.body, type=Known)
            peer = self._peers[known.id] = Peer(self._node, known)
            peer.outbox.waiting = await self._node.engine.documents.count_letters(
                self._node.journal.box_out, states=[QUEUED], topic=known.id
            )
            self._last = max(self._last, int(known.id.removeprefix("peer_") or 0))

    @property
    def connected(self) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.session is not None]

    def get(self, id_: str) -> Peer:
        peer = self._peers.get(id_)
        if peer is None:
            raise NotFound(f"there is no peer {id_}; GET /peers lists them")
        return peer

    def with_id(self, id_: str | None) -> Peer | None:
        return None if id_ is None else self._peers.get(id_)

    def find(self, test: Callable[[Peer], bool]) -> Peer | None:
        return next((peer for peer in self._peers.values() if test(peer)), None)

    def new(self, name: str, link: str | None = None, *, expected: bool = False) -> Peer:
        awaited = self.find(lambda peer: peer.known.expected)
        if awaited is not None:
            awaited.known.name, awaited.known.link, awaited.known.expected = name, link, expected
            self.write_down(awaited)
            return awaited
        self._last += 1
        known = Known(f"peer_{self._last:03d}", name, link, expected=expected)
        peer = self._peers[known.id] = Peer(self._node, known)
        # Letters are kept under its id, so no other peer ever gets that id, also after a crash.
        last = Put(self._node.journal.facts_space, _LAST, str(self._last).encode())
        self._node.keep_beside([self._put(peer), last])
        self._make_room()
        return peer

    def _make_room(self) -> None:
        """Removes strangers, so that one that comes again and again without proof cannot fill the memory."""
        limit = self._node.settings.max_peers
        if len(self._peers) <= limit:
            return
        for peer in list(self._peers.values()):
            if len(self._peers) <= limit:
                return
            if not peer.connected and peer.dialing is None and not peer.outbox.waiting:
                self.drop(peer)

    def drop(self, peer: Peer) -> None:
        self._peers.pop(peer.id, None)
        self._dirty.discard(peer.id)
        self._node.keep_beside([Drop(self._node.journal.peers_space, peer.id)])
        self._node.spawn(self._drop_letters(peer.id))

    async def _drop_letters(self, id_: str) -> None:
        """Drops the letters of a peer that was removed."""
        journal, documents = self._node.journal, self._node.engine.documents
        while waiting := await documents.letters(journal.box_out, states=[QUEUED], topic=id_, limit=_PAGE):
            await journal.keep([Settle(journal.box_out, [letter.number for letter in waiting], DROPPED)])

    # -- identity -----------------------------------------------------------------------------------------

    def comes_back(self, token: str) -> Peer | None:
        """Returns the peer that we gave this token to."""
        hashed = _hash(token)
        found = self.find(lambda peer: peer.known.resume is not None and hmac.compare_digest(peer.known.resume, hashed))
        if found is not None:
            found.known.resumed = True
        return found

    def give_back_token(self, peer: Peer) -> str:
        token = secrets.token_urlsafe(24)
        peer.known.resume = _hash(token)
        self.write_down(peer)
        return token

    def named(self, name: str) -> list[Peer]:
        return [peer for peer in self if name in (peer.name, (peer.known.card or {}).get("name"))]

    def same(self, name: str) -> Peer | None:
        """Returns the peer of a connection that shows nothing better than a name."""
        if self._node.settings.strict:
            return None
        # The reference proves nothing when it comes back. Its letters would never arrive if its name were not enough; a
        # peer that has shown a key, or was given a token to come back with, is never taken for it.
        return self.find(
            lambda peer: (
                peer.name == name
                and not peer.connected
                and peer.known.did is None
                and peer.known.resume is None
                and peer.known.link is None
            )
        )

    def identify(self, name: str) -> Peer:
        """Returns the peer of an incoming connection that shows nothing better than its card."""
        return self.same(name) or self.new(name)

    # -- keeping ------------------------------------------------------------------------------------------

    def changed(self, peer: Peer) -> None:
        """Records the facts of a peer soon: after a crash its counts may be a little wrong."""
        if not self._dirty:
            asyncio.get_running_loop().call_later(0.2, lambda: self._node.spawn(self.save()))
        self._dirty.add(peer.id)

    def write_down(self, peer: Peer) -> None:
        """Records a peer at once, before any later change: its identity must be known after a crash."""
        self._node.keep_beside([self._put(peer)])

    async def save(self) -> None:
        dirty, self._dirty = self._dirty, set()
        changes: list[Change] = [self._put(self._peers[id_]) for id_ in dirty if id_ in self._peers]
        if not self._node.running:  # no other job will
            changes += [settle for peer in self for settle in peer.outbox.settle()]
        if changes:
            await self._node.engine.documents.write(changes)

    def _put(self, peer: Peer) -> Put:
        return Put(self._node.journal.peers_space, peer.id, msgspec.json.encode(peer.known))

    def joined(self, peer: Peer, binding: str) -> None:
        peer.binding = binding
        peer.dial_error = None
        peer.known.connected_at = now_z()
        self.changed(peer)

    def left(self, peer: Peer) -> None:
        peer.known.disconnected_at = now_z()
        peer.typing = None
        self.changed(peer)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
