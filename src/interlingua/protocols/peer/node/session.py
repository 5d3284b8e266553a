"""One connection with a peer, over any binding: cards first, then frames both ways.

A frame that makes no sense is answered with an error frame and ends nothing. `inbound` decides about the meaning of a
frame; automatic frames (cards, pongs, confirmations) are sent here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ....model import json_values
from ....model.errors import Invalid, InvalidRequest
from ....transports import json_text
from ....transports.channel import Channel, TooLong, size
from ..translate import parts
from ..wire import frames
from ..wire.extensions import missing_required

if TYPE_CHECKING:
    from .inbound import Taking
    from .node import Node
    from .peers import Peer

log = logging.getLogger("interlingua.peer")

_COMPLAINTS = 20  # error frames per connection: one that sends nonsense for ever is not answered for ever
_HIGH = 4 * 1024 * 1024  # bytes queued for a peer at which letters wait on the shelf instead
_NAMED = ("type", "message_id")
_encode = msgspec.json.Encoder().encode


class Session:
    def __init__(
        self, node: Node, channel: Channel, *, binding: str, inbound: bool, peer: Peer | None = None, remote: str = ""
    ) -> None:
        self.node = node
        self.channel = channel
        self.binding = binding
        self.inbound = inbound
        self.remote = remote
        self.peer = peer  # None until it has sent its card
        self.card: dict[str, Any] | None = None
        self._complaints = 0
        self._confirmed: list[str] = []  # sent when all frames that came together are done
        self._written: list[Callable[[], None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._pings: dict[str, asyncio.Future[None]] = {}
        self._pumping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes since the last drain
        self._told = False  # a frame led to an event about the peer
        self.over = False
        self.replaced = False  # the peer has a newer connection

    # -- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves until the peer is gone."""
        loop = asyncio.get_running_loop()
        if self.peer is not None and self.peer.known.comes_back_with is not None:
            self.send({"type": "acp.resume", "token": self.peer.known.comes_back_with})
        self.send(frames.agent_card(self.node.own_card.view()))
        self._timer = loop.call_later(self.node.settings.card_wait, self._no_card)
        if self.peer is not None:
            self._take_place(self.peer)
        try:
            while batch := await self.channel.receive():
                await self._take(batch)
                del batch  # a large refused frame is not held until the next message
        finally:
            self.over = True
            self._timer.cancel()
            for task in (self._pumping, self._watching):
                if task is not None:
                    task.cancel()
            for waiting in self._pings.values():
                waiting.cancel()
            self._leave()
            with contextlib.suppress(Exception):
                await self.channel.close()

    def _no_card(self) -> None:
        if self.peer is None and not self.over:
            self.become(self.node.peers.new(f"peer at {self.remote or self.binding}"))

    def become(self, peer: Peer) -> None:
        """Takes the identity of the peer, which is known now."""
        if self.replaced or (self.peer is peer and peer.session is self):
            return
        self._leave()
        self.peer = peer
        self._take_place(peer)

    def _take_place(self, peer: Peer) -> None:
        """Replaces the old connection of a peer that comes back, which has often lost it long before this side notices:
        the newest counts."""
        old, peer.session = peer.session, self
        if old is not None and old is not self:
            # Frames in its hands belong to the same peer: as another's, they would count once more.
            old.replaced = True
            old.stop_pumping()
            self.node.spawn(old.channel.close())
        self.node.peers.joined(peer, self.binding)
        self.node.told_of_peer(peer, "connected")
        if not self.inbound or self.card is not None:
            self.start_pumping()
        else:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self.node.settings.card_wait, self.start_pumping)

    def start_pumping(self) -> None:
        if self._pumping is None and self.peer is not None and not self.over and not self.replaced:
            self._pumping = self.node.spawn(self.peer.outbox.pump(self))

    def stop_pumping(self) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None

    def _leave(self) -> None:
        self.stop_pumping()
        peer, self.peer = self.peer, None
        if peer is not None and peer.session is self:
            peer.session = None
            self.node.peers.left(peer)
            self.node.told_of_peer(peer, "disconnected")

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, frame: dict[str, Any]) -> None:
        self.send_data(_encode(frame))

    def send_data(self, data: bytes) -> None:
        """Sends an encoded frame."""
        if self.peer is not None and len(data) > self.peer.limit:
            log.warning("a frame of %d bytes is too large for %s, and was not sent", len(data), self.who)
            return  # it would end the connection, and with it all that is under way
        self._unread += len(data)
        self.channel.send(data)

    def send_letter(self, frame: dict[str, Any], number: int, data: bytes | None = None) -> None:
        """Sends a letter with its number. `data` is the frame where it is encoded already."""
        if data is not None and not self.node.trust.signs:
            self.send_numbered(data, number)
            return
        trust = self.node.trust
        whole = {**frame, "server_seq": number}
        if trust.hmac and frame.get("_was_queued"):
            whole["ts"] = frames.now_z()  # the reference (2.19) silently drops frames that were signed five minutes ago
        self.send(trust.sign(whole))

    def send_numbered(self, data: bytes, number: int) -> None:
        """Sends an encoded letter that is not signed, with its number."""
        numbered = b'%s,"server_seq":%d}' % (data[:-1], number)
        self._unread += len(numbered)
        self.channel.send(numbered)

    @property
    def congested(self) -> bool:
        """Tells if the peer reads more slowly than this side writes."""
        if self._unread < _HIGH // 4:
            return False
        self._watch()
        return self._unread > _HIGH

    async def drain(self) -> None:
        await self.channel.drain()
        self._unread = 0

    def when_written(self, then: Callable[[], None]) -> None:
        """Calls back when the peer's side has taken everything that was sent so far."""
        self._written.append(then)
        self._watch()

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = self.node.spawn(self._watch_writing())

    async def _watch_writing(self) -> None:
        try:
            while self._written or self._unread:
                written, self._written = self._written, []
                # A peer that confirms nothing has only the frames that have left; queued ones are lost.
                wait = getattr(self.channel, "written", None) if written else None
                if wait is not None and not await wait():
                    return
                await self.drain()
                if self.over:
                    return
                for then in written:
                    then()
        finally:
            self._watching = None

    def acks(self, frame: dict[str, Any]) -> bool:
        """Tells if the peer will confirm a frame."""
        peer = self.peer
        if peer is None or not peer.able("delivery_ack"):
            return False
        return frame.get("type") == "acp.message" or peer.ours

    # -- receiving ----------------------------------------------------------------------------------------

    async def _take(self, batch: list[bytes]) -> None:
        """Takes frames that came together. Their changes are one transaction where possible, and nothing more is read
        before that is done."""
        waiting: list[tuple[dict[str, Any], Taking]] = []
        for data in batch:
            frame = self._read(data)
            if frame is None:
                continue
            try:
                taking = self._frame(frame)
            except Exception as error:
                self.not_kept(frame, error)
                continue
            if taking is None:
                continue
            if taking.work is not None:
                try:
                    await self._finish(waiting)
                except BaseException:
                    taking.work.close()  # it never had its turn
                    raise
                waiting = []
                await self._finish([(frame, taking)])
            else:
                waiting.append((frame, taking))
        await self._finish(waiting)
        self.send_confirmations()
        if self._told and (told := self.node.told_last) is not None and not told.done():
            await asyncio.wait({told})  # or one that only types would fill the memory with the news of it
        self._told = False

    async def _finish(self, waiting: list[tuple[dict[str, Any], Taking]]) -> None:
        following: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        for frame, taking in waiting:
            try:
                if taking.work is not None:
                    await taking.work
                    continue
                assert taking.kept is not None
                kept = await taking.kept
                more = taking.then(kept) if taking.then is not None else None
                if more is not None:
                    following.append((frame, asyncio.ensure_future(more)))
            except Exception as error:
                self.not_kept(frame, error)
        for frame, future in following:
            try:
                await future
            except Exception as error:
                self.not_kept(frame, error)

    def not_kept(self, frame: dict[str, Any], error: BaseException) -> None:
        """Reports to the peer that a frame of it could not be taken."""
        if isinstance(error, Invalid):
            self.complain("invalid_frame", error.message, frame)
            return
        if not self.node.running:
            raise error
        log.error("a frame of %s could not be taken: %s", self.who, error, exc_info=error)
        self.complain("internal", f"it could not be kept: {type(error).__name__}", frame)

    def confirm(self, message_id: str) -> None:
        """Confirms that a message is stored. All that came together are confirmed in one frame."""
        self._confirmed.append(message_id)

    def send_confirmations(self) -> None:
        confirmed, self._confirmed = self._confirmed, []
        if len(confirmed) > 1 and self.peer is not None and self.peer.ours:
            self.send({**frames.delivered(self.node.name, confirmed[-1]), "message_ids": confirmed})
        else:
            for message_id in confirmed:
                self.send(frames.delivered(self.node.name, message_id))

    def _read(self, data: bytes) -> dict[str, Any] | None:
        if isinstance(data, TooLong) or len(data) > self.node.settings.max_msg_bytes:
            most = size(self.node.settings.max_msg_bytes)
            self.complain("message_too_large", f"a frame has at most {most}", json_text.members(data, *_NAMED))
            return None
        try:
            frame = json_text.decode(data)
        except json_text.Unreadable as error:
            self.complain("invalid_json", str(error), json_text.members(data, *_NAMED))
            return None
        if not isinstance(frame, dict):
            self.complain("invalid_frame", f"a frame is a JSON object, and this is {type(frame).__name__}")
            return None
        if not json_values.is_plain(data):
            try:
                json_values.check(frame, InvalidRequest, what="frame")
            except Invalid as error:
                self.complain("invalid_frame", error.message, frame)
                return None
        return frame

    @property
    def who(self) -> str:
        return self.peer.id if self.peer is not None else self.remote or "a peer"

    def complain(self, code: str, message: str, frame: dict[str, Any] | None = None) -> None:
        self._complaints += 1
        log.log(
            logging.INFO if self._complaints <= _COMPLAINTS else logging.DEBUG,
            "%s sent what is no good: %s", self.who, message,
        )  # fmt: skip
        if self._complaints <= _COMPLAINTS and (frame or {}).get("type") != "error":
            id_ = (frame or {}).get("message_id")
            told = self._refusal(code, message, id_ if isinstance(id_, str) else None)
            if told is not None:
                self.send(told)

    def _refusal(self, code: str, message: str, id_: str | None) -> dict[str, Any] | None:
        """Returns the frame that reports an error to the peer. The reference shows an error frame to its owner as a
        message; an answer to its own message reaches only the program that waits for it."""
        if self.card is None or (self.peer is not None and self.peer.ours):
            return frames.error(code, message, message_id=id_, ts=frames.now_z())
        if id_ is None:
            return None
        error = {"code": code, "message": message}
        return frames.reply(self.node.name, id_, parts=[parts.text(f"refused: {message}")], error=error)

    def _frame(self, frame: dict[str, Any]) -> Taking | None:
        """Handles a frame, or begins to keep it."""
        kind = frame.get("type")
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is not None:
            handler(self, frame)
            return None
        if self.peer is None:
            self._introduce(frame)
        assert self.peer is not None
        return self.node.inbound.take(self, self.peer, frame)

    def _introduce(self, frame: dict[str, Any]) -> None:
        """Handles a peer that speaks before it has sent its card."""
        name = frame.get("from")
        self.become(self.node.peers.identify(name if isinstance(name, str) else "unknown"))

    def _on_card(self, frame: dict[str, Any]) -> None:
        card = frame.get("card")
        if not isinstance(card, dict):
            raise InvalidRequest("card is an object")
        self.card = card
        verification = self.node.trust.verify_card(card)
        given = card.get("name")
        name = given if isinstance(given, str) and given else "unknown"
        peer = self.peer
        if peer is None:
            peer = self.node.peers.identify(name)
        known = peer.known
        known.card, known.verification = card, verification
        if not known.renamed:
            known.name = name
        peer.missing = missing_required(card.get("extensions"), self.node.own_card.extensions())
        if peer.missing:
            log.warning("%s requires extensions that this node does not have: %s", name, ", ".join(peer.missing))
        if peer is not self.peer or peer.session is not self:
            self.become(peer)
        self.node.peers.changed(peer)
        self.node.got_card(peer)
        self._told = True
        if self.inbound and peer.able("resume") and known.resume is None:
            token = self.node.peers.give_back_token(peer)
            self.send({"type": "acp.session", "resume": token, "peer_id": peer.id, "ts": frames.now_z()})
        self.start_pumping()

    def _on_resume(self, frame: dict[str, Any]) -> None:
        token = frame.get("token")
        peer = self.node.peers.comes_back(token) if isinstance(token, str) else None
        if peer is not None and self.inbound:
            self.become(peer)

    def _on_session(self, frame: dict[str, Any]) -> None:
        token = frame.get("resume")
        if isinstance(token, str) and self.peer is not None and not self.inbound:
            self.peer.known.comes_back_with = token
            self.node.peers.write_down(self.peer)

    def _on_ping(self, frame: dict[str, Any]) -> None:
        self.send(frames.pong(self.node.name, frames.check_id(frame.get("nonce"), "nonce")))

    def _on_pong(self, frame: dict[str, Any]) -> None:
        waiting = self._pings.pop(str(frame.get("nonce")), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def ping(self, timeout: float) -> float:
        """Returns the milliseconds to the peer and back. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        frame = frames.ping(self.node.name)
        self._pings[frame["nonce"]] = waiting = loop.create_future()
        began = loop.time()
        self.send(frame)
        try:
            async with asyncio.timeout(timeout):
                await waiting
        except asyncio.CancelledError:
            if self.over:
                raise TimeoutError from None
            raise
        finally:
            self._pings.pop(frame["nonce"], None)
        return (loop.time() - began) * 1000

    def _on_delivered(self, frame: dict[str, Any]) -> None:
        one = frame.get("message_id") or frame.get("ack_message_id")
        many = frame.get("message_ids")
        for id_ in many if isinstance(many, list) else [one]:
            if type(id_) is str and self.peer is not None:
                self.peer.outbox.confirmed(id_)
        if self.peer is not None:
            self.node.peers.changed(self.peer)

    def _on_read(self, frame: dict[str, Any]) -> None:
        if self.peer is not None:
            self.peer.known.read += 1

    def _on_typing(self, frame: dict[str, Any]) -> None:
        typing = bool(frame.get("typing"))
        if self.peer is not None and typing != (self.peer.typing is not None):
            self.peer.typing = frames.now_z() if typing else None
            self.node.told_of_peer(self.peer, "typing", typing=typing)
            self._told = True

    def _on_error(self, frame: dict[str, Any]) -> None:
        why = str(frame.get("message") or frame.get("error") or frame.get("code"))[:500]
        log.info("%s says: %s", self.who, why)
        if frame.get("code") == "invalid_token":
            self.refused = "it does not know the token of the link"
            return
        if self.peer is not None:
            id_ = frame.get("message_id")
            said = {"message_id": id_} if isinstance(id_, str) else {}
            self.node.told_of_peer(self.peer, "error", code=str(frame.get("code"))[:100], error=why, **said)
            self._told = True
            if isinstance(id_, str):  # it will not be taken the next time either
                self.peer.outbox.confirmed(id_)
                self.node.sending.refused(self.peer, id_, why)

    refused: str | None = None  # why the other side did not let us in


_HANDLERS: dict[str, Callable[[Session, dict[str, Any]], None]] = {
    "acp.agent_card": Session._on_card,
    "acp.resume": Session._on_resume,
    "acp.session": Session._on_session,
    "acp.ping": Session._on_ping,
    "acp.pong": Session._on_pong,
    "acp.delivered": Session._on_delivered,
    "acp.ack": Session._on_delivered,
    "acp.read": Session._on_read,
    "acp.typing": Session._on_typing,
    "error": Session._on_error,
}
