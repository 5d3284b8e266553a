"""Agents behind the Agent Connect Protocol, by its OpenAPI document 0.2.3. Knows nothing of our code.

Streams whole values; questions are interrupts whose types the descriptor lists; threads keep what was remembered; files
and data come as blocks of the messages of a result. An error has `code`, `transient` and `details` beside what the
document has, because the text that it goes back to defines errors with them.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
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
MESSAGE = {"type": "object", "properties": {"message": {"type": "string"}}}
INTERRUPTS = {"choose": {**CHOICE, "required": ["choice"]}, "form": does.PERSON, "ask": does.WORDS}
INTERRUPTS |= {type_: schema for type_, (_, schema) in does.WANTED.items()}
KEPT = {"type": "object", "properties": {"kept": {"type": "string"}}}


def described(name: str, description: str, input_: Json, output: Json, **specs: Any) -> Json:
    able = {"threads": True, "callbacks": False, "streaming": {"values": True, "custom": False}}
    return {
        "metadata": {"ref": {"name": name, "version": "1.0.0"}, "description": description},
        "specs": {
            "capabilities": {**able, "interrupts": "interrupts" in specs},
            "input": input_, "output": output, "config": {"type": "object", "properties": {}},
            "thread_state": KEPT, **specs,
        },
    }  # fmt: skip


TALKER, TYPED = (str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in ("talker-connect", "typed-connect"))
AGENTS = {
    TALKER: described(
        "talker-connect", does.TALKER, does.TEXT_IN, does.TEXT_OUT,
        interrupts=[
            {"interrupt_type": type_, "interrupt_payload": MESSAGE, "resume_payload": answer}
            for type_, answer in INTERRUPTS.items()
        ],
    ),
    TYPED: described("typed-connect", does.TYPED, does.NUMBERS, does.TOTAL),
}  # fmt: skip

threads: dict[str, dict[str, str]] = {}
runs: dict[str, Run] = {}


class Run:
    """One run, and what its agent may do."""

    def __init__(self, body: Json, thread: str | None, headers: Any) -> None:
        self.id, self.thread, self.body = str(uuid.uuid4()), thread, body
        self.made = self.changed = _now()
        self.status, self.output = "pending", None
        self.values: Json = {}
        self.messages: list[Json] = []
        self.feed = web.Feed()
        self.settled = asyncio.Event()  # it has ended, or asks
        self.answer: asyncio.Future[Any] | None = None
        self.memory = {} if thread is None else threads.setdefault(thread, {})
        self.files: list[Json] = []
        given = body["input"]
        self.data = [{"note": given["note"]}] if "note" in given else []
        self.heard = {"metadata": body.get("metadata"), **web.trace_of(headers)}
        self.task = asyncio.ensure_future(self.work())

    async def work(self) -> None:
        try:
            if self.body["agent_id"] == TYPED:
                for value in does.sums(self.body["input"]["numbers"]):
                    await self.show(value)
            else:
                await does.talk(self.body["input"]["text"], self)
        except Exception as broken:
            error = does.failure_of(broken)
            told = {"errcode": 10_001, "description": error.message, "code": error.code, "transient": error.transient}
            told["details"] = error.details
            await self.end("error", {"type": "error", "run_id": self.id, **told})
        except asyncio.CancelledError:
            told = {"errcode": 499, "description": "cancelled", "code": "cancelled"}
            await self.end("error", {"type": "error", "run_id": self.id, **told})
        else:
            await self.end("success", {"type": "result", "values": self.values, "messages": self.messages})

    async def show(self, values: Json) -> None:
        self.values = values
        await self.feed.put("agent_event", {"type": "values", "run_id": self.id, "status": "pending", "values": values})

    async def end(self, status: str, output: Json) -> None:
        self.status, self.output, self.changed = status, output, _now()
        last = {**output, "type": "values"} if status == "success" else output
        await self.feed.put("agent_event", {**last, "run_id": self.id, "status": status})
        self.settled.set()

    # -- for the agent ------------------------------------------------------------------------------------

    async def say(self, text: str) -> None:
        await self.show({**self.values, "text": self.values.get("text", "") + text})

    async def give(self) -> None:
        name, media_type, body = does.FILE_OUT
        file = {"type": "file", "name": name, "media_type": media_type, "data": base64.b64encode(body).decode()}
        self.messages = [{"role": "assistant", "content": [file, {"type": "data", "data": does.DATA_OUT}]}]

    async def interrupt(self, type_: str, message: str) -> Any:
        self.answer = asyncio.get_running_loop().create_future()
        await self.end("interrupted", {"type": "interrupt", "interrupt": {type_: {"message": message}}})
        return await self.answer

    async def choose(self) -> str:
        return str((await self.interrupt("choose", does.MAY_I))["choice"])

    async def form(self) -> Json:
        return dict(await self.interrupt("form", does.WHO))

    async def want(self, what: str) -> Any:
        return await self.interrupt(what, does.WANTED[what][0])

    async def ask(self) -> str:
        return str((await self.interrupt("ask", does.WHAT))["text"])

    # -- for the wire -------------------------------------------------------------------------------------

    def told(self) -> Json:
        found = {
            "run_id": self.id, "agent_id": self.body["agent_id"], "created_at": self.made, "updated_at": self.changed,
            "status": self.status, "creation": self.body,
        }  # fmt: skip
        return found if self.thread is None else {**found, "thread_id": self.thread}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def _not_found() -> Response:
    return JSONResponse("there is no such thing", 404)


async def search(request: Request) -> Response:
    wanted = await request.json()
    found = [{"agent_id": id_, "metadata": one["metadata"]} for id_, one in AGENTS.items()]
    offset = wanted.get("offset", 0)
    return JSONResponse(found[offset : offset + wanted.get("limit", 10)])


async def descriptor(request: Request) -> Response:
    found = AGENTS.get(request.path_params["agent"])
    return _not_found() if found is None else JSONResponse(found)


async def make_thread(request: Request) -> Response:
    body = await request.json()
    id_ = body.get("thread_id") or str(uuid.uuid4())
    if id_ in threads and body.get("if_exists") != "do_nothing":
        return JSONResponse(f"there is a thread {id_}", 409)
    threads.setdefault(id_, {})
    return JSONResponse(_thread(id_))


def _thread(id_: str) -> Json:
    times = {"created_at": _now(), "updated_at": _now()}
    return {"thread_id": id_, **times, "metadata": {}, "status": "idle", "values": threads[id_]}


async def get_thread(request: Request) -> Response:
    id_ = request.path_params["thread"]
    return JSONResponse(_thread(id_)) if id_ in threads else _not_found()


async def create(request: Request) -> Response:
    thread, body = request.path_params.get("thread"), await request.json()
    if thread is not None and thread not in threads and body.get("if_not_exists") != "create":
        return _not_found()
    run = Run(body, thread, request.headers)
    runs[run.id] = run
    return JSONResponse(run.told())


async def on_run(request: Request) -> Response:
    run = runs.get(request.path_params["run"])
    if run is None:
        return _not_found()
    match request.method, request.path_params.get("what"):
        case "GET", None:
            return JSONResponse(run.told())
        case "GET", "wait":
            await run.settled.wait()
            return JSONResponse({"run": run.told(), "output": run.output})
        case "GET", "stream":
            after = int(request.headers.get("last-event-id", 0))
            stream = run.feed.read(after, lambda _, data: data["status"] != "pending")
            return StreamingResponse(stream, media_type="text/event-stream")
        case "POST", None:
            if run.status != "interrupted" or run.answer is None:
                return JSONResponse("the run is not interrupted", 409)
            run.status, run.output = "pending", None
            run.settled.clear()
            run.answer.set_result(await request.json())
            return JSONResponse(run.told())
        case "POST", "cancel":
            run.task.cancel()
            await asyncio.wait({run.task})
            return Response(status_code=204)
    return _not_found()


def _routes(prefix: str) -> list[Route]:
    return [
        Route(f"{prefix}/runs", create, methods=["POST"]),
        Route(f"{prefix}/runs/{{run}}", on_run, methods=["GET", "POST"]),
        Route(f"{prefix}/runs/{{run}}/{{what}}", on_run, methods=["GET", "POST"]),
    ]


app = Starlette(
    routes=[
        Route("/agents/search", search, methods=["POST"]),
        Route("/agents/{agent}/descriptor", descriptor),
        Route("/threads", make_thread, methods=["POST"]),
        Route("/threads/{thread}", get_thread),
        *_routes(""),
        *_routes("/threads/{thread}"),
    ]
)

if __name__ == "__main__":
    web.serve(app)
