"""A fake of the published reference's HTTP API (2.19), with its quirks, as far as a client of it meets them.

What was seen of the reference and is repeated here: the card is wrapped in `self`; no stream numbers its events by
`id`; own messages come back on the stream; a task's stream ends when any task ends, does not tell the end of its own,
and stays open for a task that has ended; the artifact is told after `completed`; there is no /message:recv.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from .reference import Frame, Reference


class ReferenceApi:
    """The API, and its owner's side: what a test does with tasks and messages."""

    def __init__(self, name: str = "RefAgent") -> None:
        self.reference = Reference(name)
        self.sent: list[Frame] = []
        self.tasks: dict[str, Frame] = {}
        self.continued: list[Frame] = []
        self.replies: dict[str, str] = {}  # text → what is replied to it
        self._events: list[Frame] = []
        self._seq = 0
        self._news = asyncio.Condition()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/acp.json", self._card),
                Route("/status", self._status),
                Route("/message:send", self._send, methods=["POST"]),
                Route("/stream", self._stream),
                Route("/tasks", self._create, methods=["POST"]),
                Route("/tasks/{id}:cancel", self._cancel, methods=["POST"]),
                Route("/tasks/{id}:continue", self._continue, methods=["POST"]),
                Route("/tasks/{id}:subscribe", self._subscribe),
                Route("/tasks/{id}", self._task),
            ]
        )

    async def _card(self, request: Request) -> JSONResponse:
        return JSONResponse({"self": self.reference.card(), "peer": None})

    async def _status(self, request: Request) -> JSONResponse:
        return JSONResponse({"acp_version": "2.19.0", "connected": True})

    async def _send(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.sent.append(body)
        told: Frame = {"ok": True, "message_id": body["message_id"], "server_seq": len(self.sent), "task": None}
        shown = {name: body[name] for name in ("message_id", "role", "parts")}
        await self.tell("message", **shown, task_id=None, direction="outbound")
        if not body.get("sync"):
            return JSONResponse(told)
        said = self.replies.get(body["parts"][0]["content"])
        if said is None:
            late = {"ok": False, "error_code": "ERR_TIMEOUT", "error": "reply timeout",
                    "failed_message_id": body["message_id"]}  # fmt: skip
            return JSONResponse(late, 408)
        reply = {"type": "acp.reply", "message_id": Reference.id(), "ts": self.reference.now(), "from": "Peer",
                 "correlation_id": body["message_id"], "content": said, "parts": None}  # fmt: skip
        return JSONResponse({**told, "reply": reply})

    async def _create(self, request: Request) -> JSONResponse:
        body = await request.json()
        if not body.get("role"):
            return JSONResponse({"ok": False, "error_code": "ERR_INVALID_REQUEST", "error": "role is required"}, 400)
        id_ = body["task_id"]
        if id_ not in self.tasks:
            self.tasks[id_] = {"id": id_, "status": "submitted", "payload": body, "artifacts": [], "history": []}
            await self.tell("status", task_id=id_, state="submitted", error=None)
        return JSONResponse({"ok": True, "task": self.tasks[id_]}, 201)

    async def update(self, id_: str, status: str, artifact: Frame | None = None) -> None:
        """What its owner posts to :update."""
        task = self.tasks[id_]
        task["status"] = status
        await self.tell("status", task_id=id_, state=status, error=None)
        if artifact is not None:
            task["artifacts"].append(artifact)
            await self.tell("artifact", task_id=id_, artifact=artifact)

    async def _cancel(self, request: Request) -> JSONResponse:
        id_ = request.path_params["id"]
        await self.update(id_, "cancelling")
        await self.update(id_, "canceled")
        return JSONResponse({"ok": True, "task_id": id_, "status": "cancelling"})

    async def _continue(self, request: Request) -> JSONResponse:
        id_ = request.path_params["id"]
        self.continued.append(await request.json())
        await self.update(id_, "working")
        return JSONResponse({"ok": True, "task": self.tasks[id_]})

    async def _task(self, request: Request) -> JSONResponse:
        task = self.tasks.get(request.path_params["id"])
        return JSONResponse(task) if task is not None else JSONResponse({"error": "task not found"}, 404)

    # -- streams ------------------------------------------------------------------------------------------

    async def tell(self, type_: str, **members: Any) -> None:
        self._seq += 1
        event = {"type": type_, "ts": self.reference.now(), "seq": self._seq, **members}
        async with self._news:
            self._events.append(event)
            self._news.notify_all()

    async def _follow(self, since: int | None) -> AsyncIterator[Frame]:
        place = len(self._events) if since is None else since
        while True:
            async with self._news:
                while len(self._events) <= place:
                    await self._news.wait()
                fresh = self._events[place:]
            for event in fresh:
                place += 1
                yield event

    async def _stream(self, request: Request) -> StreamingResponse:
        since = request.query_params.get("since")

        async def written() -> AsyncIterator[str]:
            yield ": keepalive\n\n"
            async for event in self._follow(int(since) if since else None):
                yield _sse(event)

        return StreamingResponse(written(), media_type="text/event-stream")

    async def _subscribe(self, request: Request) -> StreamingResponse:
        id_ = request.path_params["id"]

        async def written() -> AsyncIterator[str]:
            yield ": keepalive\n\n"
            async for event in self._follow(None):
                if event.get("state") in ("completed", "failed", "canceled"):
                    if event["task_id"] != id_:
                        return  # any task ends
                    continue  # its own end is not told
                if event.get("task_id") == id_:
                    yield _sse(event)

        return StreamingResponse(written(), media_type="text/event-stream")


def _sse(event: Frame) -> str:
    names = {"status": "event: acp.task.status\n", "artifact": "event: acp.task.artifact\n"}
    return f"{names.get(event['type'], '')}data: {json.dumps(event)}\n\n"
