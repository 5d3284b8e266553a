"""The membership in a session of a relay, and the channels in it; `relay` decides who is host there and who is guest.

A session of a relay is a log that all its members read. The relay changes what it carries (it sets `ts`, `id` and
`seq`), so frames travel unchanged as texts in `frames`, beside the members of the frame itself until the other end is
known to read `frames`. `n` counts the frames of one direction: a repeated frame is dropped, and a gap ends the channel,
so that its owner connects again and sends again. A member without `sender` is taken for the reference, which is known
by its name alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec

from ....transports import json_text
from ....transports.channel import TooLong
from ....transports.channel_queues import Queues
from ..wire.links import Link
from .dial import Backoff

log = logging.getLogger("interlingua.peer")

_BATCH, _BATCH_BYTES = 100, 256 * 1024  # frames of one post
_IN_BYTES = 8 * 1024 * 1024  # not taken from one channel
_CLOSING = 2.0
_FAST, _SLOW = 0.2, 1.5  # seconds between polls, where the relay cannot wait for news

_encode = msgspec.json.Encoder().encode


class RelayTimes(msgspec.Struct, kw_only=True, frozen=True):
    """The time limits and intervals, in seconds."""

    request: float = 15.0
    ping_every: float = 25.0
    silent: float = 80.0
    """Without a word from the other end, it is gone."""
    outage: float = 60.0
    """Without the relay, the channels are over."""


class RelayChannel(Queues):
    """The channel between one pair of members."""

    def __init__(self, room: Room, other: str | None, *, ours: bool = False) -> None:
        super().__init__(room.link.shown)
        self.room = room
        self.other = other  # its sender id, or name:NAME of a reference; None while that is not known
        self.ours = ours  # it reads `frames`
        self.why = ""
        self._said = 0  # frames sent
        self._got = 0
        self._one_by_one = False  # the relay takes less at a time than we would give it
        self._closed = False
        self.heard = self.spoke = room.loop.time()
        self.opened = asyncio.Event()
        self.over = asyncio.Event()
        self._task = asyncio.ensure_future(self._write())

    def send(self, frame: bytes) -> None:
        if not self._closed:
            super().send(frame)

    async def _write(self) -> None:
        """Posts the queued frames, in order; a frame that cannot be posted ends the channel."""
        try:
            while not self._gone:
                await self._more.wait()
                self._more.clear()
                while self._out and not self._gone:
                    frames = self._batch()
                    try:
                        await self.room.post(self._envelope(frames))
                    except TooLargeForRelay:
                        if len(frames) > 1:
                            self._one_by_one = True
                            continue
                        # To end the channel would not help: the same frame would come again on the next one.
                        log.warning("a frame of %d bytes is too large for %s", len(frames[0]), self.room.link.shown)
                    else:
                        self._said += len(frames)
                    self.spoke = self.room.loop.time()
                    for _ in frames:
                        self._out_bytes -= len(self._out.popleft())
                    if self._out_bytes <= _BATCH_BYTES:
                        self._room.set()
                self._empty.set()
        except ConnectionError as error:
            self.lose(str(error))

    def _batch(self) -> list[bytes]:
        if not self.ours or self._one_by_one:
            return [self._out[0]]
        frames: list[bytes] = []
        size = 0
        for frame in self._out:
            size += len(frame)
            if frames and (size > _BATCH_BYTES or len(frames) == _BATCH):
                break
            frames.append(frame)
        return frames

    def _envelope(self, frames: list[bytes]) -> dict[str, Any]:
        envelope: dict[str, Any] = {"type": "acp.relayed"}
        if not self.ours:
            with contextlib.suppress(msgspec.DecodeError):
                envelope = dict(msgspec.json.decode(frames[0], type=dict[str, msgspec.Raw]))
        envelope["from"] = self.room.name
        if self.other is None or not self.other.startswith("name:"):
            envelope.update(self.room.marks(self.other), n=self._said + 1, frames=[f.decode() for f in frames])
        return envelope

    def took(self, first: int, frames: list[Any]) -> None:
        """Takes frames, the first of which is the n-th of all."""
        self.heard = self.room.loop.time()
        if first > self._got + 1:
            self.lose("the relay lost frames on the way")
            return
        for text in frames[max(0, self._got + 1 - first) :]:
            frame = str(text).encode("utf-8", "replace")
            most = self.room.max_bytes
            self._take(frame if len(frame) <= most else TooLong.of(frame, most))
            self._got += 1

    def took_plain(self, message: dict[str, Any]) -> None:
        """Takes a message of a reference, whose time the relay has replaced by a number."""
        ms = message.get("ts")
        if isinstance(ms, int | float) and 0 <= ms < 1e14:
            moment = datetime.fromtimestamp(ms / 1000, UTC)
            message["ts"] = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.heard = self.room.loop.time()
        self._take(_encode(message))

    async def taken(self) -> None:
        """Waits, but not for ever, until the reader has taken the frames."""
        if not self._in_room.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await self._in_room.wait()
            if self._in_bytes > _IN_BYTES:
                self.lose("nobody takes what it sends")

    def lose(self, why: str) -> None:
        if not self._gone:
            self.why = why
            self._lost()
            self.over.set()
            self.room.left(self)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._gone and self.other is not None:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_CLOSING):
                    await self._empty.wait()
                    await self.room.say("acp.relay_bye", self.other)
        self.lose("it was closed")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.room.channel_closed()


class Room:
    """A member of a relay's session: it reads the log, and posts to it. The relay may be away for a while."""

    host = False

    def __init__(self, link: Link, name: str, max_bytes: int, times: RelayTimes, tls: ssl.SSLContext | None) -> None:
        self.link = link
        self.name = name
        self.max_bytes = max_bytes
        self.times = times
        self.loop = asyncio.get_running_loop()
        self.sender = secrets.token_hex(8)
        self.channels: dict[str, RelayChannel] = {}
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(times.request),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            verify=tls if tls is not None else link.secure,  # without TLS, there is nothing to read certificates for
        )
        self._posted = 0
        self._wait = 0.0  # seconds that the relay may hold a poll
        self._cursor: str | None = None
        self._joined_at = 0
        self._joining = asyncio.Lock()
        self._joins = 0
        self._over = False
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def joined(self) -> bool:
        return self._joins > 0

    def marks(self, to: str | None) -> dict[str, Any]:
        return {"sender": self.sender, "to": to, "host": self.host}

    # -- the relay ----------------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Makes one request. Raises `Away` where it may be retried, `NoSession`, or `TooLargeForRelay`."""
        try:
            response = await self._http.request(method, f"{self.link.url}/{path}", **more)
        except (httpx2.HTTPError, OSError) as error:
            why = str(error) or type(error).__name__
            raise Away(f"the relay at {self.link.address} cannot be reached: {why}") from error
        if response.status_code == 403:
            raise NoSession
        if response.status_code == 413:
            raise TooLargeForRelay
        if response.status_code != 200:
            raise Away(f"the relay at {self.link.address} answered {response.status_code}")
        try:
            answer = json_text.decode(response.content)
        except json_text.Unreadable as error:
            raise Away(f"the answer of the relay at {self.link.address} cannot be read: {error}") from None
        if not isinstance(answer, dict):
            raise Away(f"the relay at {self.link.address} answered with something else than an object")
        return answer

    async def join(self) -> None:
        """Begins the session, or enters it where it exists."""
        seen = self._joins
        async with self._joining:
            if seen != self._joins:
                return  # another found that out at the same time
            await self._ask("POST", "new", params={"token": self.link.token})
            card = {"name": self.name, "relay_sender": self.sender}
            answer = await self._ask("POST", f"{self.link.token}/join", json={"name": self.name, "card": card})
            # Earlier messages are for us only where we are the member they were meant for; but a member that comes back
            # after the relay forgot everything has missed the others' messages since, and knows by `n` which are new.
            seq = answer.get("seq")
            self._joined_at = seq if not self._joins and isinstance(seq, int) else 0
            wait = answer.get("wait")
            self._wait = min(float(wait), 60.0) if isinstance(wait, int | float) else 0.0
            self._cursor = None
            self._joins += 1

    async def _keep(self, what: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Does something at the relay, and retries while the relay is away."""
        backoff = Backoff(0.2, 5.0)
        since = self.loop.time()
        while True:
            try:
                try:
                    return await what()
                except NoSession:
                    await self.join()
                    return await what()
            except (Away, NoSession) as error:
                if self._over or self.loop.time() - since > self.times.outage:
                    raise ConnectionError(str(error) or "the relay has no such session") from error
            await asyncio.sleep(0.05 + backoff.next())

    async def post(self, envelope: dict[str, Any]) -> None:
        """Posts a message. A repeated post is the same message: the relay drops a message with a known id."""
        self._posted += 1
        body = _encode({**envelope, "id": f"{self.sender}-{self._posted}"})
        headers = {"content-type": "application/json"}
        await self._keep(lambda: self._ask("POST", f"{self.link.token}/send", content=body, headers=headers))

    async def say(self, kind: str, to: str | None) -> None:
        if to is None or not to.startswith("name:"):
            await self.post({"type": kind, "from": self.name, **self.marks(to)})

    # -- reading ------------------------------------------------------------------------------------------

    def start(self) -> None:
        for work in (self._read(), self._watch()):
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._stopped)
            self.tasks.append(task)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Ends all channels where a job of the room stops with an error. Nothing that arrives should cause that; if it
        does, nothing may wait for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("reading from %s ended by an error", self.link.shown, exc_info=error)
            for channel in list(self.channels.values()):
                channel.lose(str(error))

    async def _read(self) -> None:
        pause = _FAST
        while not self._over:
            try:
                answer = await self._keep(self._poll)
            except ConnectionError as error:
                for channel in list(self.channels.values()):
                    channel.lose(str(error))
                self.relay_gone(str(error))
                continue
            self.relay_back()
            messages = answer.get("messages")
            for message in messages if isinstance(messages, list) else ():
                if isinstance(message, dict) and (not self._is_left(message) or await self.takes_left(message)):
                    self._one(message)
            for channel in list(self.channels.values()):
                await channel.taken()
            if messages:
                pause = _FAST
            elif not self._wait:
                await asyncio.sleep(pause)
                pause = min(_SLOW, pause * 1.5)

    async def _poll(self) -> dict[str, Any]:
        params: dict[str, Any] = {"limit": 200, "reader": self.sender}
        if self._cursor is not None:
            params["after_id"] = self._cursor
        if self._wait:
            params["wait"] = self._wait
        joins = self._joins
        answer = await self._ask(
            "GET",
            f"{self.link.token}/poll",
            params=params,
            timeout=httpx2.Timeout(self.times.request, read=self.times.request + self._wait),
        )
        last = answer.get("last_id")
        if joins == self._joins and isinstance(last, str):
            self._cursor = last
        return answer

    def _is_left(self, message: dict[str, Any]) -> bool:
        """Tells if a message of a reference was left before this member came in."""
        seq = message.get("seq")
        return (
            isinstance(seq, int)
            and seq <= self._joined_at
            and message.get("type") == "acp.message"
            and not isinstance(message.get("sender"), str)
        )

    def _one(self, message: dict[str, Any]) -> None:
        sender, seq, kind = message.get("sender"), message.get("seq"), message.get("type")
        before = isinstance(seq, int) and seq <= self._joined_at
        if kind == "acp.agent_joined" and not isinstance(sender, str):
            self._was_joined(message, before=before)
            return
        if isinstance(sender, str):
            to = message.get("to")
            # What was said to the one before us, or by one of those who spoke with it, is said again to us.
            if not before and sender != self.sender and (to is None or to == self.sender):
                self.came(sender, message)
            return
        name = message.get("from")
        if isinstance(name, str) and name != self.name and (not before or kind == "acp.message"):
            message.pop("seq", None)
            id_ = message.pop("id", None)
            if kind == "acp.message" and isinstance(id_, str):
                message.setdefault("message_id", id_)  # by which it is known when it is read again
            self.came_plain(f"name:{name}"[:100], message)

    def _was_joined(self, message: dict[str, Any], *, before: bool) -> None:
        card, name = message.get("card"), message.get("from")
        if not (isinstance(card, dict) and "relay_sender" in card) and isinstance(name, str) and name != self.name:
            self.reference_joined(f"name:{name}"[:100], card, before=before)

    def frames(self, channel: RelayChannel, message: dict[str, Any]) -> None:
        first, frames = message.get("n"), message.get("frames")
        channel.heard = self.loop.time()
        if isinstance(first, int) and isinstance(frames, list):
            channel.ours = True
            channel.took(first, frames)
        elif message.get("type") == "acp.relay_bye":
            channel.lose("the other end closed it")
        elif message.get("type") == "acp.relay_reset":
            channel.lose("the other end began anew")

    async def _watch(self) -> None:
        """Notices members that vanished silently, and keeps this member noticed."""
        every = self.times.ping_every
        while True:
            await asyncio.sleep(every / 4)
            now = self.loop.time()
            for channel in list(self.channels.values()):
                if channel.other is None or channel.other.startswith("name:"):
                    continue
                if now - channel.heard > self.times.silent:
                    channel.lose(f"nothing came from it for {self.times.silent:g} s")
                elif now - channel.spoke > every:
                    channel.spoke = now
                    with contextlib.suppress(ConnectionError):
                        await self.say("acp.relay_ping", channel.other)

    def stop_all(self) -> None:
        self._over = True
        for task in self.tasks:
            task.cancel()

    async def end(self) -> None:
        self.stop_all()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._http.aclose()

    # -- by which hosts and guests differ -----------------------------------------------------------------

    def came(self, sender: str, message: dict[str, Any]) -> None:
        """Takes a message for this member, or for all, from a member with a sender id."""
        raise NotImplementedError

    def came_plain(self, name: str, message: dict[str, Any]) -> None:
        raise NotImplementedError

    async def takes_left(self, message: dict[str, Any]) -> bool:
        """Tells if this member takes a message of a reference that was left at the relay before it came in."""
        return False

    def reference_joined(self, name: str, card: Any, *, before: bool) -> None:
        """Notes that a member without `sender` came in, before this one or just now."""
        raise NotImplementedError

    def relay_gone(self, why: str) -> None:
        raise NotImplementedError

    def relay_back(self) -> None:
        return

    def stop(self) -> None:
        """Stops reading."""
        self._over = True

    def left(self, channel: RelayChannel) -> None:
        if channel.other is not None and self.channels.get(channel.other) is channel:
            del self.channels[channel.other]

    async def channel_closed(self) -> None:
        return


class TooLargeForRelay(Exception):
    """The relay does not take a message of this size."""


class Away(Exception):
    """The relay does not answer as it should; it may recover."""


class NoSession(Exception):
    """The relay does not know the token: it forgot it, or never knew it."""
