"""A small server of the Agent Connect Protocol, written by hand, that can be told to break one rule.

It keeps everything in memory and knows nothing of our own package. Without a defect it does what the documents say;
each defect is a mistake that somebody made, or could easily make. What its runs do is in `broken_runs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from interlingua.server.http_server import Uvicorn

from .broken_runs import Run, Thread, now, specs

Json = dict[str, Any]

KEY = "open sesame"
CHOICES = {
    "on_disconnect": ("cancel", "continue"), "multitask_strategy": ("reject", "rollback", "interrupt", "enqueue"),
    "if_not_exists": ("create", "reject"), "on_completion": ("delete", "keep"), "if_exists": ("raise", "do_nothing"),
}  # fmt: skip
RUN_STATUSES = ("pending", "error", "success", "timeout", "interrupted")
KINDS = {
    "limit": int, "offset": int, "after_seconds": int, "name": str, "version": str, "agent_id": str, "metadata": dict,
    "values": dict, "webhook": str, "config": dict, "thread_id": str,
}  # fmt: skip


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


class Server:
    def __init__(self, defect: str | None = None, key: str | None = None) -> None:
        self.defect = defect
        self.key = key
        self.runs: dict[str, Run] = {}
        self.threads: dict[str, Thread] = {}
        self.agents = {str(uuid.uuid5(uuid.NAMESPACE_DNS, name)): name for name in ("echo", "asks", "sleeps", "fails")}
        one, run = "/agents/{agent}", "/runs/{run}"
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", "/agents/search", self.search_agents), ("GET", one, self.get_agent),
            ("GET", f"{one}/descriptor", self.descriptor), ("POST", "/runs/search", self.search_runs),
            ("POST", "/threads", self.create_thread), ("POST", "/threads/search", self.search_threads),
            ("GET", "/threads/{thread}", self.get_thread), ("PATCH", "/threads/{thread}", self.patch_thread),
            ("DELETE", "/threads/{thread}", self.delete_thread), ("GET", "/threads/{thread}/history", self.history),
            ("POST", "/threads/{thread}/copy", self.copy_thread), ("GET", "/threads/{thread}/runs", self.thread_runs),
            ("GET", "/openapi.json", self.openapi),
        ]  # fmt: skip
        for base in ("", "/threads/{thread}"):
            table += [
                ("POST", f"{base}/runs", self.create), ("POST", f"{base}/runs/wait", self.create_and_wait),
                ("POST", f"{base}/runs/stream", self.create_and_stream), ("GET", base + run, self.get_run),
                ("POST", base + run, self.resume), ("DELETE", base + run, self.delete_run),
                ("GET", f"{base}{run}/wait", self.wait), ("GET", f"{base}{run}/stream", self.join),
                ("POST", f"{base}{run}/cancel", self.cancel),
            ]  # fmt: skip
        self.app = Starlette(routes=[Route(path, self.answering(do), methods=[method]) for method, path, do in table])

    def answering(self, do: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                open_ = request.url.path == "/openapi.json" and self.defect != "hidden-scheme"
                if (
                    self.key
                    and not open_
                    and self.defect != "unguarded"
                    and request.headers.get("x-api-key") != self.key
                ):
                    raise Refused(401, "who are you?")
                return await do(request)
            except Refused as error:
                told = {"detail": error.why} if self.defect == "detail" else error.why
                status = 500 if self.defect == "unknown-500" and error.status == 404 else error.status
                return JSONResponse(told, status)

        return answer

    async def body(self, request: Request) -> Json:
        try:
            body = await request.json()
        except ValueError:
            raise Refused(422, "the body is no JSON") from None
        for name, value in body.items() if isinstance(body, dict) else ():
            if name in CHOICES and value not in CHOICES[name]:
                raise Refused(422, f"{name} is one of {', '.join(CHOICES[name])}")
            if name in KINDS and (not isinstance(value, KINDS[name]) or (value == 0 and name == "limit")):
                raise Refused(422, f"{name} is no {KINDS[name].__name__}")
            modes = value if isinstance(value, list) else [value]
            if name == "stream_mode" and not all(mode in ("values", "custom", None) for mode in modes):
                raise Refused(422, "stream_mode is values or custom")
        return body if isinstance(body, dict) else {}

    @staticmethod
    def page(found: list[Any], given: Any) -> list[Any]:
        start = int(given.get("offset", 0))
        return found[start : start + int(given.get("limit", 10))]

    # -- agents -------------------------------------------------------------------------------------------

    def metadata(self, name: str) -> Json:
        return {"ref": {"name": name, "version": "1.0.0"}, "description": f"It {name}."}

    async def openapi(self, request: Request) -> Response:
        schemes = {"key": {"type": "apiKey", "in": "header", "name": "x-api-key"}}
        return JSONResponse({"openapi": "3.1.0", "paths": {}, "components": {"securitySchemes": schemes}})

    async def search_agents(self, request: Request) -> Response:
        wanted = await self.body(request)
        found = [
            {"agent_id": identity, "metadata": self.metadata(name)}
            for identity, name in self.agents.items()
            if (wanted.get("name", name) == name or self.defect == "any-name")
            and wanted.get("version", "1.0.0") == "1.0.0"
        ]
        return JSONResponse(self.page(found, wanted))

    def name(self, identity: str) -> str:
        if identity not in self.agents:
            raise Refused(404, f"there is no agent {identity}")
        return self.agents[identity]

    async def get_agent(self, request: Request) -> Response:
        identity = request.path_params["agent"]
        return JSONResponse({"agent_id": identity, "metadata": self.metadata(self.name(identity))})

    async def descriptor(self, request: Request) -> Response:
        name = self.name(request.path_params["agent"])
        return JSONResponse({"metadata": self.metadata(name), "specs": specs(name, self.defect)})

    # -- runs ---------------------------------------------------------------------------------------------

    def run(self, request: Request) -> Run:
        found = self.runs.get(request.path_params["run"])
        thread = request.path_params.get("thread")
        if found is None or (thread is not None and (found.thread is None or found.thread.id != thread)):
            raise Refused(404, "there is no such run")
        return found

    async def make(self, request: Request) -> Run:
        body = await self.body(request)
        agent = body.get("agent_id", next(iter(self.agents)))
        self.name(agent)
        if not isinstance(body.get("input"), dict) or not isinstance(body["input"].get("text"), str):
            raise Refused(422, "input is an object with a text")
        thread = None
        if "thread" in request.path_params:
            thread = self.threads.get(request.path_params["thread"])
            if thread is None and body.get("if_not_exists") != "create":
                raise Refused(404, "there is no such thread")
            if thread is None:
                thread = self.threads[request.path_params["thread"]] = Thread(request.path_params["thread"], {})
        run = Run(self, agent, body, thread)
        if body.get("on_completion") == "keep":
            run.kept = self.threads.setdefault(run.id, Thread(run.id, {}))
        if thread is not None and thread.line:
            await self.make_room(thread, body.get("multitask_strategy", "reject"))
        self.runs[run.id] = run
        run.start()
        return run

    async def make_room(self, thread: Thread, strategy: str) -> None:
        if strategy == "reject" and self.defect != "never-rejects":
            raise Refused(409, "the thread is busy")
        if strategy in ("interrupt", "rollback"):
            for old in list(thread.line):
                await old.end_by_cancel()
                if strategy == "rollback":
                    self.runs.pop(old.id, None)

    async def create(self, request: Request) -> Response:
        run = await self.make(request)
        return JSONResponse({**run.told(), "status": "running" if self.defect == "running" else "pending"})

    async def create_and_wait(self, request: Request) -> Response:
        return await self.waited(await self.make(request))

    async def create_and_stream(self, request: Request) -> Response:
        run = await self.make(request)
        return self.streaming(run, 0, cancels=run.body.get("on_disconnect", "cancel") == "cancel")

    async def get_run(self, request: Request) -> Response:
        run = self.run(request)
        run.looked_at.set()
        return JSONResponse(run.told())

    async def search_runs(self, request: Request) -> Response:
        wanted = await self.body(request)
        if wanted.get("status", "pending") not in RUN_STATUSES:
            raise Refused(422, "there is no such status")
        tags = wanted.get("metadata", {}).items()
        found = [
            run.told()
            for run in self.runs.values()
            if run.thread is None
            and wanted.get("agent_id", run.agent) == run.agent
            and (wanted.get("status", run.status) == run.status or self.defect == "any-status")
            and tags <= run.body.get("metadata", {}).items()
        ]
        return JSONResponse(self.page(found, wanted))

    async def thread_runs(self, request: Request) -> Response:
        thread = self.thread(request)
        found = [run.told() for run in self.runs.values() if run.thread is thread]
        return JSONResponse(self.page(found, request.query_params))

    async def resume(self, request: Request) -> Response:
        run = self.run(request)
        answer = await self.body(request)
        if run.status != "interrupted" and not (self.defect == "late-answers" and run.status != "pending"):
            raise Refused(409, "the run is not interrupted")
        if not isinstance(answer.get("ok"), bool):
            raise Refused(422, "ok is a boolean")
        if self.defect == "resumes-another":
            return JSONResponse({**run.resume(answer), "run_id": str(uuid.uuid4())})
        return JSONResponse(run.resume(answer))

    async def delete_run(self, request: Request) -> Response:
        run = self.run(request)
        await run.end_by_cancel()
        del self.runs[run.id]
        return Response(status_code=204)

    async def wait(self, request: Request) -> Response:
        return await self.waited(self.run(request))

    async def waited(self, run: Run) -> Response:
        await run.until(lambda: run.status != "pending")
        return JSONResponse({"run": run.told(), "output": run.output})

    async def cancel(self, request: Request) -> Response:
        run = self.run(request)
        if self.defect == "no-cancel-options" and request.query_params:
            raise Refused(422, "value could not be parsed to a boolean")
        if self.defect == "early-cancel" and request.query_params.get("action") != "rollback":
            run.cancel_when_looked_at()
            return Response(status_code=204)
        await run.end_by_cancel()
        if request.query_params.get("action") == "rollback":
            self.runs.pop(run.id, None)
        return Response(status_code=204)

    # -- streams ------------------------------------------------------------------------------------------

    async def join(self, request: Request) -> Response:
        run = self.run(request)
        last = request.headers.get("last-event-id")
        after = 0 if self.defect == "replays" else len(run.events)
        return self.streaming(run, int(last) if last else after, cancels=False)

    def streaming(self, run: Run, after: int, *, cancels: bool) -> Response:
        modes = run.body.get("stream_mode") or "values"
        return StreamingResponse(self.lines(run, after, modes, cancels), media_type="text/event-stream")

    async def lines(self, run: Run, after: int, modes: Any, cancels: bool) -> AsyncIterator[bytes]:
        try:
            if self.defect == "empty-comment":
                yield b": hello\n\n"
            while True:
                await run.until_more(after)
                for event in run.events[after:]:
                    after += 1
                    if event["type"] not in ("values", "custom") or event["type"] in modes:
                        yield self.encoded(event, after)
                if run.status != "pending" and len(run.events) == after:
                    break
            if self.defect == "stays-open":
                await asyncio.Event().wait()
        finally:
            if cancels and run.status == "pending" and self.defect != "never-cancels":
                run.cancel_soon()

    def encoded(self, event: Json, number: int) -> bytes:
        data = json.dumps(event, ensure_ascii=self.defect != "raw-unicode")
        name = "message" if self.defect == "event-name" else "agent_event"
        lines = [f"event: {name}", f"data: {data}"]
        if self.defect != "first-id-only" or number == 1:
            lines.insert(0, f"id: {number}")
        end = "\r\n" if self.defect == "crlf" else "\n"
        return (end.join(lines) + end + end).encode()

    # -- threads ------------------------------------------------------------------------------------------

    def thread(self, request: Request) -> Thread:
        if request.path_params["thread"] not in self.threads:
            raise Refused(404, "there is no such thread")
        return self.threads[request.path_params["thread"]]

    def shown(self, thread: Thread) -> Response:
        return JSONResponse(thread.told(stuck=self.defect == "stays-busy"))

    async def create_thread(self, request: Request) -> Response:
        body = await self.body(request)
        wanted = body.get("thread_id", str(uuid.uuid4()))
        if wanted in self.threads and body.get("if_exists") != "do_nothing":
            raise Refused(409, "there is such a thread")
        return self.shown(self.threads.setdefault(wanted, Thread(wanted, body.get("metadata", {}))))

    async def search_threads(self, request: Request) -> Response:
        wanted = await self.body(request)
        found = [
            thread.told()
            for thread in self.threads.values()
            if wanted.get("metadata", {}).items() <= thread.metadata.items()
            and wanted.get("status", thread.status) == thread.status
            and all((thread.values or {}).get(name) == value for name, value in wanted.get("values", {}).items())
        ]
        return JSONResponse(self.page(found, wanted))

    async def get_thread(self, request: Request) -> Response:
        return self.shown(self.thread(request))

    async def patch_thread(self, request: Request) -> Response:
        thread, body = self.thread(request), await self.body(request)
        thread.metadata = {**({} if self.defect == "patch-replaces" else thread.metadata), **body.get("metadata", {})}
        if "values" in body:
            wanted = body.get("checkpoint", {}).get("checkpoint_id")
            base = next((v for c, v in thread.states if c == wanted), thread.values)
            thread.keep({**(base or {}), **body["values"]})
        return self.shown(thread)

    async def delete_thread(self, request: Request) -> Response:
        thread = self.thread(request)
        if thread.line and self.defect != "deletes-busy":
            raise Refused(422, "a run is pending on the thread")
        del self.threads[thread.id]
        return Response(status_code=204)

    async def history(self, request: Request) -> Response:
        states = [
            {"checkpoint": {"checkpoint_id": identity}, "values": values, "metadata": {"at": now()}}
            for identity, values in reversed(self.thread(request).states)
        ]
        ids = [state["checkpoint"]["checkpoint_id"] for state in states]  # type: ignore[index]
        before = request.query_params.get("before")
        states = states[ids.index(before) + 1 :] if before in ids else states
        limit = len(states) if self.defect == "no-limit" else int(request.query_params.get("limit", 10))
        return JSONResponse(states[:limit])

    async def copy_thread(self, request: Request) -> Response:
        thread = self.thread(request)
        copy = Thread(str(uuid.uuid4()), dict(thread.metadata))
        if self.defect != "empty-copy":
            copy.values, copy.states = thread.values, list(thread.states)
        self.threads[copy.id] = copy
        return self.shown(copy)


@contextlib.asynccontextmanager
async def serving(defect: str | None = None, key: str | None = None) -> AsyncIterator[str]:
    server = Server(defect, key)
    async with listening(server, server.app) as address:
        yield address


@contextlib.asynccontextmanager
async def listening(made: Server, app: Any) -> AsyncIterator[str]:
    """On a real socket; gives its address. `app` is the server's, or something in front of that."""
    config = uvicorn.Config(
        app, loop="asyncio", lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = Uvicorn(config)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends at once only on these
    sock.bind(("127.0.0.1", 0))
    running = asyncio.ensure_future(server.serve([sock]))
    try:
        while not server.started:
            await asyncio.sleep(0)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        for run in made.runs.values():
            run.close()
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        sock.close()
