"""The client of mounts: the short way and httpx2's send the same, and what is answered reads the same."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from interlingua.transports import calls, plain

Answers = Callable[[bytes], bytes]


class Server:
    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.address = ""
        self.connections = 0
        self._changed = asyncio.Condition()
        self._last: asyncio.StreamWriter | None = None
        self._open = 0

    async def came(self, writer: asyncio.StreamWriter) -> None:
        async with self._changed:
            self._last, self.connections, self._open = writer, self.connections + 1, self._open + 1

    async def went(self) -> None:
        async with self._changed:
            self._open -= 1
            self._changed.notify_all()

    async def told(self, request: bytes) -> None:
        async with self._changed:
            self.asked.append(request)
            self._changed.notify_all()

    async def until(self, requests: int) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.asked) >= requests)

    async def left(self) -> None:
        """Until every client has hung up."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: not self._open)

    def write(self, data: bytes) -> None:
        """Over the newest connection."""
        assert self._last is not None
        self._last.write(data)

    def hang_up(self) -> None:
        assert self._last is not None
        self._last.transport.abort()


@contextlib.asynccontextmanager
async def answering(answer: Answers) -> AsyncIterator[Server]:
    """A server that answers each request, whole, with what the function makes of it."""
    server, open_ = Server(), dict[asyncio.StreamWriter, asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_[writer] = asyncio.current_task()
        await server.came(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(sizes[0].split(b":")[1])) if sizes else b""
                await server.told(head + body)
                writer.write(answer(head + body))
                await writer.drain()
        await server.went()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        server.address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server
        for writer in open_:
            writer.transport.abort()
        await asyncio.gather(*(task for task in open_.values() if task is not None))


def ok(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (lines.encode(), len(body), body)


def lines_of(request: bytes) -> tuple[bytes, set[bytes], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    return first, {b": ".join((line.split(b": ")[0].lower(), line.split(b": ", 1)[1])) for line in headers}, body


async def test_the_short_way_sends_what_httpx2_would(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[str] = []
    send = httpx2.AsyncClient.send

    async def noted(self: httpx2.AsyncClient, request: httpx2.Request, **rest: object) -> httpx2.Response:
        slow.append(str(request.url))
        return await send(self, request, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx2.AsyncClient, "send", noted)
    async with answering(lambda _: ok(b'{"a":1}', "content-type: application/json")) as server:
        for kind in (calls.Client, httpx2.AsyncClient):
            async with kind(
                base_url=server.address + "/base", headers={"X-Key": "k"}, transport=plain.Plain()
            ) as client:
                answers = [
                    await client.post("/runs", json={"b": ["ü", 1]}, headers={"idempotency-key": "once"}),
                    await client.post("/runs", content=b"{}", headers={"x-key": "other"}),
                    await client.post("/runs/1/cancel"),
                    await client.get("/runs/1?x=a%20b"),
                    await client.delete("/runs/1"),
                ]
                assert [(a.status_code, a.json(), a.request.method) for a in answers] == [
                    (200, {"a": 1}, method) for method in ("POST", "POST", "POST", "GET", "DELETE")
                ]
                async with client.stream("GET", "/events", headers={"accept": "text/event-stream"}) as answer:
                    assert [chunk async for chunk in answer.aiter_bytes()] == [b'{"a":1}']
        here, there = server.asked[:6], server.asked[6:]
        for quick, usual in zip(here, there, strict=True):
            asked, wanted = lines_of(quick), lines_of(usual)
            assert (asked[0], asked[2]) == (wanted[0], wanted[2])
            missing = wanted[1] - asked[1]
            assert asked[1] - wanted[1] <= {b"content-length: 0"}
            assert not missing, missing
    assert len(slow) == 6


async def test_a_redirect_is_followed_where_that_is_wanted() -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /there\r\ncontent-length: 0\r\n\r\n"
    async with answering(lambda asked: moved if asked.startswith(b"POST /here") else ok(b"yes")) as server:
        for follows, status in ((True, 200), (False, 307)):
            async with calls.Client(
                base_url=server.address, follow_redirects=follows, transport=plain.Plain()
            ) as client:
                assert (await client.post("/here", json={"a": 1})).status_code == status
        assert lines_of(server.asked[2])[0] == b"POST /there HTTP/1.1"
        assert lines_of(server.asked[2])[2] == b'{"a":1}'


async def test_cookies_are_kept_and_given_back() -> None:
    async with answering(lambda _: ok(b"yes", "set-cookie: taste=sweet")) as server:
        async with calls.Client(base_url=server.address, transport=plain.Plain()) as client:
            await client.get("/")
            await client.get("/")
        assert b"cookie: taste=sweet" not in lines_of(server.asked[0])[1]
        assert b"cookie: taste=sweet" in lines_of(server.asked[1])[1]


async def test_packed_answers_are_unpacked() -> None:
    async with (
        answering(lambda _: ok(gzip.compress(b"much"), "content-encoding: gzip")) as server,
        calls.Client(base_url=server.address, transport=plain.Plain()) as client,
    ):
        assert (await client.get("/")).content == b"much"


async def test_a_header_cannot_end_its_line() -> None:
    async with answering(lambda _: ok(b"yes")) as server:
        async with calls.Client(base_url=server.address, transport=plain.Plain()) as client:
            with pytest.raises(httpx2.LocalProtocolError):
                await client.get("/", headers={"x-name": "a\r\nx-other: b"})
        assert server.asked == []


# -- at once ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def asked_before(answer: Answers) -> AsyncIterator[tuple[Server, calls.Client, calls.Written]]:
    """A client with a connection that is free, and a request to be sent over it. The first request is a ping."""
    async with (
        answering(lambda request: ok(b"pong") if b"/ping" in request else answer(request)) as server,
        calls.Client(base_url=server.address, transport=plain.Plain()) as client,
    ):
        await client.get("/ping")
        written = client.write("POST", "/runs", json={"a": 1})
        assert written is not None
        yield server, client, written


async def test_an_answer_that_comes_at_once_is_given_whole_and_its_connection_is_used_again() -> None:
    async with asked_before(lambda _: ok(b"data: 1\n\n", "Content-Type: text/event-stream")) as (
        server,
        client,
        written,
    ):
        for _ in range(3):
            whole, asked = await client.ask_now(written)
            assert whole is not None
            assert asked is None
            assert (whole.status, whole.is_stream, whole.body) == (200, True, b"data: 1\n\n")
        assert len(server.asked) == 4
        assert server.asked[1] == server.asked[3]
        assert server.connections == 1


async def test_where_no_connection_is_free_nothing_is_sent() -> None:
    async with answering(lambda _: ok(b"x")) as server, calls.Client(transport=plain.Plain()) as client:
        written = client.write("POST", server.address)
        assert written is not None
        assert await client.ask_now(written) == (None, None)
        async with client.answer_of(written) as answer:  # which makes one
            assert await answer.aread() == b"x"
        assert len(server.asked) == 1


async def test_an_answer_whose_rest_is_on_its_way_is_gone_on_with() -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst"
    async with asked_before(lambda _: half) as (server, client, written):
        whole, asked = await client.ask_now(written)
        assert whole is None
        assert asked is not None
        async with asked as answer:
            pieces = aiter(answer.aiter_bytes())
            assert await anext(pieces) == b"first"
            server.write(b" half")
            assert await anext(pieces) == b" half"
            with pytest.raises(StopAsyncIteration):
                await anext(pieces)
        assert await client.ask_now(written) != (None, None)  # the connection is free again
        assert server.connections == 1


async def test_a_server_that_says_nothing_for_a_moment_is_waited_for_in_the_usual_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "A_MOMENT", 0.01)
    async with asked_before(lambda _: b"") as (server, client, written):
        whole, asked = await client.ask_now(written)
        assert whole is None
        assert asked is not None
        server.write(ok(b"later"))
        async with asked as answer:
            assert await answer.aread() == b"later"


@pytest.mark.parametrize(
    "header", ["content-encoding: gzip", "set-cookie: a=b", "location: /elsewhere"]
)  # fmt: skip
async def test_what_httpx2_has_to_look_at_is_left_to_it(header: str) -> None:
    body = gzip.compress(b"packed") if "gzip" in header else b"plain"
    async with asked_before(lambda _: ok(body, header)) as (_, client, written):
        whole, asked = await client.ask_now(written)
        assert whole is None
        assert asked is not None
        async with asked as answer:
            assert await answer.aread() in (b"packed", b"plain")
        assert ("a" in client.cookies) is header.startswith("set-cookie")


async def test_who_is_cancelled_while_nothing_has_come_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "A_MOMENT", 60)
    async with asked_before(lambda _: b"") as (server, client, written):
        asking = asyncio.ensure_future(client.ask_now(written))
        await server.until(2)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.left()


async def test_a_connection_that_breaks_meanwhile_is_told_by_who_goes_on() -> None:
    async with asked_before(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n") as (server, client, written):
        whole, asked = await client.ask_now(written)
        assert whole is None
        assert asked is not None
        server.hang_up()
        with pytest.raises(httpx2.TransportError):
            async with asked as answer:
                await answer.aread()


async def test_a_whole_answer_can_be_read_as_one_that_comes() -> None:
    async with asked_before(lambda _: ok(b"no", "x-why: so").replace(b"200 OK", b"409 Conflict")) as (
        _,
        client,
        written,
    ):
        whole, _ = await client.ask_now(written)
        assert whole is not None
        async with calls.as_asked(written, whole) as answer:
            assert (answer.status_code, answer.headers["x-why"]) == (409, "so")
            assert await answer.aread() == b"no"
            assert answer.request.method == "POST"
