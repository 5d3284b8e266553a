"""Channels over TCP: a WebSocket, one frame per text message, and plain lines. Who may connect is not decided here.

They are built on asyncio's protocols and not on streams, because thousands of frames per second go through: there is no
task per frame, all frames of one read of the socket are handed out together, and all frames that are sent in one turn
of the loop are written together. A WebSocket's whole text frames are read and written here; handshakes, control frames,
fragments and all faults are left to the protocol of `websockets`, which knows them. Nothing is compressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from ....transports.process.lines import LineReader

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without its extension
    from websockets.utils import apply_mask

log = logging.getLogger("interlingua.peer")

# The logs of websockets contain the link's token.
quiet = logging.getLogger("interlingua.peer.websockets")
quiet.disabled = True

_READ = 64 * 1024  # bytes per read: a peer with tiny frames holds the loop for some milliseconds, not longer
_AT_ONCE = 32 * 1024  # bytes that are written before the turn of the loop is over
_HIGH, _LOW = 1024 * 1024, 256 * 1024  # bytes not yet taken at which one side waits, and at which it goes on
_MANY = 8192  # frames not yet taken at which we stop reading
_MOST = 64 * 1024 * 1024  # bytes unsent at which a peer that does not read is left
_CLOSING = 2.0  # seconds for a peer to take the queued bytes at the end
_HEAD = 16 * 1024  # bytes of a handshake

_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_TEXT = 0x80 | Opcode.TEXT
_HEADS = [bytes((_TEXT, length)) for length in range(126)]
_SHORT, _LONG = struct.Struct("!BBH"), struct.Struct("!BBQ")


class Wire(asyncio.BufferedProtocol):
    """The common parts of both kinds of channel: the queues in both directions, and the waiting for the slower side."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.remote = ""  # the other end's address
        self.ignored = 0  # frames that can be no messages
        self.why = ""  # why it is over, where we know
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        self._frames: list[bytes] = []
        self._held = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._out: list[bytes] = []
        self._queued = 0
        self._flushing = False
        self._closed = False
        self._room = asyncio.Event()
        self._room.set()
        self.ended = asyncio.Event()

    # -- for those above ----------------------------------------------------------------------------------

    async def receive(self) -> list[bytes]:
        while not self._frames:
            if self.ended.is_set():
                return []
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frames, self._frames = self._frames, []
        self._held = 0
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return frames

    def give_back(self, frames: list[bytes]) -> None:
        """Puts frames back into the queue, for the next reader."""
        self._frames[:0] = frames
        self._held += sum(map(len, frames))
        self._wake()

    def send(self, frame: bytes) -> None:
        if self._closed:
            return
        self._out.append(frame)
        self._queued += len(frame)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif self._queued > _AT_ONCE:
            self._flush()  # the turn may be long: the peer can begin with these

    async def drain(self) -> None:
        self._flush()
        await self._room.wait()

    async def written(self) -> bool:
        """Waits until the system has taken all queued bytes. Returns False where the connection ended before."""
        self._flush()
        transport = self._transport
        if transport is None:
            return False
        try:
            while transport.get_write_buffer_size() and not self.ended.is_set():
                transport.set_write_buffer_limits(high=0)  # so that there is room again only when nothing is left
                await self._room.wait()
        finally:
            transport.set_write_buffer_limits(high=_HIGH, low=_LOW)
        return not self.ended.is_set()

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        if not self._closed:
            self._flush()
            self._closed = True
            self._say_goodbye(code, reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self.ended.wait()
        self.abort()
        await self.ended.wait()

    def abort(self, why: str = "") -> None:
        """Closes the connection at once."""
        self._closed = True
        self.why = self.why or why
        if self._transport is None:
            self.ended.set()
        else:
            self._transport.abort()

    def turn_away(self, why: str) -> None:
        """Closes a connection that has shown no token, in favour of another one."""
        self.abort(why)

    # -- for those below ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because the transports of other event loops (uvloop) do not inherit from asyncio's.
        self._transport = connection = cast(asyncio.Transport, transport)
        connection.set_write_buffer_limits(high=_HIGH, low=_LOW)
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if isinstance(peer, tuple) else str(peer or "")
        found = transport.get_extra_info("socket")
        if found is not None:
            _keep_alive(found)

    def get_buffer(self, sizehint: int) -> memoryview:
        # A view: asyncio's TLS (Python 3.11) slices the buffer to read several records after each other, and a slice of
        # a bytearray is a copy. All but the first would be lost.
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._took(bytes(memoryview(self._buffer)[:nbytes]))
        if (self._held > _HIGH or len(self._frames) > _MANY) and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self._frames:
            self._wake()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._out.clear()
        self.why = self.why or (str(exc) if exc is not None else "")
        self.ended.set()
        self._room.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _flush(self) -> None:
        self._flushing = False
        if not self._out or self._transport is None:
            return
        frames, self._out = self._out, []
        self._queued = 0
        if not self._closed:
            self._write(self._packed(frames))

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > _MOST + self.max_bytes:
            log.warning("the peer at %s does not read; it is left", self.remote)
            self.abort("it did not read what was sent to it")

    def _took(self, data: bytes) -> None:
        """Parses new bytes: puts the complete frames into `_frames`."""
        raise NotImplementedError

    def _packed(self, frames: list[bytes]) -> bytes:
        """Returns frames as bytes of the wire."""
        raise NotImplementedError

    def _say_goodbye(self, code: int, reason: str) -> None:
        raise NotImplementedError


class LineSocket(Wire):
    """One JSON object per line. A line beyond the limit is a `TooLong`."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._lines = LineReader(max_bytes)

    def _took(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._frames.append(line)
            self._held += len(line)

    def _packed(self, frames: list[bytes]) -> bytes:
        frames.append(b"")  # so that the last line ends too
        return b"\n".join(frames)

    def _say_goodbye(self, code: int, reason: str) -> None:
        if self._transport is not None:
            self._transport.close()  # after the written bytes


class WebSocket(Wire):
    """One end of a WebSocket. `opened` is called with the head of the handshake; the two ends differ in it."""

    def __init__(
        self,
        protocol: ServerProtocol | ClientProtocol,
        max_bytes: int,
        *,
        ping_every: float = 20.0,
        pong_within: float = 20.0,
    ) -> None:
        super().__init__(max_bytes)
        self.protocol = protocol
        self._masked = isinstance(protocol, ServerProtocol)  # incoming frames are masked, or else outgoing ones
        self._open = False
        self._deaf = False  # whatever comes now is nothing any more
        self._rest = bytearray()  # of a frame that is not complete
        self._need = 2  # bytes that `_rest` must have before it is worth a look
        self._pieces: list[bytes] = []  # of a message in fragments
        self._pieces_kept = False
        self._in_pieces = False
        self._ping_every, self._pong_within = ping_every, pong_within
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def opened(self) -> None:
        """Notes the end of the handshake: from now on there are frames."""
        self._open = True
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._ping_every, self._ping)

    def handshake(self, head: bytes) -> None:
        """Handles the other end's complete handshake."""
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    # -- reading ------------------------------------------------------------------------------------------

    def _took(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self._rest:
            self._rest += data
            if self._open and len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        if not self._open:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                if len(data) > _HEAD:
                    self.abort("its handshake is too long")
                self._rest += data
                return
            self.handshake(data[:end])
            data = data[end:]
            if not self._open:
                return
        if not self._deaf:
            self._rest += data[self._parse(data) :]

    def _parse(self, data: bytes) -> int:
        """Takes the complete frames, and returns the position after them."""
        frames, limit = self._frames, self.max_bytes
        mask = 0x80 if self._masked else 0
        at, end = 0, len(data)
        self._need = 2
        while end - at >= 2:
            second = data[at + 1]
            length, start = second & 0x7F, at + 2
            if length > 125:
                start += 2 if length == 126 else 8
                if start > end:
                    self._need = start - at
                    break
                length = int.from_bytes(data[at + 2 : start], "big")
            if length > limit:
                self._odd(data[at:])  # it fails by its head alone
                return end
            start += (second & 0x80) >> 5  # the four bytes of a mask
            stop = start + length
            if stop > end:
                self._need = stop - at
                break
            if data[at] != _TEXT or second & 0x80 != mask or self._in_pieces:
                if not self._odd(data[at:stop]):
                    return end
            else:
                frames.append(apply_mask(data[start:stop], data[start - 4 : start]) if mask else data[start:stop])
                self._held += length
            at = stop
        return at

    def _odd(self, data: bytes) -> bool:
        """Handles a frame that is no whole text message. Returns True if more frames may follow."""
        protocol = self.protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Frame) and event.opcode in _DATA:
                self._piece(event)
        if protocol.parser_exc is not None:
            self.why = str(protocol.parser_exc)
        elif protocol.close_rcvd is not None:
            self.why = f"it closed the connection ({protocol.close_rcvd})"
        self._hand_over()
        if protocol.parser_exc is not None or protocol.close_rcvd is not None:
            self._deaf = True
            self._loop.call_later(_CLOSING, self.abort)  # it ends sooner, unless the peer ignores the close
        return not self._deaf

    def _piece(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._pieces_kept = frame.opcode is Opcode.TEXT
            self.ignored += frame.opcode is Opcode.BINARY
        self._in_pieces = not frame.fin
        if self._pieces_kept:
            self._pieces.append(bytes(frame.data))
            if frame.fin:
                self._frames.append(b"".join(self._pieces))
                self._held += len(self._frames[-1])
                self._pieces = []

    def _hand_over(self) -> None:
        """Writes the bytes of the protocol: an answer to a ping, a close."""
        pieces = self.protocol.data_to_send()
        if not pieces:
            return
        self._flush()  # earlier frames go first
        self._write(b"".join(pieces))
        if self.protocol.close_sent is not None or self.protocol.eof_sent:
            self._closed = True
        if self.protocol.eof_sent and self._transport is not None:
            self._transport.close()  # after the written bytes

    # -- writing ------------------------------------------------------------------------------------------

    def _packed(self, frames: list[bytes]) -> bytes:
        pieces: list[bytes] = []
        if self._masked:
            for frame in frames:
                length = len(frame)
                pieces += (_HEADS[length] if length < 126 else _head(length, 0), frame)
        else:
            masks = os.urandom(4 * len(frames))
            for place, frame in enumerate(frames):
                mask = masks[4 * place : 4 * place + 4]
                pieces += (_head(len(frame), 0x80), mask, apply_mask(frame, mask))
        return b"".join(pieces)

    def _ping(self) -> None:
        """Sends pings at intervals, so that a connection that died silently is noticed."""
        silent = self._loop.time() - self._heard
        if silent > self._pong_within + self._ping_every / 2 and not self._paused:
            self.abort(f"nothing came from it for {silent:.0f} s")
            return
        if self.protocol.state is State.OPEN:
            self.protocol.send_ping(b"")
            self._hand_over()
        self._timer = self._loop.call_later(self._ping_every, self._ping)

    def _say_goodbye(self, code: int, reason: str) -> None:
        if not self._open:
            self.abort()
        elif self.protocol.state is State.OPEN:
            self.protocol.send_close(code, reason)
            self._hand_over()


def _head(length: int, mask: int) -> bytes:
    if length < 126:
        return bytes((_TEXT, mask | length))
    if length < 65536:
        return _SHORT.pack(_TEXT, mask | 126, length)
    return _LONG.pack(_TEXT, mask | 127, length)


def _keep_alive(connection: socket.socket) -> None:
    """Makes the kernel notice a cut cable within a minute or so, also where a peer sends nothing (lines have no
    pings)."""
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 50_000)
