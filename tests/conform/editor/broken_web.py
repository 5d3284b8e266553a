"""The server of `by_hand.py` over Streamable HTTP and WebSocket, that can break one rule on purpose: see `DEFECTS`.

`python broken_web.py [DEFECT]` prints its address. With `no-socket` it has no WebSocket, which is no defect.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

sys.path.insert(0, str(Path(__file__).parent))
from by_hand import Connection, Message, Session

DEFECTS = {
    "batch-is-bad": "answers a batch with 400",
    "any-content": "takes a body of any content type",
    "drops-unread": "loses what is to be sent before its stream is opened",
    "one-stream": "sends everything on the stream of the connection",
    "keeps-streams": "leaves the streams open when the connection is deleted",
    "open-socket": "refuses foreign pages by HTTP, and lets them open a WebSocket",
    "socket-first": "opens sessions on a WebSocket before initialize",
}
NAMES = ("acp-connection-id", "acp-session-id")


class Client:
    """One connection over HTTP: what is sent waits in queues, one for each stream."""

    def __init__(self, defect: str | None, sessions: dict[str, Session]) -> None:
        self.defect = defect
        self.queues: dict[str | None, asyncio.Queue[Any]] = {}
        self.read: set[str | None] = set()  # streams that somebody reads
        self.asked: dict[Any, str | None] = {}  # requests: session
        self.first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.inner = Connection(self.emit, sessions, defect)

    def emit(self, frame: Message) -> None:
        if not self.first.done():
            self.first.set_result(frame)
            return
        told = frame.get("params")
        session = told.get("sessionId") if told else self.asked.pop(frame.get("id"), None)
        if self.defect == "one-stream":
            session = None
        if self.defect != "drops-unread" or session in self.read:
            self.queues.setdefault(session, asyncio.Queue()).put_nowait(frame)

    async def events(self, session: str | None) -> AsyncIterator[bytes]:
        queue = self.queues.setdefault(session, asyncio.Queue())
        while (frame := await queue.get()) is not None:
            yield b"data: " + json.dumps(frame).encode() + b"\n\n"

    def end(self) -> None:
        for queue in self.queues.values():
            queue.put_nowait(None)


class Server:
    def __init__(self, defect: str | None) -> None:
        self.defect = defect
        self.sessions: dict[str, Session] = {}
        self.clients: dict[str, Client] = {}

    async def http(self, request: Request) -> Response:
        if foreign(request):
            return refused(403, "a foreign page")
        connection, session = (request.headers.get(name) for name in NAMES)
        if request.method == "POST":
            return await self.post(request, connection, session)
        if request.method == "GET" and "text/event-stream" not in request.headers.get("accept", ""):
            return refused(406, "this is an event stream")
        if connection is None:
            return refused(400, "no Acp-Connection-Id")
        client = self.clients.get(connection)
        if client is None:
            return refused(404, "no such connection")
        if request.method == "DELETE":
            del self.clients[connection]
            if self.defect != "keeps-streams":
                client.end()
            return Response(status_code=202)
        if session is not None and session not in self.sessions:
            return refused(404, "no such session")
        client.read.add(session)
        return StreamingResponse(client.events(session), media_type="text/event-stream")

    async def post(self, request: Request, connection: str | None, session: str | None) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind != "application/json" and self.defect != "any-content":
            return refused(415, "send application/json")
        body = await request.body()
        try:
            message = json.loads(body)
        except ValueError:
            return refused(400, "no JSON")
        if isinstance(message, list):
            return refused(400 if self.defect == "batch-is-bad" else 501, "no batches here")
        if message.get("method") == "initialize" and connection is None:
            client = Client(self.defect, self.sessions)
            client.inner.frame(body)
            answer = await client.first
            made = uuid.uuid4().hex
            self.clients[made] = client
            return JSONResponse(answer, headers={NAMES[0]: made})
        if connection is None:
            return refused(400, "no Acp-Connection-Id")
        if connection not in self.clients:
            return refused(404, "no such connection")
        params = message.get("params")
        named = params.get("sessionId") if isinstance(params, dict) else None
        if named is not None and session is None:
            return refused(400, "no Acp-Session-Id")
        if named is not None and named not in self.sessions:
            return refused(404, "no such session")
        if "id" in message and "method" in message:
            self.clients[connection].asked[message["id"]] = named
        self.clients[connection].inner.frame(body)
        return Response(status_code=202)

    async def socket(self, websocket: WebSocket) -> None:
        if foreign(websocket) and self.defect != "open-socket":
            await websocket.close(1008)
            return
        await websocket.accept(headers=[(NAMES[0].encode(), uuid.uuid4().hex.encode())])
        out: asyncio.Queue[Any] = asyncio.Queue()
        defect = "before-initialize" if self.defect == "socket-first" else self.defect
        connection = Connection(out.put_nowait, self.sessions, defect)
        writing = asyncio.create_task(self._write(websocket, out))
        begun = False
        try:
            while True:
                told = await websocket.receive()
                if told["type"] == "websocket.disconnect":
                    return
                if told.get("text") is None:
                    continue
                if not begun and '"initialize"' not in told["text"] and self.defect != "socket-first":
                    await websocket.close(1002)
                    return
                begun = True
                connection.frame(told["text"].encode())
        finally:
            writing.cancel()

    async def _write(self, websocket: WebSocket, out: asyncio.Queue[Any]) -> None:
        try:
            while True:
                await websocket.send_text(json.dumps(await out.get()))
        except (WebSocketDisconnect, RuntimeError):
            return


def foreign(request: Request | WebSocket) -> bool:
    return "elsewhere" in request.headers.get("origin", "") or "elsewhere" in request.headers.get("host", "")


def refused(status: int, message: str) -> Response:
    told = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message}}
    return JSONResponse(told, status)


def main(defect: str | None) -> None:
    server = Server(defect)
    methods = ["GET", "POST", "DELETE"]
    routes: list[Any] = [Route("/acp", server.http, methods=methods)]
    if defect != "no-socket":
        routes.append(WebSocketRoute("/acp", server.socket))
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/acp", flush=True)
    config = uvicorn.Config(
        Starlette(routes=routes), log_level="critical", timeout_graceful_shutdown=1, ws_max_size=2**27
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
