"""The fake server over HTTP: Streamable HTTP with streams that can break, or the older pair. Knows nothing of ours."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.kit.fake_remotes.mcp_server import Message, Server

Kind = Literal["stream", "json", "pair"]


class Stream:
    """What one request is answered with; kept, so that it can be taken up again."""

    def __init__(self, name: str, *, numbered: bool) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.numbered = numbered
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def put(self, *messages: Message) -> None:
        self._loop.call_soon_threadsafe(self._put, messages)

    def _put(self, messages: tuple[Message, ...]) -> None:
        self.messages.extend(messages)
        self._news.set()

    async def read(self, after: int = 0, answers: Any = None) -> AsyncIterator[bytes]:
        place = after
        while True:
            while place < len(self.messages):
                message = self.messages[place]
                place += 1
                if "break" in message:
                    return
                head = f"id: {self.name}.{place}\n" if self.numbered else ""
                yield f"{head}event: message\ndata: {json.dumps(message)}\n\n".encode()
                if answers is not None and message.get("id") == answers and "method" not in message:
                    return
            self._news.clear()
            await self._news.wait()


class Web:
    def __init__(self, kind: Kind, given: Message) -> None:
        self.kind = kind
        self.given = given
        self.server = Server(given, None)
        self.numbered = given.get("numbered", True)
        self.streams: dict[str, tuple[Stream, Any]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []  # method and headers of each
        self.general: Stream | None = None
        self.hanging = False  # it takes what comes, and answers nothing
        self.over = asyncio.Event()
        self.address = ""

    def app(self) -> Starlette:
        if self.kind == "pair":
            return Starlette(routes=[Route("/sse", self.pair), Route("/messages", self.message, methods=["POST"])])
        return Starlette(routes=[Route("/mcp", self.post, methods=["POST"]), Route("/mcp", self.get, methods=["GET"]),
                                 Route("/mcp", self.delete, methods=["DELETE"])])  # fmt: skip

    async def awake(self, message: Message | None = None) -> None:
        """With `hangs`, not after it has taken a run."""
        if self.hanging:
            await self.over.wait()
        self.hanging = message is not None and message.get("method") == "agents/run" and "hangs" in self.given

    async def post(self, request: Request) -> Response:
        self.requests.append(("POST", dict(request.headers)))
        message = await request.json()
        await self.awake(message)
        if self.given.get("key") and request.headers.get("authorization") != f"Bearer {self.given['key']}":
            return Response("who are you?", 401)
        if message.get("method") is None or message.get("id") is None:
            self.server.take(message)
            return Response(status_code=202)
        name = str(len(self.streams))
        stream = Stream(name, numbered=self.numbered)
        self.streams[name] = (stream, message["id"])
        asked = copy.copy(self.server)
        asked.send = stream.put
        asked.take(message)
        headers = {"mcp-session-id": "s1"} if message["method"] == "initialize" else {}
        if self.kind == "json":
            async for _ in stream.read(answers=message["id"]):
                pass
            (answer,) = [m for m in stream.messages if m.get("id") == message["id"] and "method" not in m]
            return JSONResponse(answer, headers=headers)
        return StreamingResponse(
            stream.read(answers=message["id"]), headers=headers, media_type="text/event-stream"
        )  # fmt: skip

    async def get(self, request: Request) -> Response:
        self.requests.append(("GET", dict(request.headers)))
        await self.awake()
        last = request.headers.get("last-event-id")
        if last is None:
            return Response(status_code=405)
        name, _, place = last.partition(".")
        stream, answers = self.streams[name]
        return StreamingResponse(stream.read(int(place) + 1, answers), media_type="text/event-stream")

    async def delete(self, request: Request) -> Response:
        self.requests.append(("DELETE", dict(request.headers)))
        await self.awake()
        return Response(status_code=204)

    async def pair(self, request: Request) -> Response:
        stream = self.general = Stream("all", numbered=False)
        self.server.send = stream.put
        elsewhere = self.given.get("endpoint", "/messages?session_id=1")

        async def events() -> AsyncIterator[bytes]:
            yield f"event: endpoint\ndata: {elsewhere}\n\n".encode()
            async for event in stream.read():
                yield event

        return StreamingResponse(events(), media_type="text/event-stream")

    async def message(self, request: Request) -> Response:
        message = await request.json()
        await self.awake(message)
        self.server.take(message)
        return Response("Accepted", 202)


@contextlib.asynccontextmanager
async def served(kind: Kind, **given: Any) -> AsyncIterator[Web]:
    web = Web(kind, given)
    config = uvicorn.Config(web.app(), port=0, log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    web.address = f"http://127.0.0.1:{port}/{'sse' if kind == 'pair' else 'mcp'}"
    try:
        yield web
    finally:
        web.over.set()
        server.should_exit = server.force_exit = True
        await task
