"""Where peers reach us, by WebSocket and by lines over TCP: who is let in, what comes through, and rude peers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import websockets.asyncio.client as stock
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from interlingua.protocols.peer.bindings import sockets
from interlingua.protocols.peer.bindings.listen import Incoming, Listener, ListenLimits, listen_tcp, listen_ws
from interlingua.protocols.peer.bindings.sockets import WebSocket, Wire
from interlingua.protocols.peer.wire.links import same_token
from interlingua.transports.channel import Channel, TooLong
from tests.kit.examples import many
from tests.kit.wait_for import PATIENCE

LIMIT = 64 * 1024
TOKEN = "tok_0123456789abcdef"


class Host:
    """A listener that keeps what it is handed."""

    def __init__(self, serve: Callable[[Channel, Incoming], Any] | None = None) -> None:
        self.listener: Listener
        self.came: asyncio.Queue[tuple[Wire, Incoming]] = asyncio.Queue()
        self._serve = serve

    async def connected(self, channel: Channel, incoming: Incoming) -> None:
        assert isinstance(channel, Wire)
        self.came.put_nowait((channel, incoming))
        if self._serve is not None:
            await self._serve(channel, incoming)
        else:
            await channel.ended.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    @property
    def url(self) -> str:
        return f"ws://{self.address}/{TOKEN}"

    async def channel(self) -> Wire:
        channel, _ = await asyncio.wait_for(self.came.get(), PATIENCE)
        return channel


async def echo(channel: Channel, incoming: Incoming) -> None:
    while frames := await channel.receive():
        for frame in frames:
            channel.send(frame)
        await channel.drain()


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[[Channel, Incoming], Any] | None = None,
    *,
    how: Callable[..., Any] = listen_ws,
    max_bytes: int = LIMIT,
    **more: Any,
) -> AsyncIterator[Host]:
    host = Host(serve)
    host.listener = await how(
        "127.0.0.1", 0, host.connected, check_token=lambda t: same_token(t, TOKEN), max_bytes=max_bytes, **more
    )
    try:
        yield host
    finally:
        await asyncio.wait_for(host.listener.close(), PATIENCE)
        assert (host.listener.connections, host.listener.strangers) == (0, 0)


async def frames_of(channel: Channel, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            more = await channel.receive()
            assert more, f"it ended after {len(found)} frames"
            found += more
    return found


def handshake(host: Host) -> bytes:
    return (
        f"GET /{TOKEN} HTTP/1.1\r\nHost: {host.address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )


async def raw_websocket(host: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket without any library behind it, which does what we tell it and nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
    writer.write(handshake(host))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    assert b" 101 " in head
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    return reader, writer


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


async def close_code(reader: asyncio.StreamReader) -> int:
    """The code with which the other end closes a raw WebSocket."""
    async with asyncio.timeout(PATIENCE):
        while True:
            head = await reader.readexactly(2)
            length = head[1] & 0x7F
            if length == 126:
                length = int.from_bytes(await reader.readexactly(2), "big")
            data = await reader.readexactly(length)
            if head[0] & 0x0F == Opcode.CLOSE:
                return int.from_bytes(data[:2], "big")


# -- who is let in ----------------------------------------------------------------------------------------------


async def test_the_token_in_the_path_lets_a_peer_in() -> None:
    async with listening(echo) as host, stock.connect(host.url, additional_headers={"X-Who": "me"}) as peer:
        await peer.send('{"type":"acp.message"}')
        assert await asyncio.wait_for(peer.recv(), PATIENCE) == '{"type":"acp.message"}'
        _, incoming = await host.came.get()
        assert incoming.binding == "ws"
        assert incoming.remote == "127.0.0.1"
        assert incoming.headers["x-who"] == "me"


@pytest.mark.parametrize("path", ["tok_0000000000000000", "", f"{TOKEN}x", TOKEN[:-1], f"x/{TOKEN}"])
async def test_a_wrong_token_is_told_after_the_upgrade_and_closed_normally(path: str) -> None:
    async with listening(echo) as host:
        headers = {"X-ACP-Token": TOKEN}  # no reference reads it, and neither do we
        async with stock.connect(f"ws://{host.address}/{path}", additional_headers=headers) as peer:
            assert json.loads(await asyncio.wait_for(peer.recv(), PATIENCE)) == {
                "type": "error",
                "code": "invalid_token",
            }
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(peer.recv(), PATIENCE)
            assert peer.close_code == 1000
        assert host.came.empty()
        assert host.listener.refused == 1


async def test_web_pages_of_others_are_refused_and_programs_are_not() -> None:
    async with listening(echo) as host:
        with pytest.raises(InvalidStatus) as refused:
            await stock.connect(host.url, origin="https://elsewhere.example")
        assert refused.value.response.status_code == 403
        with pytest.raises(InvalidStatus):  # a name that was rebound to this address
            await stock.connect(
                host.url, origin="http://rebound.example", additional_headers={"Host": "rebound.example"}
            )
        async with stock.connect(host.url, origin=f"http://{host.address}"):
            await host.channel()
        async with stock.connect(host.url, additional_headers={"Host": "a.tunnel.example"}):
            await host.channel()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * 9000 + b"\r\n\r\n", b"431"),
        (b"nonsense\r\n\r\n", b""),
        (b"\x16\x03\x01" + b"\0" * 20_000, b""),
    ],
)
async def test_what_is_no_websocket_gets_an_answer_or_none_and_is_gone(request_: bytes, status: bytes) -> None:
    async with listening(echo) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        writer.write(request_)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            said = await asyncio.wait_for(reader.read(), PATIENCE)
        assert said[9:12] == status
        writer.close()
        async with stock.connect(host.url):
            await host.channel()


async def test_strangers_who_say_nothing_do_not_keep_others_out() -> None:
    limits = ListenLimits(strangers=5, stranger_seconds=60.0)
    async with listening(echo, limits=limits) as host:
        knocking = [await asyncio.open_connection("127.0.0.1", host.listener.port) for _ in range(20)]
        async with stock.connect(host.url) as peer:
            await peer.send("{}")
            assert await asyncio.wait_for(peer.recv(), PATIENCE) == "{}"
        assert host.listener.refused == 16  # the oldest, for each that came when there were five
        for reader, writer in knocking[:15]:
            with contextlib.suppress(ConnectionResetError):
                assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 503 ")
            writer.close()
        for _, writer in knocking[15:]:
            writer.close()


@pytest.mark.parametrize("how", [listen_ws, listen_tcp])
async def test_a_stranger_has_a_short_time(how: Callable[..., Any]) -> None:
    async with listening(echo, how=how, limits=ListenLimits(stranger_seconds=0.05)) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()


async def test_many_peers_that_connect_at_once_are_all_taken() -> None:
    many_at_once = 200
    async with listening(echo) as host:
        peers = [socket.create_connection(("127.0.0.1", host.listener.port)) for _ in range(many_at_once)]
        try:
            for one in peers:  # all have asked before the host's loop has its next turn
                one.sendall(handshake(host))
            for _ in peers:
                await host.channel()
            assert (host.listener.refused, host.listener.connections) == (0, many_at_once)
            for one in peers:
                assert one.recv(12) == b"HTTP/1.1 101"
        finally:
            for one in peers:
                one.close()


@pytest.mark.parametrize("how", [listen_ws, listen_tcp])
async def test_more_connections_than_allowed_are_not_taken_and_get_an_answer(how: Callable[..., Any]) -> None:
    hello = json.dumps({"type": "acp.hello", "token": TOKEN}).encode() + b"\n"
    async with listening(echo, how=how, limits=ListenLimits(connections=2)) as host:
        first = handshake(host) if how is listen_ws else hello
        taken = [await asyncio.open_connection("127.0.0.1", host.listener.port) for _ in range(2)]
        for _, writer in taken:
            writer.write(first)
            await host.channel()
        reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        writer.write(first)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 503 ") if how is listen_ws else b"too_many_connections" in answer
        assert (host.listener.connections, host.listener.refused) == (2, 1)
        for _, open_ in [*taken, (reader, writer)]:
            open_.close()


async def test_when_a_peer_leaves_the_next_one_is_taken() -> None:
    async with listening(echo, limits=ListenLimits(connections=2)) as host:
        async with stock.connect(host.url), stock.connect(host.url):
            with pytest.raises(InvalidStatus):
                await stock.connect(host.url)
            assert host.listener.connections == 2
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                await (await host.channel()).ended.wait()
        async with stock.connect(host.url):
            await host.channel()


# -- what comes through -----------------------------------------------------------------------------------------


async def test_all_frames_that_came_are_given_together_and_in_order() -> None:
    async with listening() as host:
        _, writer = await raw_websocket(host)
        channel = await host.channel()
        writer.write(b"".join(masked(Opcode.TEXT, b'{"n":%d}' % n) for n in range(500)))
        found = await frames_of(channel, 1)
        assert len(found) > 100
        found += await frames_of(channel, 500 - len(found))
        assert found == [b'{"n":%d}' % n for n in range(500)]
        writer.close()
        assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
        assert await channel.receive() == []


async def test_frames_of_every_size_go_both_ways() -> None:
    sizes = [0, 1, 125, 126, 127, 65535, 65536, 200_000, 1024 * 1024]
    async with listening(echo, max_bytes=1024 * 1024) as host, stock.connect(host.url, max_size=None) as peer:
        for size in sizes:
            text = "é" * (size // 2) + "x" * (size % 2)
            await peer.send(text)
            assert await asyncio.wait_for(peer.recv(), PATIENCE) == text


FRAMES = st.lists(
    st.tuples(
        st.sampled_from(["text", "fragments", "binary", "ping", "pong"]),
        st.binary(max_size=300).map(lambda data: data.hex().encode()),
    ),
    max_size=12,
)


@many(150)
@given(FRAMES, st.data())
def test_text_comes_through_whatever_is_between_and_wherever_it_is_cut(
    frames: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    wire = b""
    for kind, payload in frames:
        if kind == "text":
            wire += masked(Opcode.TEXT, payload)
        elif kind == "binary":
            wire += masked(Opcode.BINARY, payload)
        elif kind == "fragments":
            half = len(payload) // 2
            wire += masked(Opcode.TEXT, payload[:half], fin=False) + masked(Opcode.PING, b"between")
            wire += masked(Opcode.CONT, payload[half:])
        else:
            wire += masked(Opcode.PING if kind == "ping" else Opcode.PONG, payload[:125])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))

    async def feed() -> tuple[list[bytes], int]:
        end = WebSocket(ServerProtocol(state=State.OPEN, max_size=LIMIT), LIMIT)
        end.opened()
        for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            piece = wire[start:stop]
            end.get_buffer(-1)[: len(piece)] = piece
            end.buffer_updated(len(piece))
        end.abort()
        end.connection_lost(None)
        found = []
        while more := await end.receive():
            found += more
        return found, end.ignored

    found, ignored = asyncio.run(feed())
    assert found == [payload for kind, payload in frames if kind in ("text", "fragments")]
    assert ignored == sum(kind == "binary" for kind, _ in frames)


async def test_arrays_numbers_and_nonsense_are_frames_like_any_other_here() -> None:
    async with listening() as host, stock.connect(host.url) as peer:
        for text in ("[1]", "7", "nonsense", "\x00"):
            await peer.send(text)
        assert await frames_of(await host.channel(), 4) == [b"[1]", b"7", b"nonsense", b"\x00"]


async def test_binary_frames_are_counted_and_disturb_nothing() -> None:
    async with listening() as host, stock.connect(host.url) as peer:
        await peer.send(b"\x00\x01")
        await peer.send([b"in ", b"pieces"])
        await peer.send('{"after":1}')
        channel = await host.channel()
        assert await frames_of(channel, 1) == [b'{"after":1}']
        assert channel.ignored == 2


async def test_a_ping_is_answered_after_what_was_sent_before() -> None:
    async with listening() as host:
        reader, writer = await raw_websocket(host)
        channel = await host.channel()
        channel.send(b'{"first":1}')
        writer.write(masked(Opcode.PING, b"hi"))
        answer = await asyncio.wait_for(reader.readexactly(2 + 11 + 2 + 2), PATIENCE)
        assert answer == b'\x81\x0b{"first":1}\x8a\x02hi'
        writer.close()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (masked(Opcode.TEXT, b"x" * (LIMIT + 1)), 1009),
        (masked(Opcode.BINARY, b"x" * (LIMIT + 1)), 1009),
        (masked(Opcode.TEXT, b"x" * LIMIT, fin=False) + masked(Opcode.CONT, b"xx"), 1009),
        (b"\x81\xff" + b"\x7f" * 8, 1009),
        (Frame(Opcode.TEXT, b"{}").serialize(mask=False), 1002),
        (masked(Opcode.CONT, b"{}"), 1002),
        (b"\xf1\x80\0\0\0\0", 1002),
        (b"\x83\x80\0\0\0\0", 1002),
        (masked(Opcode.TEXT, b"{", fin=False) + masked(Opcode.TEXT, b"}"), 1002),
    ],
    ids=[
        "long text", "long binary", "long in pieces", "endless", "not masked", "begins in the middle", "reserved bits",
        "reserved kind", "text inside of text",
    ],
)  # fmt: skip
async def test_what_breaks_the_rules_closes_that_connection_and_no_other(sent: bytes, code: int) -> None:
    async with listening(echo) as host, stock.connect(host.url) as other:
        await host.channel()
        reader, writer = await raw_websocket(host)
        rude = await host.channel()
        writer.write(masked(Opcode.TEXT, b"{}") + sent)
        assert await close_code(reader) == code
        writer.close()
        await asyncio.wait_for(rude.ended.wait(), PATIENCE)
        assert rude.why
        await other.send("still here")
        assert await asyncio.wait_for(other.recv(), PATIENCE) == "still here"


async def test_closing_sends_what_is_queued_and_says_goodbye() -> None:
    async def say(channel: Channel, incoming: Incoming) -> None:
        for n in range(100):
            channel.send(b"%d" % n)

    async with listening(say) as host, stock.connect(host.url) as peer:
        assert [await asyncio.wait_for(peer.recv(), PATIENCE) for _ in range(100)] == [str(n) for n in range(100)]
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(peer.recv(), PATIENCE)
        assert peer.close_code == 1000


async def test_an_error_while_serving_closes_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(channel: Channel, incoming: Incoming) -> None:
        await channel.receive()
        raise ValueError("on purpose")

    async with listening(breaks) as host, stock.connect(host.url) as one, stock.connect(host.url) as other:
        await one.send("{}")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(one.recv(), PATIENCE)
        assert other.state is State.OPEN
    assert "on purpose" in caplog.text
    assert TOKEN not in caplog.text


# -- rude peers -------------------------------------------------------------------------------------------------


async def test_a_peer_that_stops_reading_makes_only_its_own_sender_wait() -> None:
    async with listening() as host:
        reader, writer = await raw_websocket(host)
        channel = await host.channel()
        sent = 0
        frame = b"x" * 60_000
        async with asyncio.timeout(PATIENCE):
            while True:
                channel.send(frame)
                sent += 1
                draining = asyncio.ensure_future(channel.drain())
                done, _ = await asyncio.wait({draining}, timeout=0.2 if sent > 30 else None)
                if not done:
                    break
        async with stock.connect(host.url) as peer:
            other = await host.channel()
            other.send(b"quick")
            await other.drain()
            assert await asyncio.wait_for(peer.recv(), PATIENCE) == "quick"
        assert not draining.done()
        got = await asyncio.wait_for(reader.readexactly(sent * (len(frame) + 4)), PATIENCE)
        assert got[:4] == b"\x81\x7e\xea\x60"
        await asyncio.wait_for(draining, PATIENCE)
        writer.close()


async def test_who_stops_reading_for_good_is_left_when_much_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_MOST", 2 * 1024 * 1024)
    async with listening() as host:
        _, writer = await raw_websocket(host)
        channel = await host.channel()
        for _ in range(2000):  # a sender that does not wait, as none should be
            channel.send(b"x" * 60_000)
        await asyncio.wait_for(channel.ended.wait(), PATIENCE)
        assert channel.why == "it did not read what was sent to it"
        await asyncio.wait_for(channel.drain(), PATIENCE)
        writer.close()


async def test_a_peer_that_is_silent_even_to_pings_is_gone() -> None:
    async with listening(limits=ListenLimits(ping_every=0.05, pong_within=0.05)) as host:
        _, writer = await raw_websocket(host)
        channel = await host.channel()
        assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
        assert "nothing came" in channel.why
        writer.close()


async def test_a_peer_that_answers_pings_stays() -> None:
    async with listening(echo, limits=ListenLimits(ping_every=0.02, pong_within=0.5)) as host:
        reader, writer = await raw_websocket(host)
        for _ in range(20):
            assert await asyncio.wait_for(reader.readexactly(2), PATIENCE) == b"\x89\x00"
            writer.write(masked(Opcode.PONG, b""))
        writer.write(masked(Opcode.TEXT, b"{}"))
        async with asyncio.timeout(PATIENCE):
            while (await reader.readexactly(2))[0] != 0x81:
                pass
        writer.close()


async def test_what_nobody_takes_is_not_read_either() -> None:
    async with listening() as host:
        _, writer = await raw_websocket(host)
        channel = await host.channel()
        piece = masked(Opcode.TEXT, b"x" * 60_000)
        written = 0
        stuck = False
        while not stuck:
            writer.write(piece)
            written += 1
            assert written < 1000  # buffers of both kernels, and some of ours
            stuck = not (await asyncio.wait({asyncio.ensure_future(writer.drain())}, timeout=0.5))[0]
        found = await frames_of(channel, written)
        assert len(found) == written
        writer.close()


async def test_a_million_tiny_frames_come_through_and_hold_nobody_up() -> None:
    count = 1_000_000
    async with listening() as host, stock.connect(host.url) as other:
        channel = await host.channel()
        _, writer = await raw_websocket(host)
        flooded = await host.channel()
        echoing = asyncio.ensure_future(echo(channel, Incoming("", {}, "ws")))
        delays: list[float] = []

        async def take() -> int:
            taken = 0
            while taken < count:
                frames = await flooded.receive()
                assert frames
                taken += len(frames)
            return taken

        async def flood() -> None:
            piece = masked(Opcode.TEXT, b"{}") * 10_000
            for _ in range(count // 10_000):
                writer.write(piece)
                await writer.drain()

        flooding = asyncio.gather(take(), flood())
        while not flooding.done():
            asked = time.process_time()  # of this process, in which both ends run: others are busy too
            await other.send("?")
            await asyncio.wait_for(other.recv(), PATIENCE)
            delays.append(time.process_time() - asked)
        assert (await flooding)[0] == count
        assert len(delays) > 10
        assert sorted(delays)[len(delays) * 9 // 10] < 0.5
        echoing.cancel()
        writer.close()


# -- lines over TCP ---------------------------------------------------------------------------------------------


HELLO = json.dumps({"type": "acp.hello", "token": TOKEN}).encode() + b"\n"


async def test_the_first_line_of_a_tcp_connection_lets_a_peer_in() -> None:
    async with listening(echo, how=listen_tcp) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        writer.write(HELLO + b'{"n":1}\n{"n":')
        assert await asyncio.wait_for(reader.readline(), PATIENCE) == b'{"n":1}\n'
        writer.write(b"2}\r\n")
        assert await asyncio.wait_for(reader.readline(), PATIENCE) == b'{"n":2}\n'
        _, incoming = await host.came.get()
        assert incoming.binding == "tcp"
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"acp.hello","token":"tok_0000000000000000"}',
        b'{"type":"acp.hello"}',
        b'{"type":"acp.agent_card","card":{}}',
        b'{"type":"acp.hello","token":7}',
        b"nonsense",
        b"[]",
        b"\xff\xfe",
        b"x" * (LIMIT + 1),
        b"GET / HTTP/1.1",
    ],
)
async def test_another_first_line_is_turned_down(line: bytes) -> None:
    async with listening(echo, how=listen_tcp) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        writer.write(line + b"\n")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b'{"type":"error","code":"invalid_token"}\n'
        assert host.came.empty()
        writer.close()


async def test_a_line_that_is_too_long_ends_nothing() -> None:
    async with listening(how=listen_tcp) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        writer.write(HELLO + b"x" * (LIMIT + 1) + b"\n{}\n")
        long, after = await frames_of(await host.channel(), 2)
        assert type(long) is TooLong
        assert after == b"{}"
        writer.close()


async def test_a_million_tiny_lines_come_through() -> None:
    count = 1_000_000
    async with listening(how=listen_tcp) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
        writer.write(HELLO)
        channel = await host.channel()

        async def flood() -> None:
            for _ in range(count // 10_000):
                writer.write(b"{}\n" * 10_000)
                await writer.drain()

        found, _ = await asyncio.gather(frames_of(channel, count), flood())
        assert len(found) == count
        writer.close()


async def test_a_listener_that_closes_ends_its_connections_and_frees_its_port() -> None:
    host = Host(echo)
    make = {"check_token": lambda token: same_token(token, TOKEN), "max_bytes": LIMIT}
    host.listener = await listen_ws("127.0.0.1", 0, host.connected, **make)
    async with stock.connect(host.url) as peer:
        await host.channel()
        await asyncio.wait_for(host.listener.close(), PATIENCE)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(peer.recv(), PATIENCE)
    again = await listen_ws("127.0.0.1", host.listener.port, host.connected, **make)
    assert again.port == host.listener.port
    await again.close()


async def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError) as refused:
            await listen_ws(
                "127.0.0.1", taken.getsockname()[1], Host().connected, check_token=lambda _: True, max_bytes=LIMIT
            )
        assert os.strerror(refused.value.errno or 0).lower() in str(refused.value).lower()
