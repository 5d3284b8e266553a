"""Reaching peers: by WebSocket with and without TLS, by lines over TCP, by the pipes of a process, and when to try
again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import websockets.asyncio.server as stock
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from interlingua.model.errors import Unavailable
from interlingua.protocols.peer.bindings.dial import Backoff, dial, start_process
from interlingua.protocols.peer.bindings.listen import Incoming, listen_tcp, listen_ws
from interlingua.protocols.peer.wire.links import Link, new_token, parse, same_token
from interlingua.server.event_loop import new_event_loop
from interlingua.transports.channel import Channel, TooLong
from tests.kit.certificates import certificate, client_tls, server_tls
from tests.kit.wait_for import PATIENCE

LIMIT = 64 * 1024
TOKEN = new_token()


async def echo(channel: Channel, incoming: Incoming) -> None:
    while frames := await channel.receive():
        for frame in frames:
            channel.send(frame)
        await channel.drain()


def link_to(port: int, scheme: str = "acp", token: str = TOKEN, host: str = "127.0.0.1") -> Link:
    return parse(f"{scheme}://{host}:{port}/{token}")


async def one(channel: Channel) -> bytes:
    [frame] = await asyncio.wait_for(channel.receive(), PATIENCE)
    return frame


def checks(token: str) -> bool:
    return same_token(token, TOKEN)


@contextlib.asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


# -- WebSocket --------------------------------------------------------------------------------------------------


async def test_an_acp_link_is_dialled_as_a_websocket_whose_path_is_the_token() -> None:
    paths: list[str] = []

    async def serve(connection: stock.ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        async for text in connection:
            await connection.send(text)

    async with stock.serve(serve, "127.0.0.1", 0) as server:
        channel = await dial(link_to(server.sockets[0].getsockname()[1]), max_bytes=LIMIT)
        for size in (2, 125, 126, 5000, 66_000):
            channel.send(b"x" * min(size, LIMIT))
        found: list[bytes] = []
        while len(found) < 5:
            found += await asyncio.wait_for(channel.receive(), PATIENCE)
        assert [len(frame) for frame in found] == [2, 125, 126, 5000, LIMIT]
        await channel.close()
        assert await channel.receive() == []
    assert paths == [f"/{TOKEN}"]


async def test_both_ends_of_ours_understand_each_other() -> None:
    listener = await listen_ws("127.0.0.1", 0, echo, check_token=checks, max_bytes=LIMIT)
    channel = await dial(link_to(listener.port), max_bytes=LIMIT)
    sent = [json.dumps({"n": n, "text": "é" * (n % 200)}).encode() for n in range(2000)]
    for frame in sent:
        channel.send(frame)
    await channel.drain()
    found: list[bytes] = []
    while len(found) < len(sent):
        found += await asyncio.wait_for(channel.receive(), PATIENCE)
    assert found == sent
    await channel.close()
    await listener.close()


async def test_ipv6_links_are_dialled() -> None:
    listener = await listen_ws("::1", 0, echo, check_token=checks, max_bytes=LIMIT)
    channel = await dial(link_to(listener.port, host="[::1]"), max_bytes=LIMIT)
    channel.send(b"{}")
    assert await one(channel) == b"{}"
    await channel.close()
    await listener.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_host_is_dialled_on_the_event_loop_of_a_server_too(host: str, new_loop: Any) -> None:
    async def dialled() -> bytes:
        listener = await listen_ws("127.0.0.1", 0, echo, check_token=checks, max_bytes=LIMIT)
        channel = await dial(link_to(listener.port, host=host), max_bytes=LIMIT)
        channel.send(b"{}")
        said = await one(channel)
        await channel.close()
        await listener.close()
        return said

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(dialled()) == b"{}"


async def test_a_frame_in_the_packet_of_the_handshake_is_not_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key"))
        answer = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept_key(key)}\r\n\r\n"  # noqa: E501
        card = Frame(Opcode.TEXT, b'{"type":"acp.agent_card"}').serialize(mask=False)
        half = Frame(Opcode.TEXT, b'{"second":true}').serialize(mask=False)
        writer.write(answer.encode() + card + half[:5])
        await writer.drain()
        await reader.readexactly(1)
        writer.write(half[5:])
        await writer.drain()
        writer.close()

    async with raw_server(serve) as port:
        channel = await dial(link_to(port), max_bytes=LIMIT)
        assert await one(channel) == b'{"type":"acp.agent_card"}'
        channel.send(b"{}")
        assert await one(channel) == b'{"second":true}'
        assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
        await channel.close()


async def test_a_wrong_token_is_told_by_the_first_frame() -> None:
    listener = await listen_ws("127.0.0.1", 0, echo, check_token=checks, max_bytes=LIMIT)
    channel = await dial(link_to(listener.port, token="tok_0000000000000000"), max_bytes=LIMIT)
    assert json.loads(await one(channel)) == {"type": "error", "code": "invalid_token"}
    assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
    await channel.close()
    await listener.close()


async def test_a_frame_that_is_too_large_for_us_ends_the_connection() -> None:
    told: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def serve(connection: stock.ServerConnection) -> None:
        await connection.send("x" * (LIMIT + 1))
        await connection.wait_closed()
        told.set_result(connection.close_code)

    async with stock.serve(serve, "127.0.0.1", 0) as server:
        channel = await dial(link_to(server.sockets[0].getsockname()[1]), max_bytes=LIMIT)
        assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
        assert await asyncio.wait_for(told, PATIENCE) == 1009
        await channel.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "Connection"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "does not speak HTTP"),
        (b"", "hung up"),
        (b"x" * 20_000, "too long"),
    ],
)
async def test_what_is_no_websocket_is_told_in_plain_words(answer: bytes, why: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with raw_server(serve) as port:
        with pytest.raises(ConnectionError, match=why) as refused:
            await dial(link_to(port), max_bytes=LIMIT, timeout=PATIENCE)
    assert f"acp://127.0.0.1:{port}" in str(refused.value)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("scheme", ["acp", "tcp"])
async def test_nobody_at_the_address_is_told_in_plain_words(scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError, match="cannot be reached") as refused:
            await dial(link_to(unused.getsockname()[1], scheme), max_bytes=LIMIT)
    assert TOKEN not in str(refused.value)


async def test_a_name_that_is_nobodys_is_told_in_plain_words() -> None:
    with pytest.raises(ConnectionError, match="cannot be reached"):
        await dial(link_to(7801, host="nobody.invalid"), max_bytes=LIMIT)


async def test_one_that_takes_the_connection_and_says_nothing_is_not_waited_for() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        gone.set()
        writer.close()

    async with raw_server(serve) as port:
        with pytest.raises(ConnectionError, match=r"did not answer within 0\.05 s"):
            await dial(link_to(port), max_bytes=LIMIT, timeout=0.05)
        await asyncio.wait_for(gone.wait(), PATIENCE)


async def test_a_dead_host_is_noticed_by_pings() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key"))
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode()
        )
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    async with raw_server(serve) as port:
        channel = await dial(link_to(port), max_bytes=LIMIT, ping_every=0.05, pong_within=0.05)
        assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
        await channel.close()


async def test_relay_links_are_not_dialled_here() -> None:
    with pytest.raises(ConnectionError, match="directly"):
        await dial(parse(f"acp+ws://127.0.0.1:1/acp/{TOKEN}"), max_bytes=LIMIT)


# -- TLS --------------------------------------------------------------------------------------------------------


async def test_acps_links_are_dialled_with_tls_and_the_certificate_is_checked(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    ours = server_tls(made)
    listener = await listen_ws("127.0.0.1", 0, echo, check_token=checks, max_bytes=LIMIT, tls=ours)
    link = link_to(listener.port, "acps")

    trusting = client_tls(made)
    channel = await dial(link, max_bytes=LIMIT, tls=trusting)
    for n in range(100):
        channel.send(b"%d" % n)
    found: list[bytes] = []
    while len(found) < 100:
        found += await asyncio.wait_for(channel.receive(), PATIENCE)
    assert found == [b"%d" % n for n in range(100)]
    await channel.close()

    with pytest.raises(ConnectionError, match="not trusted"):
        await dial(link, max_bytes=LIMIT)
    with pytest.raises(ConnectionError):
        await dial(link_to(listener.port), max_bytes=LIMIT, timeout=PATIENCE)  # without TLS
    await listener.close()


async def test_frames_that_come_together_over_tls_all_arrive(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    ours = server_tls(made)
    sent = [b'{"n":%d,"x":"%s"}' % (number, b"x" * (number * 37 % 4000)) for number in range(400)]

    async def talk(channel: Channel, _: Incoming) -> None:
        for frame in sent:  # many records, which the other side finds all at once
            channel.send(frame)
            await channel.drain()
        await channel.receive()

    listener = await listen_ws("127.0.0.1", 0, talk, check_token=checks, max_bytes=LIMIT, tls=ours)
    channel = await dial(link_to(listener.port, "acps"), max_bytes=LIMIT, tls=client_tls(made))
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < len(sent):
            await asyncio.to_thread(lambda: None)  # the loop is busy elsewhere: records gather
            found += await channel.receive()
    assert found == sent
    await channel.close()
    await listener.close()


# -- lines over TCP ---------------------------------------------------------------------------------------------


async def test_a_tcp_link_says_hello_first() -> None:
    listener = await listen_tcp("127.0.0.1", 0, echo, check_token=checks, max_bytes=LIMIT)
    channel = await dial(link_to(listener.port, "tcp"), max_bytes=LIMIT)
    channel.send(b'{"n":1}')
    assert await one(channel) == b'{"n":1}'
    await channel.close()
    wrong = await dial(link_to(listener.port, "tcp", "tok_0000000000000000"), max_bytes=LIMIT)
    assert json.loads(await one(wrong)) == {"type": "error", "code": "invalid_token"}
    assert await asyncio.wait_for(wrong.receive(), PATIENCE) == []
    await wrong.close()
    await listener.close()


# -- stdio ------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio
from interlingua.protocols.peer.bindings.dial import stdio_channel

async def main():
    channel = stdio_channel(max_bytes=65536)
    print("this goes to stderr")
    while frames := await channel.receive():
        for frame in frames:
            channel.send(frame)
        await channel.drain()
    await channel.close()

asyncio.run(main())
"""

