"""Peers that meet at a relay: one waits there as the host (`listen_relay`), others come as guests (`dial_relay`), and
each guest has a channel with the host. Guests do not see each other.

A guest says hello and is connected when the host answers, so that an empty session is never taken for a peer. A host
that starts tells the guests of the host before it to begin anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from ....model.errors import InterlinguaError
from ....transports.channel import Channel
from ..wire.links import Link
from .dial import Backoff
from .listen import Incoming, OnConnection
from .relay_room import Away, NoSession, RelayChannel, RelayTimes, Room

log = logging.getLogger("interlingua.peer")

_GUESTS = 500  # at one host
_ANSWERS = 1000  # to guests that wait to be posted
_HELLO_AGAIN = 3.0


async def dial_relay(
    link: Link,
    *,
    name: str,
    max_bytes: int,
    timeout: float = 10.0,
    tls: ssl.SSLContext | None = None,
    times: RelayTimes | None = None,
) -> Channel:
    """Connects to the host of a relay link (acp+wss:// or acp+ws://). Raises ConnectionError, also where no host
    waits."""
    room = _Guest(link, name, max_bytes, times or RelayTimes(), tls)
    try:
        await room.enter(timeout)
    except BaseException:
        await room.channel.close()
        raise
    return room.channel


class _Guest(Room):
    def __init__(self, link: Link, name: str, max_bytes: int, times: RelayTimes, tls: ssl.SSLContext | None) -> None:
        super().__init__(link, name, max_bytes, times, tls)
        self.channel = RelayChannel(self, None)
        self._references: list[str] = []
        self._host_spoke = asyncio.Event()  # to us, or to all, because it has just come

    async def enter(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.join()
                self.start()
                while not self.channel.opened.is_set():
                    self._host_spoke.clear()
                    await self.say("acp.relay_hello", None)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(_HELLO_AGAIN, timeout / 2)):
                            await self._host_spoke.wait()
                    if self._references and not self._host_spoke.is_set():
                        self._bind(self._references[-1])  # the reference (2.19) listens, and never speaks here
        except TimeoutError:
            where = f"the relay at {self.link.address}"
            found = f"nobody waits at {where}" if self.joined else f"{where} did not answer"
            raise ConnectionError(f"{found} within {timeout:g} s") from None
        except Away as error:
            raise ConnectionError(str(error)) from error
        except NoSession:
            raise ConnectionError(f"the relay at {self.link.address} does not let this token in") from None

    def _bind(self, other: str) -> None:
        self.channel.other = other
        self.channels[other] = self.channel
        self.channel.heard = self.loop.time()
        self.channel.opened.set()
        self._host_spoke.set()

    def came(self, sender: str, message: dict[str, Any]) -> None:
        if message.get("host") is not True:
            return  # another guest
        channel = self.channel
        if channel.other is None and message.get("to") == self.sender:
            channel.ours = True
            self._bind(sender)
        if channel.other == sender:
            self.frames(channel, message)
        elif message.get("type") == "acp.relay_reset":
            if channel.other is None:
                self._host_spoke.set()  # it came after our hello, which it may not have heard; there is nothing to lose
            else:
                channel.lose("the host began anew")

    def came_plain(self, name: str, message: dict[str, Any]) -> None:
        if self.channel.other is None:
            self._bind(name)
        if self.channel.other == name:
            self.channel.took_plain(message)

    def reference_joined(self, name: str, card: Any, *, before: bool) -> None:
        self._references.append(name)

    def relay_gone(self, why: str) -> None:
        self.stop()

    async def channel_closed(self) -> None:
        await self.end()


class RelayListener:
    """A host that waits for guests at a relay without end, also while the relay is away. Made by `listen_relay`."""

    def __init__(self, room: _Host) -> None:
        self._room = room
        self.link = room.link

    @property
    def connected(self) -> bool:
        """Tells if the relay can be reached."""
        return self._room.there.is_set()

    @property
    def why(self) -> str:
        """Returns why the relay cannot be reached."""
        return self._room.why

    async def ready(self) -> None:
        """Waits until guests can come."""
        await self._room.there.wait()

    async def close(self) -> None:
        await self._room.end()


async def listen_relay(
    link: Link,
    on_connection: OnConnection,
    *,
    name: str,
    max_bytes: int,
    tls: ssl.SSLContext | None = None,
    times: RelayTimes | None = None,
    on_change: Callable[[bool, str], None] | None = None,
    takes_left: Callable[[str, str], Awaitable[bool]] | None = None,
) -> RelayListener:
    """Waits for guests at a relay. Does not wait for the relay itself: see `RelayListener.ready`. `on_change` is called
    when the relay is there, and when and why it is not. `takes_left` decides, by the sender's name and the message id,
    about a message that was left at the relay while the host was away; without it, none is taken."""
    room = _Host(link, name, max_bytes, times or RelayTimes(), tls, on_connection, on_change, takes_left)
    room.begin()
    return RelayListener(room)


class _Host(Room):
    host = True

    def __init__(
        self,
        link: Link,
        name: str,
        max_bytes: int,
        times: RelayTimes,
        tls: ssl.SSLContext | None,
        on_connection: OnConnection,
        on_change: Callable[[bool, str], None] | None,
        takes_left: Callable[[str, str], Awaitable[bool]] | None,
    ) -> None:
        super().__init__(link, name, max_bytes, times, tls)
        self._takes_left = takes_left
        self._on_connection = on_connection
        self._on_change = on_change
        self.there = asyncio.Event()
        self.why = "not connected yet"
        self._answers: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_ANSWERS)
        self._serving: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        self.tasks.append(asyncio.ensure_future(self._begin()))

    async def _begin(self) -> None:
        backoff = Backoff(0.5, 30.0)
        while True:
            try:
                await self.join()
                await self.say("acp.relay_reset", None)
                break
            except (Away, NoSession, ConnectionError) as error:
                self.why = str(error) or "it does not let this token in"
                log.warning("waiting for guests is not possible yet: %s", self.why)
            await asyncio.sleep(0.1 + backoff.next())
        self.relay_back()
        self.start()
        while True:
            kind, to = await self._answers.get()
            try:
                await self.say(kind, to)
            except ConnectionError as error:
                self.relay_gone(str(error))

    def _answer(self, kind: str, to: str) -> None:
        if not self._answers.full():
            self._answers.put_nowait((kind, to))

    def _open(self, other: str, *, ours: bool) -> RelayChannel | None:
        if len(self.channels) >= _GUESTS:
            return None
        channel = self.channels[other] = RelayChannel(self, other, ours=ours)
        task = asyncio.ensure_future(self._serve(channel))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return channel

    async def _serve(self, channel: RelayChannel) -> None:
        try:
            await self._on_connection(channel, Incoming(self.link.address, {}, "relay"))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a connection through %s ended by an error", self.link.shown)
        finally:
            await asyncio.shield(asyncio.ensure_future(channel.close()))

    def came(self, sender: str, message: dict[str, Any]) -> None:
        if message.get("host") is True:
            return
        channel = self.channels.get(sender)
        kind = message.get("type")
        if kind == "acp.relay_hello":
            if channel is not None or self._open(sender, ours=True) is not None:
                self._answer("acp.relay_welcome", sender)
        elif channel is not None:
            self.frames(channel, message)
        elif kind != "acp.relay_bye":
            self._answer("acp.relay_reset", sender)  # it speaks with a host that is no more

    def came_plain(self, name: str, message: dict[str, Any]) -> None:
        channel = self.channels.get(name) or self._open(name, ours=False)
        if channel is not None:
            channel.took_plain(message)

    async def takes_left(self, message: dict[str, Any]) -> bool:
        name, id_ = message.get("from"), message.get("message_id", message.get("id"))
        if self._takes_left is None or not isinstance(name, str) or not isinstance(id_, str):
            return False
        try:
            return await self._takes_left(name, id_)
        except InterlinguaError as error:
            log.warning("whether %s was taken before is not known: %s", id_, error)
            return True  # if it was, it is known when it comes

    def reference_joined(self, name: str, card: Any, *, before: bool) -> None:
        if not before and isinstance(card, dict):
            self.came_plain(name, {"type": "acp.agent_card", "card": card})
        elif not before and name not in self.channels:
            self._open(name, ours=False)

    def relay_gone(self, why: str) -> None:
        self.why = why
        if self.there.is_set():
            self.there.clear()
            log.warning("guests cannot come: %s", why)
            if self._on_change is not None:
                self._on_change(False, why)

    def relay_back(self) -> None:
        if not self.there.is_set():
            self.why = ""
            self.there.set()
            if self._on_change is not None:
                self._on_change(True, "")

    async def end(self) -> None:
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await super().end()
