"""A node of the peer protocol over HTTP and its event streams. Knows nothing of our code.

Tasks, parts, contexts and events are those of the document. What it leaves open is said in members beside its own: the
schemas of a skill, what a task that waits asks (`question`), and code, transience and details of an error
(`error_info`). What is asked in plain words is asked as the document has it, in a message. Files are offered by their
address.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import sys
import uuid
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[1]))

import behaviours as does
import web

Json = dict[str, Any]

ENDED = ("completed", "failed", "canceled")
CHOICE = {"type": "object", "properties": {"choice": {"enum": [id_ for id_, *_ in does.CHOICES]}}}
CARD: Json = {
    "name": "matrix", "acp_version": "2.47.0", "transport_modes": ["p2p"], "extensions": [],
    "skills": [
        {"id": "talker-peer", "name": "talker-peer", "description": does.TALKER},
        {
            "id": "typed-peer", "name": "typed-peer", "description": does.TYPED,
            "input_schema": does.NUMBERS, "output_schema": does.TOTAL,
        },
    ],
    "capabilities": {
        "streaming": True, "input_required": True, "part_types": ["text", "file", "data"], "context_id": True,
        "max_msg_bytes": 1048576, "supported_transports": ["http"], "task_delegation": True, "task_chunks": True,
    },
    "identity": None, "trust": {"scheme": "none", "enabled": False}, "auth": {"schemes": ["none"]},
}  # fmt: skip

contexts: dict[str, dict[str, str]] = {}
tasks: dict[str, Task] = {}
counted = itertools.count(1)


class Task:
    """One task, and what its agent may do."""

    def __init__(self, body: Json, request: Request) -> None:
        self.body, self.address = body, str(request.base_url)
        self.id = body.get("task_id") or f"task_{uuid.uuid4().hex[:12]}"
        self.state, self.made = "submitted", _now()
        self.more: Json = {}  # what the task tells beside its state
        self.parts: list[Json] = (body.get("input") or body)["parts"]
        self.said: list[Json] = [{"type": "text", "content": ""}]
        self.feed = web.Feed()
        self.answer: asyncio.Future[list[Json]] | None = None
        context = body.get("context_id")
        self.memory = {} if context is None else contexts.setdefault(context, {})
        self.files = [
            {"name": part.get("filename"), "media_type": part.get("media_type"), "url": part["url"]}
            for part in self.parts
            if part["type"] == "file"
        ]
        self.data = [part["content"] for part in self.parts if part["type"] == "data"]
        self.heard = {"metadata": body.get("metadata"), **web.trace_of(body), **web.trace_of(request.headers)}
        self.task = asyncio.ensure_future(self.work())

    async def work(self) -> None:
        await self.tell("status", state="submitted")
        await self.move("working")
        try:
            if self.body.get("skill_id") == "typed-peer":
                for value in does.sums(self.data[0]["numbers"]):
                    self.said = [{"type": "data", "content": value}]
                    await self.tell("artifact", artifact={"parts": self.said, "append": False, "last_chunk": False})
            else:
                text = "".join(part["content"] for part in self.parts if part["type"] == "text")
                await does.talk(text, self)
        except Exception as broken:
            error = does.failure_of(broken)
            told = {"code": error.code, "message": error.message, "transient": error.transient}
            await self.move("failed", error=error.message, error_info={**told, "details": error.details})
        except asyncio.CancelledError:
            await self.move("canceled")
        else:
            await self.tell("artifact", artifact={"parts": self.said, "append": False, "last_chunk": True})
            self.more = {"artifact": {"parts": self.said}}
            await self.move("completed")

    async def tell(self, type_: str, **members: Any) -> None:
        event = {"type": type_, "ts": _now(), "seq": next(counted), "task_id": self.id, **members}
        await self.feed.put({"status": "acp.task.status", "artifact": "acp.task.artifact"}.get(type_, ""), event)

    async def move(self, state: str, **more: Any) -> None:
        if self.state not in ENDED:
            self.state, self.more = state, {**self.more, **more}
            await self.tell("status", state=state, **more)

    # -- for the agent ------------------------------------------------------------------------------------

    async def say(self, text: str) -> None:
        self.said[0]["content"] += text
        piece = {"parts": [{"type": "text", "content": text}], "append": True, "last_chunk": False}
        await self.tell("artifact", artifact=piece)

    async def give(self) -> None:
        name, media_type, _ = does.FILE_OUT
        file = {"type": "file", "url": f"{self.address}files/{name}", "media_type": media_type, "filename": name}
        self.said += [file, {"type": "data", "content": does.DATA_OUT}]

    async def wait_for(self, message: str, **question: Any) -> list[Json]:
        self.answer = asyncio.get_running_loop().create_future()
        said = [{"type": "text", "content": message}]
        await self.tell("message", message_id=f"msg_{uuid.uuid4().hex[:12]}", role="agent", parts=said)
        if question:
            id_ = uuid.uuid4().hex
            await self.move("input_required", question={"id": id_, "prompt": message, "payload": {}, **question})
        else:
            await self.move("input_required")
        given = await self.answer
        self.more.pop("question", None)
        await self.move("working")
        return given

    async def choose(self) -> str:
        options = [{"id": id_, "label": label, "kind": kind} for id_, label, kind in does.CHOICES]
        schema = {**CHOICE, "required": ["choice"]}
        given = await self.wait_for(does.MAY_I, type="choose", answer_schema=schema, options=options)
        return str(_answer(given)["choice"])

    async def form(self) -> Json:
        return dict(_answer(await self.wait_for(does.WHO, type="form", answer_schema=does.PERSON)))

    async def want(self, what: str) -> Any:
        prompt, schema = does.WANTED[what]
        return _answer(await self.wait_for(prompt, type=what, answer_schema=schema))

    async def ask(self) -> str:
        return "".join(part["content"] for part in await self.wait_for(does.WHAT) if part["type"] == "text")

    # -- for the wire -------------------------------------------------------------------------------------

    def told(self) -> Json:
        return {
            "id": self.id, "status": self.state, "created_at": self.made, "updated_at": _now(),
            "input": {"parts": self.parts}, **self.more,
        }  # fmt: skip


def _answer(given: list[Json]) -> Any:
    return next(part["content"]["answer"] for part in given if part["type"] == "data")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def _refused(status: int, code: str, why: str) -> Response:
    return JSONResponse({"ok": False, "error_code": code, "error": why}, status)


async def card(request: Request) -> Response:
    return JSONResponse({**CARD, "timestamp": _now()})


async def status(request: Request) -> Response:
    return JSONResponse({"acp_version": CARD["acp_version"], "connected": True})


async def file(request: Request) -> Response:
    return Response(does.FILE_OUT[2], media_type=does.FILE_OUT[1])


async def create(request: Request) -> Response:
    body = await request.json()
    task = tasks.get(body.get("task_id"))
    if task is None:
        task = Task(body, request)
        tasks[task.id] = task
    return JSONResponse({"ok": True, "task": task.told()}, 201)


async def send(request: Request) -> Response:
    body = await request.json()
    task = tasks.get(body.get("task_id"))
    if task is None:
        return _refused(404, "ERR_NOT_FOUND", "there is no such task")
    return _continue(task, body)


def _continue(task: Task, body: Json) -> Response:
    if task.state != "input_required" or task.answer is None or task.answer.done():
        return _refused(409, "ERR_INVALID_REQUEST", f"the task waits for nothing: it is {task.state}")
    task.answer.set_result(body["parts"])
    return JSONResponse({"ok": True, "message_id": body.get("message_id"), "task": task.told()})


async def on_task(request: Request) -> Response:
    id_, _, what = request.path_params["rest"].partition(":")
    task = tasks.get(id_)
    if task is None:
        return _refused(404, "ERR_NOT_FOUND", "there is no such task")
    match request.method, what:
        case "GET", "":
            return JSONResponse(task.told())
        case "GET", "subscribe":
            after = int(request.headers.get("last-event-id", 0))
            stream = task.feed.read(after, lambda _, event: event.get("state") in ENDED)
            return StreamingResponse(stream, media_type="text/event-stream")
        case "POST", "continue":
            return _continue(task, await request.json())
        case "POST", "cancel":
            await task.move("cancelling")
            task.task.cancel()
            return JSONResponse({"ok": True, "task_id": task.id, "status": task.state})
    return _refused(404, "ERR_NOT_FOUND", "there is no such operation")


app = Starlette(
    routes=[
        Route("/.well-known/acp.json", card),
        Route("/status", status),
        Route("/files/{name}", file),
        Route("/tasks", create, methods=["POST"]),
        Route("/tasks/{rest}", on_task, methods=["GET", "POST"]),
        Route("/message:send", send, methods=["POST"]),
    ]
)

if __name__ == "__main__":
    web.serve(app)
