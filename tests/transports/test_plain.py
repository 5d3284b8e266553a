"""The way of mounts to servers without TLS: against a server that says exactly what it is told to say, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from interlingua.transports.http import plain_client

SOON = 20.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Speaks = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Counts its connections, and remembers what it was asked."""

    def __init__(self) -> None:
        self.connections = 0
        self.asked: list[bytes] = []
        self.left = asyncio.Event()  # somebody hung up
        self.address = ""

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(length[0].partition(b":")[2])) if length else b""
        self.asked.append(head + body)
        return head + body


@contextlib.asynccontextmanager
async def serving(speak: Callable[[Server], Speaks]) -> AsyncIterator[Server]:
    made = Server()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        try:
            await speak(made)(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            made.left.set()
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    made.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(SOON):
        yield made


def saying(*answers: bytes) -> Callable[[Server], Speaks]:
    """Each request on a connection gets the next of these; then it hangs up."""

    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in answers:
                await server.request(reader)
                writer.write(answer)
                await writer.drain()
            await reader.read(1)

        return talk

    return speak


def client(**options: float) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=plain_client.Plain(), **options)  # type: ignore[arg-type]


async def test_a_connection_is_used_again_by_the_next_client() -> None:
    async with serving(saying(OK, OK)) as server:
        for _ in range(2):
            async with client() as http:
                answer = await http.post(f"{server.address}/a?b=c", json={"x": 1}, headers={"x-key": "k"})
                assert (answer.status_code, answer.reason_phrase, answer.text) == (200, "OK", "ok")
        assert server.connections == 1
        assert server.asked[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
        assert b"x-key: k\r\n" in server.asked[0]
        assert server.asked[0].endswith(b'\r\n\r\n{"x":1}')


async def test_an_answer_that_nobody_read_is_not_taken_for_the_next() -> None:
    other = b"HTTP/1.1 401 No\r\ncontent-length: 5\r\n\r\nother"
    async with serving(saying(other, OK)) as server, client() as http:
        async with http.stream("GET", server.address) as answer:
            assert answer.status_code == 401
        assert (await http.get(server.address)).text == "ok"
        assert server.connections == 1


async def test_two_requests_at_once_have_a_connection_each() -> None:
    async with serving(saying(OK)) as server, client() as http:
        await asyncio.gather(http.get(server.address), http.get(server.address))
        assert server.connections == 2


async def test_a_server_that_says_close_is_not_used_again() -> None:
    last = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    async with serving(saying(last, OK)) as server, client() as http:
        assert (await http.get(server.address)).text == "ok"
        assert (await http.get(server.address)).text == "ok"
        assert server.connections == 2


async def test_pieces_come_as_they_are_sent() -> None:
    more = asyncio.Event()

    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
            await more.wait()
            writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
            await reader.read(1)

        return talk

    async with serving(speak) as server, client() as http, http.stream("GET", server.address) as answer:
        pieces = answer.aiter_bytes()
        assert await anext(pieces) == b"one"
        more.set()
        assert await anext(pieces) == b"two"
        assert [piece async for piece in pieces] == []


async def test_leaving_in_the_middle_is_seen_at_once_and_letting_it_end_keeps_the_connection() -> None:
    part, rest = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n", b"0\r\n\r\n"
    more = asyncio.Event()

    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await server.request(reader)
            writer.write(part)
            if b"/leave" in asked:
                with contextlib.suppress(ConnectionError):
                    await reader.read(1)
                server.left.set()
                return
            await more.wait()
            writer.write(rest)
            await server.request(reader)
            writer.write(OK)
            await reader.read(1)

        return talk

    async with serving(speak) as server, client() as http:
        async with http.stream("GET", f"{server.address}/leave") as answer:
            assert await anext(answer.aiter_bytes()) == b"one"
        await server.left.wait()
        async with http.stream("GET", f"{server.address}/stay") as answer:
            assert await anext(answer.aiter_bytes()) == b"one"
            plain_client.let_end(answer)
        more.set()
        line = next(iter(plain_client._lines()._lingering))
        ended = asyncio.Event()
        then, line.ended = line.ended, lambda: (then(), ended.set())
        await ended.wait()
        assert (await http.get(server.address)).text == "ok"
        assert server.connections == 2


async def test_an_answer_without_a_length_lasts_as_long_as_its_connection() -> None:
    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

        return talk

    async with serving(speak) as server, client() as http:
        assert (await http.get(server.address)).text == "all of it"


async def test_an_answer_that_only_says_to_wait_is_not_the_answer() -> None:
    async with serving(saying(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)) as server, client() as http:
        assert (await http.get(server.address)).status_code == 200


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"\x00\x01 no HTTP at all\r\n\r\n"]
)
async def test_a_server_that_hangs_up_or_talks_nonsense_is_a_transport_error(said: bytes) -> None:
    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(said)

        return talk

    async with serving(speak) as server, client() as http:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.get(server.address)


async def test_silence_and_closed_doors_are_told_as_httpx2_tells_them() -> None:
    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        return talk

    async with serving(speak) as server, client(timeout=0.05) as http:
        with pytest.raises(httpx2.ReadTimeout):
            await http.get(server.address)
    async with client() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(server.address)


async def test_a_reader_that_does_not_read_makes_the_server_wait() -> None:
    size = 64 * 1024 * 1024

    def speak(server: Server) -> Speaks:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            for _ in range(size // 65536):
                writer.write(bytes(65536))
                if writer.transport.get_write_buffer_size() > 65536:
                    server.left.set()  # it cannot get rid of more
                await writer.drain()
            server.asked.clear()

        return talk

    async with serving(speak) as server, client() as http, http.stream("GET", server.address) as answer:
        await server.left.wait()
        assert server.asked, "it has got rid of everything, though nobody reads"
        assert sum([len(piece) async for piece in answer.aiter_raw()]) == size


async def test_a_header_cannot_smuggle_another() -> None:
    async with serving(saying(OK)) as server, client() as http:
        with pytest.raises(httpx2.LocalProtocolError):
            await http.get(server.address, headers=[(b"x-a", b"1\r\nx-b: 2")])
        assert server.asked == []


async def test_an_environment_with_proxies_is_left_to_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(plain_client.transport(), plain_client.Plain)
    monkeypatch.setenv("all_proxy", "http://proxy.example:3128")
    assert plain_client.transport() is None


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.wfile.write(OK)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("before", [0, 1])
def test_who_asks_while_the_loop_ends_leaves_nothing_behind(before: int) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    told: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        begun = asyncio.Event()

        async def stays() -> None:
            async with client() as http:
                for _ in range(before):
                    await http.get(address)
                try:
                    begun.set()
                    await asyncio.Event().wait()
                finally:
                    told.append((await http.get(address)).text)

        staying = asyncio.ensure_future(stays())
        await begun.wait()
        assert not staying.done()

    asyncio.run(main())
    server.shutdown()
    server.server_close()
    assert told == ["ok"]
    assert asyncio.all_tasks(loops[0]) == set()
