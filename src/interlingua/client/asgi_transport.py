"""Calls an ASGI app in this process as an HTTP client would. Streams arrive piece by piece, as over a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from starlette.types import ASGIApp

_END = None


class _Body(httpx2.AsyncByteStream):
    """The body of a response, as the app sends it. Closing it tells the app that the client has gone."""

    def __init__(self, pieces: asyncio.Queue[bytes | None], task: asyncio.Task[None], gone: asyncio.Event) -> None:
        self._pieces = pieces
        self._task = task
        self._gone = gone

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not _END:
            yield piece
        await self._task

    async def aclose(self) -> None:
        self._gone.set()
        if not self._task.done():
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task


class AsgiTransport(httpx2.AsyncBaseTransport):
    """`root_path`: the path below which the app believes to be served."""

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)  # a reader that is slow slows the app
        started: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = asyncio.get_running_loop().create_future()
        gone, sent = asyncio.Event(), False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.set_result((message["status"], list(message.get("headers", ()))))
            elif message["type"] == "http.response.body":
                if piece := message.get("body", b""):
                    await pieces.put(piece)
                if not message.get("more_body", False):
                    await pieces.put(_END)

        async def serve() -> None:
            try:
                await self._app(_scope(request, self._root_path), receive, send)
            except BaseException as error:
                if not started.done():
                    started.set_exception(error if isinstance(error, Exception) else httpx2.ReadError("cancelled"))
                raise
            finally:
                if not started.done():
                    started.set_exception(httpx2.RemoteProtocolError("the app sent no response"))
                with contextlib.suppress(asyncio.QueueFull):
                    pieces.put_nowait(_END)  # where the app ended in the middle

        task = asyncio.create_task(serve(), name=f"{request.method} {request.url.path}")
        try:
            status, headers = await asyncio.shield(started)
        except BaseException:
            gone.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return httpx2.Response(status, headers=headers, stream=_Body(pieces, task, gone), request=request)


def _scope(request: httpx2.Request, root_path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": root_path + request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": root_path,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 0),
        "server": (request.url.host, request.url.port or 80),
        "state": {},
    }
