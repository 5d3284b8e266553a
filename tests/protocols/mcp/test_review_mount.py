"""The mount beside servers that are rude, unlucky or slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import interlingua as il
from interlingua.model.events import OutputDelta
from interlingua.model.status import Status
from interlingua.protocols.mcp.mount import remote_run
from tests.kit.engines import bodies, question
from tests.kit.fake_remotes.mcp_server import TEXT
from tests.kit.mounts.mcp import act, mounted, script

Message = dict[str, Any]


# -- a server at an address, of which each test says what it answers ------------------------------------------------


Answers = Callable[[Message, Request], Awaitable[Response | None]]


class Rude:
    """Streamable HTTP that agrees and lists; everything else is the test's. A None is its usual answer."""

    def __init__(self, answers: Answers, get: Callable[[Request], Awaitable[Response]] | None = None) -> None:
        self.answers = answers
        self.get = get
        self.sessions = 0
        self.forgets = False
        self.agents: list[Message] = [{"name": "script", "inputSchema": TEXT, "outputSchema": TEXT}]
        self.seen: list[str] = []
        self.address = ""

    async def post(self, request: Request) -> Response:
        message = await request.json()
        self.seen.append(str(message.get("method")))
        answer = await self.answers(message, request)
        if answer is not None:
            return answer
        if "id" not in message or "method" not in message:
            return Response(status_code=202)
        if message["method"] == "initialize":
            self.sessions += 1
            told = {"protocolVersion": "2025-11-25", "capabilities": {"agents": {}}, "serverInfo": {"name": "rude"}}
            return self.result(message, told, {"mcp-session-id": f"s{self.sessions}"})
        if message["method"] == "agents/list":
            return self.result(message, {"agents": self.agents})
        return self.result(message, {"output": {"text": "fine"}})

    def result(self, message: Message, result: Any, headers: dict[str, str] | None = None) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    async def listen(self, request: Request) -> Response:
        return await self.get(request) if self.get is not None else Response(status_code=405)

    async def delete(self, request: Request) -> Response:
        return Response(status_code=204)


