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


@contextlib.asynccontextmanager
async def answering(answer: Answers) -> AsyncIterator[Server]:
    """A server that answers each request, whole, with what the function makes of it."""
    server, open_ = Server(), dict[asyncio.StreamWriter, asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_[writer] = asyncio.current_task()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(sizes[0].split(b":")[1])) if sizes else b""
                server.asked.append(head + body)
                writer.write(answer(head + body))
                await writer.drain()
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
