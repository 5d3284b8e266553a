"""A fake of the published reference server (workflow-srv 0.3.0), made from the notes on it, quirks included.

Errors are FastAPI's `{"detail": …}`, times are naive, `run` is missing from `wait`, errcode is 1 there and 0 on
streams. Streams number their events from 1 on every connection, end lines with CRLF and say nothing of interrupts.
Options of `cancel` are refused, and some operations answer 500. Also a server that listens on a real socket, and a TCP
proxy whose connections can be cut or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from interlingua.server.http_server import Uvicorn

NOW = "2025-06-01T12:00:00.000001"
TEXT_IN = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "title": "In"}
TEXT_OUT = {"type": "object", "properties": {"text": {"type": "string"}}, "title": "Out"}
STREAMS = {"values": True, "custom": False}


def _agent(name: str, *, streams: bool = True, output: Any = None, **specs: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "ref": {"name": name, "version": "1.0.0", "url": None},
            "description": f"The {name} agent",
            "x": 1,
        },
        "specs": {
            "capabilities": {
                "threads": False,
                "interrupts": "interrupts" in specs,
                "callbacks": False,
                "streaming": STREAMS if streams else None,
            },
            "input": TEXT_IN,
            "output": output or TEXT_OUT,
            "config": {"type": "object", "properties": {}},
            **specs,
        },
    }


APPROVAL = {
    "interrupt_type": "mail_approval",
    "interrupt_payload": {"type": "object", "properties": {"draft": {"type": "string"}}},
    "resume_payload": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
}
AGENTS = {
    str(uuid.uuid5(uuid.NAMESPACE_DNS, name)): described
    for name, described in {
        "echo": _agent("org.example/Echo Agent"),
        "approve": _agent("approve", interrupts=[APPROVAL]),
        "fail": _agent("fail"),
        "blocking": _agent("blocking", streams=False),
        "number": _agent("number", output={"type": "integer"}),
        "broken": _agent("broken", output={"type": "object", "properties": {"a": {"$ref": "http://x/y.json"}}}),
    }.items()
}


def _detail(status: int, detail: Any) -> Response:
    return JSONResponse({"detail": detail}, status)


class Reference:
    """`gate` holds every run after its first value; `requests` is what came in.

    `earlier`: descriptors are where the earlier document has them, and nowhere else.
    """

    def __init__(self, *, gated: bool = False, earlier: bool = False) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()
        if not gated:
            self.gate.set()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        run = "/runs/{run_id}"
        self.app = Starlette(
            routes=[
                Route("/agents/search", self._search, methods=["POST"]),
                Route(f"/agents/{'agent/' if earlier else ''}{{agent_id}}/descriptor", self._descriptor),
                Route("/runs", self._create, methods=["POST"]),
                Route("/threads", self._missing, methods=["POST"]),
                Route(run, self._get),
                Route(run, self._resume, methods=["POST"]),
                Route(run + "/wait", self._wait),
                Route(run + "/stream", self._stream),
                Route(run + "/cancel", self._cancel, methods=["POST"]),
            ]
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _missing(self, request: Request) -> Response:
        return Response("Internal Server Error", 500)

    async def _search(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(f"search {body.get('offset', 0)}")
        page = list(AGENTS.items())[body.get("offset", 0) :][: body.get("limit", 10)]
        return JSONResponse([{"agent_id": id_, "metadata": agent["metadata"]} for id_, agent in page])

    async def _descriptor(self, request: Request) -> Response:
        return JSONResponse(AGENTS[request.path_params["agent_id"]])

    # -- runs ---------------------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append("create")
        if body["input"].get("text") == "refuse me":
            return _detail(422, [{"loc": ["body", "input"], "msg": "not that", "type": "value_error"}])
        run = {
            "run_id": str(uuid.uuid4()), "agent_id": body["agent_id"], "created_at": NOW, "updated_at": NOW,
            "status": "pending", "creation": body, "thread_id": None,
        }  # fmt: skip
        state = {"run": run, "values": [], "output": None, "resumed": asyncio.Event(), "answer": None}
        self.runs[run["run_id"]] = state
        task = asyncio.ensure_future(self._work(state, body["input"]["text"]))
        state["task"] = task
        self._tasks.add(task)
        return JSONResponse(run)

    async def _work(self, state: dict[str, Any], text: str) -> None:
        name = AGENTS[state["run"]["agent_id"]]["metadata"]["ref"]["name"]
        if name == "number":
            await self._change(state, "success", {"type": "result", "values": len(text)})
            return
        words = text.split()
        await self._say(state, {"text": words[0]})
        await self.gate.wait()
        if name == "fail":
            await self._change(state, "error", {"type": "error", "description": "it broke"})
            return
        if name == "approve":
            interrupt = {"type": "interrupt", "interrupt": {"mail_approval": {"draft": text}}}
            await self._change(state, "interrupted", interrupt)
            await state["resumed"].wait()
            await self._say(state, {"text": f"{words[0]} {state['answer']['ok']}"})
        else:
            for count in range(2, len(words) + 1):
                await self._say(state, {"text": " ".join(words[:count])})
        await self._change(state, "success", {"type": "result", "values": state["values"][-1]})

    async def _say(self, state: dict[str, Any], value: Any) -> None:
        async with self._changed:
            state["values"].append(value)
            self._changed.notify_all()

    async def _change(self, state: dict[str, Any], status: str, output: Any) -> None:
        async with self._changed:
            state["run"]["status"], state["output"] = status, output
            self._changed.notify_all()

    def _state(self, request: Request) -> dict[str, Any] | None:
        return self.runs.get(request.path_params["run_id"])

    async def _get(self, request: Request) -> Response:
        state = self._state(request)
        return _detail(404, "Run not found") if state is None else JSONResponse(state["run"])

    async def _resume(self, request: Request) -> Response:
        state = self._state(request)
        assert state is not None
        self.requests.append("resume")
        if state["run"]["status"] != "interrupted":
            return _detail(409, "Run is not interrupted")
        state["answer"] = await request.json()
        await self._change(state, "pending", None)
        state["resumed"].set()
        return JSONResponse(state["run"])

    async def _wait(self, request: Request) -> Response:
        state = self._state(request)
        assert state is not None
        self.requests.append("wait")
        async with self._changed:
            await self._changed.wait_for(lambda: state["run"]["status"] != "pending")
        output = state["output"]
        if output["type"] == "error":
            output = {**output, "run_id": state["run"]["run_id"], "errcode": 1}
        return JSONResponse({"output": output})

    async def _stream(self, request: Request) -> Response:
        state = self._state(request)
        assert state is not None
        self.requests.append("stream")
        if not AGENTS[state["run"]["agent_id"]]["specs"]["capabilities"]["streaming"]:
            return _detail(501, "Not implemented")

        async def body() -> AsyncIterator[bytes]:
            at, number = max(0, len(state["values"]) - 1), 0
            yield b": ping\r\n\r\n"
            while True:
                async with self._changed:
                    while len(state["values"]) <= at and state["run"]["status"] == "pending":
                        await self._changed.wait()
                for value in state["values"][at:]:
                    at, number = at + 1, number + 1
                    update = {
                        "type": "values",
                        "run_id": state["run"]["run_id"],
                        "status": "pending",
                        "values": value,
                    }
                    yield f"id: {number}\r\nevent: agent_event\r\ndata: {json.dumps(update)}\r\n\r\n".encode()
                if state["run"]["status"] == "error":
                    error = {**state["output"], "run_id": state["run"]["run_id"], "status": "error", "errcode": 0}
                    yield f"id: {number + 1}\r\nevent: agent_event\r\ndata: {json.dumps(error)}\r\n\r\n".encode()
                if state["run"]["status"] != "pending":
                    return

        return StreamingResponse(body(), media_type="text/event-stream")

    async def _cancel(self, request: Request) -> Response:
        state = self._state(request)
        assert state is not None
        if request.query_params:
            return _detail(422, "value could not be parsed to a boolean")
        state["task"].cancel()
        await self._change(state, "error", {"type": "error", "description": "cancelled"})
        self.cancelled.set()
        return Response(status_code=204)


@contextlib.asynccontextmanager
async def listening(reference: Reference, certificate: Path | None = None) -> AsyncIterator[str]:
    """The fake on a real socket. Gives its address. `certificate`: a file with one and its key, for https."""
    config = uvicorn.Config(
        reference.app, host="127.0.0.1", port=0, loop="asyncio", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=1, ssl_certfile=certificate,
    )  # fmt: skip
    server = Uvicorn(config)
    sock = config.bind_socket()
    running = asyncio.ensure_future(server.serve([sock]))
    try:
        while not server.started:
            await asyncio.sleep(0)
        yield f"http{'s' if certificate else ''}://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await reference.close()
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        sock.close()


class Proxy:
    """A TCP proxy in front of a server. `cut` drops every connection; `heads` are the requests that went through."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.heads: list[str] = []
        self.refuse = 0  # so many connections are dropped before they reach the server
        self.mute = False  # what the server answers is lost on the way
        self._passed = asyncio.Event()
        self.address = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def passed(self) -> None:
        """Until something more has gone through."""
        self._passed.clear()
        await self._passed.wait()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self.refuse:
            self.refuse -= 1
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pipe(reader, back, note=True), self._pipe(there, writer))
        finally:
            for end in (writer, back):
                self._writers.discard(end)
                end.transport.abort()

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, note: bool = False) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65536):
                if note:
                    self.heads.append(chunk.decode("latin-1"))
                    self._passed.set()
                elif self.mute:
                    continue
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()
