"""The HTTP API of the hand-written node, with the mistakes that are made there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .broken import Node, Peer, Refused, invalid


class Api:
    """Its HTTP API."""

    def __init__(self, node: Node) -> None:
        self.node = node
        way = self.way
        self.app = Starlette(
            routes=[
                way("GET", "/.well-known/acp.json", self.card), way("PATCH", "/.well-known/acp.json", self.patch),
                way("GET", "/status", self.status), way("GET", "/extensions", self.extensions),
                way("POST", "/message:send", self.send), way("GET", "/message:recv", self.recv),
                way("GET", "/stream", self.stream), way("POST", "/skills/query", self.skills),
                way("GET", "/peers", self.peers), way("POST", "/peers/connect", self.connect),
                way("GET", "/peer/{id}", self.peer), way("POST", "/peer/{id}/send", self.to_peer),
                way("GET", "/tasks", self.tasks), way("POST", "/tasks", self.create),
                way("POST", "/tasks/{id}:cancel", self.cancel), way("POST", "/tasks/{id}:continue", self.go_on),
                way("POST", "/tasks/{id}/continue", self.go_on), way("GET", "/tasks/{id}:subscribe", self.subscribe),
                way("GET", "/tasks/{id}", self.task), way("PUT", "/tasks/{id}", self.put),
            ],
            exception_handlers={Refused: self.refused, HTTPException: self.absent, json.JSONDecodeError: self.garbled},
        )  # fmt: skip

    def way(self, method: str, path: str, handler: Any) -> Route:
        return Route(path, handler, methods=[method])

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return JSONResponse(error.body, error.status)

    async def garbled(self, request: Request, error: Exception) -> Response:
        return await self.refused(request, invalid("the body is no JSON"))

    async def absent(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if self.node.has("errors as pages"):
            return HTMLResponse("<h1>Not Found</h1>", error.status_code)
        code = {} if self.node.has("errors without codes") else {"error_code": "ERR_NOT_FOUND"}
        return JSONResponse({"ok": False, "error": "there is nothing", **code}, error.status_code)

    async def card(self, request: Request) -> Response:
        headers = {"cache-control": "no-cache, no-store", "vary": "Accept", "x-content-type-options": "nosniff"}
        if self.node.has("well-known answers without headers"):
            headers = {}
        card = {**self.node.card(), "limitations": self.node.limitations}
        return JSONResponse({"self": card} if self.node.has("a card that is wrapped") else card, headers=headers)

    async def patch(self, request: Request) -> Response:
        self.node.limitations = (await request.json())["limitations"]
        return JSONResponse({"ok": True})

    async def status(self, request: Request) -> Response:
        return JSONResponse({"ok": True, "started_at": self.node.started})

    async def extensions(self, request: Request) -> Response:
        return JSONResponse({"extensions": self.node.card().get("extensions", [])})

    async def skills(self, request: Request) -> Response:
        body = await request.json()
        found = [{**skill, "match_score": 1.0} for skill in self.node.card()["skills"] if body["query"] in skill["id"]]
        limited = found if self.node.has("no limit of skills") else found[: body.get("limit", 10)]
        return JSONResponse({"ok": True, "skills": limited})

    async def send(self, request: Request) -> Response:
        return JSONResponse(await self.node.send(await request.json()))

    async def recv(self, request: Request) -> Response:
        taken, self.node.inbox = self.node.inbox, []
        return JSONResponse({"messages": taken})

    def streamed(self, task: str | None) -> Response:
        return StreamingResponse(self.node.follow(task), media_type="text/event-stream")

    async def stream(self, request: Request) -> Response:
        return self.streamed(None)

    async def subscribe(self, request: Request) -> Response:
        return self.streamed(self.found(request)["id"])

    # -- peers and tasks ----------------------------------------------------------------------------------

    async def peers(self, request: Request) -> Response:
        return JSONResponse({"peers": [self.node.view(peer) for peer in self.node.peers.values()]})

    async def connect(self, request: Request) -> Response:
        link = (await request.json()).get("link")
        if not isinstance(link, str) or not link.startswith("acp://"):
            raise invalid("link is an acp:// link")
        peer = Peer(f"peer_{len(self.node.peers) + 1:03}", link)
        self.node.peers[peer.id] = peer
        self.node.spawn(self.node.call(peer))
        return JSONResponse({"ok": True, "peer_id": peer.id})

    def known(self, request: Request) -> Peer:
        found = self.node.peers.get(request.path_params["id"])
        if found is None:
            raise Refused(404, "ERR_NOT_FOUND", "there is no such peer")
        return found

    async def peer(self, request: Request) -> Response:
        return JSONResponse(self.node.view(self.known(request)))

    async def to_peer(self, request: Request) -> Response:
        return JSONResponse(await self.node.send(await request.json(), self.known(request)))

    def found(self, request: Request) -> dict[str, Any]:
        found = self.node.tasks.get(request.path_params["id"])
        if found is None:
            raise Refused(404, "ERR_NOT_FOUND", "there is no such task")
        return found

    async def tasks(self, request: Request) -> Response:
        query = request.query_params
        found = [task for task in self.node.tasks.values() if query.get("status") in (None, task["status"])]
        ids = [task["id"] for task in found]
        start = (
            0 if self.node.has("pages that do not go on") else ids.index(query["after"]) + 1 if "after" in query else 0
        )
        size = int(query.get("page_size", 1000))
        page, more = found[start : start + size], start + size < len(found)
        return JSONResponse({"tasks": page, "has_more": more, "next_cursor": page[-1]["id"] if more else None})

    async def create(self, request: Request) -> Response:
        return JSONResponse({"ok": True, "task": await self.node.create(await request.json())}, 201)

    async def task(self, request: Request) -> Response:
        return JSONResponse(self.found(request))

    async def put(self, request: Request) -> Response:
        if self.node.has("no way to change a task"):
            raise Refused(501, "ERR_NOT_FOUND", "PUT is not implemented")
        task = self.found(request)
        await self.node.update(task, await request.json())
        return JSONResponse(task)

    async def cancel(self, request: Request) -> Response:
        return JSONResponse(await self.node.cancel(self.found(request)))

    async def go_on(self, request: Request) -> Response:
        task = self.found(request)
        if task["status"] != "input_required":
            raise invalid(f"the task is {task['status']}")
        await self.node.tell_state(task, "working")
        return JSONResponse({"ok": True, "task": task})


@contextlib.asynccontextmanager
async def serving(defect: str = "") -> AsyncIterator[str]:
    """Such a node on a free port. Gives its address."""
    node = Node(defect)
    config = uvicorn.Config(Api(node).app, lifespan="off", log_config=None, access_log=False, ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", 0))
        await server.startup([listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for one in server.servers:
                one.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
            for job in list(node.jobs):
                job.cancel()
            await asyncio.gather(*node.jobs, *server.server_state.tasks, return_exceptions=True)