NOISY = """
import sys
print("Starting up ...", flush=True)
print("[not a frame]", flush=True)
print('{"n":1}', flush=True)
print("x" * 70000, flush=True)
print("{" + " " * 70000 + "}", flush=True)
print('{"n":2}', flush=True)
sys.stdin.read()
"""


async def test_a_process_is_a_peer_by_its_pipes_and_so_are_we_for_the_one_that_started_us() -> None:
    process = await start_process([sys.executable, "-c", CHILD], max_bytes=LIMIT)
    channel = process.channel
    sent = [json.dumps({"n": n}).encode() for n in range(1000)]
    for frame in sent:
        channel.send(frame)
    await channel.drain()
    found: list[bytes] = []
    while len(found) < len(sent):
        more = await asyncio.wait_for(channel.receive(), PATIENCE)
        assert more
        found += more
    assert found == sent
    assert channel.noise == 0
    await channel.close_writing()
    assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
    await asyncio.wait_for(process.end(), PATIENCE)
    assert process.returncode == 0
    assert list(process.tail) == ["this goes to stderr"]


async def test_what_a_process_prints_besides_frames_is_skipped_and_counted() -> None:
    process = await start_process([sys.executable, "-c", NOISY], max_bytes=LIMIT)
    found: list[bytes] = []
    while len(found) < 3:
        found += await asyncio.wait_for(process.channel.receive(), PATIENCE)
    first, long, last = found
    assert (first, last) == (b'{"n":1}', b'{"n":2}')
    assert isinstance(long, TooLong)  # whoever waits for it is told
    assert process.channel.noise == 3
    assert process.channel.first_noise == "Starting up ..."
    await asyncio.wait_for(process.end(), PATIENCE)


async def test_a_process_that_cannot_be_started_is_told() -> None:
    with pytest.raises(Unavailable, match="no-such-command"):
        await start_process(["no-such-command"], max_bytes=LIMIT)


# -- when to try again ------------------------------------------------------------------------------------------


@given(st.integers(), st.floats(0.01, 5.0), st.floats(5.0, 60.0))
def test_waits_grow_to_a_limit_and_differ_by_chance(seed: int, first: float, last: float) -> None:
    backoff = Backoff(first, last, chance=random.Random(seed))
    waits = [backoff.next() for _ in range(80)]
    assert all(0 <= wait <= min(last, first * 2**n) for n, wait in enumerate(waits[:50]))
    assert all(0 <= wait <= last for wait in waits)
    assert len(set(waits)) > 1


def test_only_a_connection_that_lasted_makes_the_next_wait_short() -> None:
    longest: Any = random.Random()
    longest.uniform = lambda low, high: high
    backoff = Backoff(1.0, 30.0, lasting=10.0, chance=longest)
    assert [backoff.next() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.lasted(9.9)
    assert backoff.next() == 30
    backoff.lasted(10.0)
    assert [backoff.next(), backoff.next()] == [1, 2]
