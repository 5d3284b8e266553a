"""An answer over HTTP/1.1 leaves in one write, and nothing waits for a body that comes later."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from interlingua.app.onewrite import OneWriteProtocol

SOON = 20.0
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
ASKED = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Written(asyncio.Transport):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = False
        self.ended = asyncio.Event()

    def write(self, data: Any) -> None:
        self.writes.put_nowait(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self.ended.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    async def next(self) -> bytes:
        async with asyncio.timeout(SOON):
            return await self.writes.get()


def connected(app: Any, silence: int = 60) -> tuple[OneWriteProtocol, Written]:
    config = uvicorn.Config(app, http=OneWriteProtocol, lifespan="off", log_config=None, timeout_keep_alive=silence)
    config.load()
    protocol, transport = OneWriteProtocol(config, ServerState(), {}), Written()
    protocol.connection_made(transport)
    return protocol, transport


async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
    await send(HEAD)
    await send({"type": "http.response.body", "body": b"well"})


async def test_the_head_and_the_body_of_an_answer_are_one_write() -> None:
    protocol, transport = connected(at_once)
    for _ in range(2):
        protocol.data_received(ASKED)
        answer = await transport.next()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nwell")
        assert transport.writes.empty()
    protocol.connection_lost(None)


async def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    more = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(HEAD)
        await more.wait()
        await send({"type": "http.response.body", "body": b"HTTP", "more_body": False})

    protocol, transport = connected(app)
    protocol.data_received(ASKED)
    assert (await transport.next()).endswith(b"\r\n\r\n")
    more.set()
    assert await transport.next() == b"HTTP"
    protocol.connection_lost(None)


async def test_what_was_written_leaves_before_the_connection_closes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": [(b"connection", b"close")]})
        raise RuntimeError("no more")

    protocol, transport = connected(app)
    protocol.data_received(ASKED)
    assert (await transport.next()).startswith(b"HTTP/1.1 204 ")
    assert transport.closed
    protocol.connection_lost(None)


async def test_requests_that_did_not_wait_for_an_answer_are_answered_in_their_order() -> None:
    protocol, transport = connected(at_once)
    protocol.data_received(ASKED * 3)
    for _ in range(3):
        assert (await transport.next()).endswith(b"\r\n\r\nwell")
    assert protocol.server_state.total_requests == 3
    protocol.connection_lost(None)


async def test_a_connection_that_stays_silent_is_closed() -> None:
    protocol, transport = connected(at_once, silence=0)
    protocol.data_received(ASKED)
    await transport.next()
    async with asyncio.timeout(SOON):
        await transport.ended.wait()
    protocol.connection_lost(None)


async def test_a_connection_on_which_an_answer_is_due_is_not_silent() -> None:
    more = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await more.wait()
        await at_once(scope, receive, send)

    protocol, transport = connected(app, silence=0)
    protocol.data_received(ASKED)
    protocol.data_received(ASKED.replace(b"/ ", b"/slow "))
    await transport.next()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not transport.closed
    more.set()
    await transport.next()
    async with asyncio.timeout(SOON):
        await transport.ended.wait()
    protocol.connection_lost(None)