@contextlib.asynccontextmanager
async def rude(answers: Answers, get: Callable[[Request], Awaitable[Response]] | None = None) -> AsyncIterator[Rude]:
    made = Rude(answers, get)
    routes = [Route("/mcp", made.post, methods=["POST"]), Route("/mcp", made.listen, methods=["GET"]),
              Route("/mcp", made.delete, methods=["DELETE"])]  # fmt: skip
    config = uvicorn.Config(
        Starlette(routes=routes), port=0, log_level="warning", timeout_graceful_shutdown=1, lifespan="off"
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    made.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    try:
        yield made
    finally:
        server.should_exit = server.force_exit = True
        await task


async def _usual(message: Message, request: Request) -> Response | None:
    return None


def _sse(*messages: Any, head: str = "") -> bytes:
    return b"".join(f"{head}data: {json.dumps(message)}\n\n".encode() for message in messages)


# -- what does not come back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        lambda id_: {"jsonrpc": "2.0", "id": float(id_), "result": {"output": {}}},
        lambda id_: {"jsonrpc": "2.0", "id": id_},
        lambda id_: {"jsonrpc": "2.0", "id": str(id_), "result": {"output": {}}},
        lambda id_: {"jsonrpc": "2.0", "id": id_, "result": None},
        lambda id_: {"jsonrpc": "2.0", "id": id_, "result": [1]},
        lambda id_: [{"jsonrpc": "2.0", "id": id_, "result": {}}],
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_is_none_fails_the_run(store: Path, odd: Callable[[int], Message], streams: bool) -> None:
    async def answers(message: Message, request: Request) -> Response | None:
        if message.get("method") != "agents/run":
            return None
        told = odd(message["id"])
        if streams:
            return StreamingResponse(iter([_sse(told)]), media_type="text/event-stream")
        return JSONResponse(told)

    async with rude(answers) as server, mounted(store, server.address) as (engine, _):
        run = await engine.runs.submit(il.RunRequest("script", input=script()))
        ended = await engine.runs.wait(run.id, timeout=10)
        assert ended.status is Status.FAILED


@pytest.mark.parametrize("lists", [False, True])
async def test_a_session_that_a_server_has_forgotten_is_begun_again_and_the_run_goes_on(
    store: Path, lists: bool
) -> None:
    async def answers(message: Message, request: Request) -> Response | None:
        forgotten = request.headers.get("mcp-session-id") == "s1" and server.forgets
        return Response(status_code=404) if forgotten else None

    async with rude(answers) as server:
        async with mounted(store, server.address) as (engine, mount):
            run = await engine.runs.submit(il.RunRequest("script", input=script()))
            assert (await engine.runs.wait(run.id, timeout=10)).status is Status.SUCCEEDED
            server.forgets = True
            (await mount.keeper.connection()).changed = lists  # so that the next run lists, or runs at once
            run = await engine.runs.submit(il.RunRequest("script", input=script()))
            ended = await engine.runs.wait(run.id, timeout=10)
            assert (ended.status, ended.error) == (Status.SUCCEEDED, None)
        assert server.sessions == 2


async def test_an_endless_answer_is_given_up(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"jsonrpc": "2.0", "id": 1, "result": "'
        while True:
            sent += 1024 * 1024
            yield b"x" * 1024 * 1024
            await asyncio.sleep(0)

    async def answers(message: Message, request: Request) -> Response | None:
        if message.get("method") != "agents/run":
            return None
        return StreamingResponse(endless(), media_type="application/json")

    monkeypatch.setattr("interlingua.protocols.mcp.mount.http_exchange._MAX_EVENT", 4 * 1024 * 1024)
    async with rude(answers) as server, mounted(store, server.address) as (engine, _):
        run = await engine.runs.submit(il.RunRequest("script", input=script()))
        ended = await engine.runs.wait(run.id, timeout=10)
        assert ended.status is Status.FAILED
        assert sent < 64 * 1024 * 1024


async def test_an_endless_event_is_given_up(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"data: " + b"x" * 100_000 + b"\n"
            await asyncio.sleep(0)

    async def answers(message: Message, request: Request) -> Response | None:
        if message.get("method") != "agents/run":
            return None
        return StreamingResponse(endless(), media_type="text/event-stream")

    monkeypatch.setattr("interlingua.protocols.mcp.mount.http_exchange._MAX_EVENT", 4 * 1024 * 1024)
    async with rude(answers) as server, mounted(store, server.address) as (engine, _):
        run = await engine.runs.submit(il.RunRequest("script", input=script()))
        assert (await engine.runs.wait(run.id, timeout=10)).status is Status.FAILED


async def test_a_server_that_often_ends_its_stream_is_still_listened_to(store: Path) -> None:
    opened = 0
    changed = {"jsonrpc": "2.0", "method": "notifications/agents/list_changed"}

    async def get(request: Request) -> Response:
        nonlocal opened
        opened += 1
        if opened < 6:
            told = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hello"}}
            return StreamingResponse(iter([_sse(told)]), media_type="text/event-stream")
        server.agents = [{"name": "other", "inputSchema": TEXT, "outputSchema": TEXT}]
        return StreamingResponse(iter([_sse(changed)]), media_type="text/event-stream")

    async with rude(_usual, get) as server, mounted(store, server.address) as (_, mount):
        peer = await mount.keeper.connection()
        async with asyncio.timeout(20):
            while ("agent", "script") in (peer.entries or {}):
                await asyncio.sleep(0.01)
                peer = await mount.keeper.connection()


# -- lists that change ----------------------------------------------------------------------------------------------


async def test_a_change_right_behind_the_list_is_not_lost(store: Path) -> None:
    given = {"late": {"name": "newer", "inputSchema": TEXT, "outputSchema": TEXT}}
    async with mounted(store, given) as (_, mount):
        peer = await mount.keeper.connection()
        assert list(peer.entries or {}) == [("agent", "script"), ("agent", "newer")]


# -- questions of the revision without requests ---------------------------------------------------------------------


async def test_deltas_that_are_told_again_with_the_answer_are_shown_once(store: Path) -> None:
    asks = {"message": "Go?", "requestedSchema": {"type": "object", "properties": {"go": {"type": "boolean"}}}}
    given = {"version": "2026-07-28", "refuses": {"code": -32601, "message": "no initialize"}}
    async with mounted(store, given) as (engine, _):
        lines = [act("delta", {"text": "one "}), act("delta", {"text": "two "}), act("input", asks)]
        run = await engine.runs.submit(il.RunRequest("script", input=script(*lines)))
        await engine.questions.answer((await question(engine, run.id)).id, {"go": True})
        assert (await engine.runs.wait(run.id, timeout=20)).status is Status.SUCCEEDED
        shown = [body.delta["text"] for body in await bodies(engine, run.id, OutputDelta)]
        assert "".join(shown).startswith("one two ")
        assert "".join(shown).count("one ") == 1


# -- what takes long, or too much -----------------------------------------------------------------------------------


async def test_an_answer_that_is_longer_than_a_message_may_be_fails_the_run_and_not_the_next(store: Path) -> None:
    async with mounted(store) as (engine, _):
        run = await engine.runs.submit(il.RunRequest("script", input=script(act("long", 65 * 1024 * 1024))))
        ended = await engine.runs.wait(run.id, timeout=30)
        assert ended.error is not None
        assert ended.error.message == "the answer cannot be read: line longer than 64 MiB"
        run = await engine.runs.submit(il.RunRequest("script", input=script(act("output", {"text": "a"}))))
        assert (await engine.runs.wait(run.id, timeout=30)).output == {"text": "a"}


async def test_a_server_that_is_slow_to_take_a_cancellation_holds_up_no_other_run(store: Path) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def forever() -> AsyncIterator[bytes]:
        begun.set()
        yield b": wait\n"
        await never.wait()

    async def answers(message: Message, request: Request) -> Response | None:
        if message.get("method") == "notifications/cancelled":
            await never.wait()
        if message.get("method") == "agents/run" and message["params"]["input"]["text"] == "wait":
            return StreamingResponse(forever(), media_type="text/event-stream")
        return None

    async with rude(answers) as server, mounted(store, server.address) as (engine, _):
        first = await engine.runs.submit(il.RunRequest("script", input={"text": "wait"}))
        await asyncio.wait_for(begun.wait(), 10)
        await engine.runs.cancel(first.id)
        assert (await engine.runs.wait(first.id, timeout=10)).status is Status.CANCELLED
        run = await engine.runs.submit(il.RunRequest("script", input={"text": ""}))
        assert (await engine.runs.wait(run.id, timeout=10)).status is Status.SUCCEEDED
        never.set()


async def test_a_run_that_is_cancelled_leaves_no_stream_open(store: Path) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def forever() -> AsyncIterator[bytes]:
        begun.set()
        try:
            while True:
                yield b": wait\n"
                await asyncio.sleep(0.02)
        finally:
            left.set()

    async def answers(message: Message, request: Request) -> Response | None:
        if message.get("method") == "agents/run":
            return StreamingResponse(forever(), media_type="text/event-stream")
        return None

    async with rude(answers) as server, mounted(store, server.address) as (engine, _):
        run = await engine.runs.submit(il.RunRequest("script", input={"text": "wait"}))
        await asyncio.wait_for(begun.wait(), 10)
        await engine.runs.cancel(run.id)
        await asyncio.wait_for(left.wait(), 10)
        assert "notifications/cancelled" in server.seen


@pytest.mark.parametrize("ping", [b"event: ping\ndata: {}\n\n", b"event: ping\ndata: now\n\n", b"id: 1\ndata:\n\n"])
async def test_events_of_other_kinds_are_no_messages(store: Path, ping: bytes) -> None:
    async def answers(message: Message, request: Request) -> Response | None:
        if message.get("method") != "agents/run":
            return None
        told = {"jsonrpc": "2.0", "id": message["id"], "result": {"output": {"text": "a"}}}
        return StreamingResponse(iter([ping, ping, _sse(told)]), media_type="text/event-stream")

    async with rude(answers) as server:
        async with mounted(store, server.address) as (engine, _):
            run = await engine.runs.submit(il.RunRequest("script", input=script()))
            assert (await engine.runs.wait(run.id, timeout=10)).output == {"text": "a"}
        assert server.seen == ["initialize", "notifications/initialized", "agents/list", "agents/run"]


async def test_a_server_that_wants_input_and_never_says_which_fails_the_run(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_run, "_PAUSES", (0.01,) * len(remote_run._PAUSES))
    given = {"version": "2026-07-28", "refuses": {"code": -32601, "message": "no initialize"}}
    async with mounted(store, given) as (engine, _):
        wants = act("result", {"resultType": "input_required", "requestState": "again"})
        run = await engine.runs.submit(il.RunRequest("script", input=script(wants)))
        ended = await engine.runs.wait(run.id, timeout=20)
        assert ended.status is Status.FAILED
        assert ended.error is not None
        assert "input" in ended.error.message
