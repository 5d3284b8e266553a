"""A server of CAP: messages are posted, and a task's are streamed as events. Knows nothing of our code.

Messages are those of the document. What it leaves open is said in `metadata` (the thread that tasks share, how a
question can be answered, the code of an error), and in events beside messages: the state of a task, and pieces of its
output.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import re
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

CHOICE = {"type": "object", "properties": {"choice": {"enum": [id_ for id_, *_ in does.CHOICES]}}}
OWN = ("input", "stream", "thread")  # members of a notice's metadata that say how to run the agent


def manifest(id_: str, description: str, **ours: Any) -> Json:
    return {
        "id": id_, "system_prompt": description, "allowed_agents": [], "delegate_rules": {}, "overseer": None,
        "mcp_bindings": [], "interlingua": {"name": id_, "version": "1.0.0", "streams": True, **ours},
    }  # fmt: skip


AGENTS = [
    manifest("talker-cap", does.TALKER),
    manifest("typed-cap", does.TYPED, input=does.NUMBERS, output=does.TOTAL),
]

threads: dict[str, dict[str, str]] = {}
tasks: dict[str, Task] = {}


class Task:
    """One task, and what its agent may do."""

    def __init__(self, notice: Json, headers: Any) -> None:
        self.notice, self.id, self.me = notice, notice["task_id"], notice["recipient_id"]
        self.back = notice["sender_id"]
        self.state, self.output = "running", dict[str, Any]()
        self.error: Json | None = None
        self.attached: list[Json] = []
        self.feed = web.Feed()
        self.question = ""
        self.answer: asyncio.Future[Json] | None = None
        given = notice.get("attachments") or []
        self.files = [_file(one) for one in given if one["type"] == "file"]
        self.data = [one["object"] for one in given if one["type"] == "python_object"]
        metadata = notice.get("metadata") or {}
        self.input: Json = metadata.get("input") or {}
        thread = metadata.get("thread")
        self.memory = {} if thread is None else threads.setdefault(thread, {})
        self.heard: Json = {"metadata": {name: value for name, value in metadata.items() if name not in OWN}}
        self.heard |= {**web.trace_of(metadata), **web.trace_of(headers)}
        self.task = asyncio.ensure_future(self.work())

    async def work(self) -> None:
        await self.feed.put("message", self.notice)
        await self.move("running")
        try:
            if self.me == "typed-cap":
                for number in self.input["numbers"]:
                    await self.feed.put(
                        "delta", {"task_id": self.id, "delta": {"total": number, "seen": [None, number]}}
                    )
                self.output = does.sums(self.input["numbers"])[-1]
            else:
                await does.talk(self.notice["context_summary"], self)
        except Exception as broken:
            error = does.failure_of(broken)
            about = {"code": error.code, "transient": error.transient, "details": error.details}
            await self.fail(502, error.message, about, "failed")
        except asyncio.CancelledError:
            await self.fail(499, "the task was cancelled", {"code": "cancelled"}, "cancelled")
        else:
            said = {"content": self.output.get("text", ""), "attachments": self.attached, "metadata": {"final": True}}
            await self.tell("message", self.back, **said)
            await self.move("succeeded", output=self.output)

    async def fail(self, number: int, why: str, metadata: Json, state: str) -> None:
        await self.tell("error_response", self.back, error_code=number, error_message=why, metadata=metadata)
        self.error = {"error_code": number, "error_message": why, "code": metadata["code"]}
        await self.move(state, error=self.error)

    async def tell(self, type_: str, recipient: str, **members: Any) -> None:
        told = {"type": type_, "task_id": self.id, "sender_id": self.me, "recipient_id": recipient, "timestamp": _now()}
        await self.feed.put("message", {**told, **members})

    async def move(self, state: str, **more: Any) -> None:
        self.state = state
        final = state not in ("running", "waiting")
        await self.feed.put("status", {"task_id": self.id, "status": state, "final": final, **more})

    # -- for the agent ------------------------------------------------------------------------------------

    async def say(self, text: str) -> None:
        self.output["text"] = self.output.get("text", "") + text
        await self.feed.put("delta", {"task_id": self.id, "delta": {"text": text}})

    async def give(self) -> None:
        name, media_type, body = does.FILE_OUT
        address = f"data:{media_type};base64,{base64.b64encode(body).decode()}"
        self.attached = [
            {"type": "file", "path": address, "name": name},
            {"type": "python_object", "object": does.DATA_OUT},
        ]

    async def wait_for(self, message: str, **question: Any) -> Json:
        self.question, self.answer = uuid.uuid4().hex, asyncio.get_running_loop().create_future()
        metadata = {"question": self.question, **question}
        await self.tell("message", "user", content=message, attachments=[], metadata=metadata)
        await self.move("waiting")
        given = await self.answer
        await self.move("running")
        return given

    async def choose(self) -> str:
        options = [{"id": id_, "label": label, "kind": kind} for id_, label, kind in does.CHOICES]
        schema = {**CHOICE, "required": ["choice"]}
        given = await self.wait_for(does.MAY_I, question_type="choose", answer_schema=schema, options=options)
        return str(given["metadata"]["answer"]["choice"])

    async def form(self) -> Json:
        given = await self.wait_for(does.WHO, question_type="form", answer_schema=does.PERSON)
        return dict(given["metadata"]["answer"])

    async def want(self, what: str) -> Any:
        prompt, schema = does.WANTED[what]
        return (await self.wait_for(prompt, question_type=what, answer_schema=schema))["metadata"]["answer"]

    async def ask(self) -> str:
        return str((await self.wait_for(does.WHAT))["content"])

    # -- for the wire -------------------------------------------------------------------------------------

    def told(self) -> Json:
        found: Json = {"task_id": self.id, "agent": self.me, "status": self.state}
        if self.state == "succeeded":
            found["output"] = self.output
        return found if self.error is None else {**found, "error": self.error}


def _file(given: Json) -> Json:
    address = given.get("url") or given["path"]
    inline = re.fullmatch(r"data:([^;,]*)(;charset=utf-8)?;base64,(.*)", address)
    if inline is None:
        return {"name": given.get("name"), "media_type": given.get("media_type"), "url": address}
    media_type = given.get("media_type") or inline[1]
    return {"name": given.get("name"), "media_type": media_type, "data": base64.b64decode(inline[3])}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def _refused(status: int, why: str, task: str = "none") -> Response:
    told = {"type": "error_response", "task_id": task, "sender_id": "orchestrator", "recipient_id": "orchestrator"}
    return JSONResponse({**told, "error_code": status, "error_message": why}, status)


async def agents(request: Request) -> Response:
    return JSONResponse({"agents": AGENTS})


async def messages(request: Request) -> Response:
    body = await request.json()
    task = tasks.get(body["task_id"])
    if body["type"] == "delegation_notice":
        if task is None:
            task = tasks[body["task_id"]] = Task(body, request.headers)
        return JSONResponse(task.told(), 202)
    if task is None:
        return _refused(404, "there is no such task", body["task_id"])
    named = (body.get("metadata") or {}).get("question", task.question)
    if body["sender_id"] != "user" or task.answer is None or task.answer.done() or named != task.question:
        return _refused(409, "nobody waits for that", body["task_id"])
    await task.feed.put("message", body)
    task.answer.set_result(body)
    return JSONResponse(task.told(), 202)


async def on_task(request: Request) -> Response:
    task = tasks.get(request.path_params["task"])
    if task is None:
        return _refused(404, "there is no such task")
    match request.method, request.path_params.get("what"):
        case "GET", None:
            return JSONResponse(task.told())
        case "GET", "events":
            after = int(request.headers.get("last-event-id", 0))
            stream = task.feed.read(after, lambda name, data: name == "status" and data["final"])
            return StreamingResponse(stream, media_type="text/event-stream")
        case "POST", "cancel":
            task.task.cancel()
            await asyncio.wait({task.task})
            return JSONResponse(task.told())
    return _refused(404, "there is no such operation", task.id)


app = Starlette(
    routes=[
        Route("/agents", agents),
        Route("/messages", messages, methods=["POST"]),
        Route("/tasks/{task}", on_task),
        Route("/tasks/{task}/{what}", on_task, methods=["GET", "POST"]),
    ]
)

if __name__ == "__main__":
    web.serve(app)
