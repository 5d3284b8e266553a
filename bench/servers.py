"""The two servers that are measured beside each other, each in a process of its own: ours, and a bare endpoint.

`python -m bench.servers` reads what to serve from the first line of stdin, says on stdout where, and serves until stdin
ends. The bare one gets uvicorn's settings and the interpreter's from ours, so that they cannot differ;
but its HTTP protocol is uvicorn's own with httptools, as everybody has it, where ours writes an answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from interlingua import Settings
from interlingua.app.asgi import Uvicorn
from interlingua.app.keys import StoredKeys
from interlingua.app.serve import ServeSettings, serving
from interlingua.engine.ids import now
from interlingua.security.keys import make_key
from interlingua.transports.sse import encode

from .agents import ticks, trivial
from .load import raise_file_limit, token

ROOT = Path(__file__).parent.parent


class Serve(msgspec.Struct):
    """What to serve: ours from a store, or the bare endpoint, which answers with this body."""

    store: str | None = None
    answer: Any = None
    like: Serving | None = None  # whose settings the bare one takes


class Serving(msgspec.Struct):
    port: int
    uvicorn: dict[str, Any]
    collect: tuple[int, int, int]
    switch: float
    key: str = ""  # that callers send, as users of a real server do


class Noted(uvicorn.Config):
    """uvicorn's settings, noted as ours makes them."""

    made: ClassVar[dict[str, Any]]

    def __init__(self, app: Any, **settings: Any) -> None:
        Noted.made = {name: value for name, value in settings.items() if name not in ("host", "port")}
        super().__init__(app, **settings)


async def serve_ours(store: str) -> None:
    uvicorn.Config = Noted  # type: ignore[assignment,misc]
    settings = ServeSettings(port=0, engine=Settings(stall_warning=0))
    async with serving(store, [trivial, ticks], settings) as server:
        port = int(server.address.rpartition(":")[2])
        secret, record = make_key("bench", [], now())
        await StoredKeys(server.engine.store).put(record)
        say(Serving(port, Noted.made, gc.get_threshold(), sys.getswitchinterval(), secret))
        await end_of_input()


async def serve_bare(answer: Any, like: Serving) -> None:
    gc.set_threshold(*like.collect)
    sys.setswitchinterval(like.switch)

    async def wait(request: Request) -> Response:
        return JSONResponse(answer)

    async def stream(request: Request) -> Response:
        wanted = (await request.json())["input"]
        return StreamingResponse(
            bare_ticks(**wanted), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    routes = [
        Route("/connect/runs/wait", wait, methods=["POST"]),
        Route("/connect/runs/stream", stream, methods=["POST"]),
    ]
    settings = {**like.uvicorn, "http": "httptools"}
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, **settings)
    server = Uvicorn(config)
    sock = config.bind_socket()
    # uvicorn's own socket names no protocol, so that asyncio leaves Nagle's algorithm on: 40 ms for every answer.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    running = asyncio.ensure_future(server.serve([sock]))
    while not server.started:
        await asyncio.sleep(0.001)
    say(msgspec.structs.replace(like, port=sock.getsockname()[1]))
    await end_of_input()
    server.should_exit = True
    await running


async def bare_ticks(count: int, pause: float) -> AsyncIterator[bytes]:
    """What the agent `ticks` says, in the updates that our door makes of it."""
    run = "01890a5d-ac96-774b-bcce-b302099a8057"
    said = []
    for index in range(count):
        if index:
            await asyncio.sleep(pause)
        said.append(text := token(index))
        update = {"kind": "delta", "delta": {"text": text}}
        told = {"type": "custom", "run_id": run, "status": "pending", "update": update}
        yield encode(told, id=f"{index}.0", event="agent_event")
    result = {"text": "".join(said)}
    told = {"type": "values", "run_id": run, "status": "success", "values": result, "result": result}
    yield encode(told, id=str(count), event="agent_event")


def say(serving: Serving) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(serving) + b"\n")
    sys.stdout.flush()


async def end_of_input() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


class Running(msgspec.Struct):
    """A server that was started, as whoever started it sees it."""

    process: int
    serving: Serving


@contextlib.asynccontextmanager
async def started(wanted: Serve) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.servers", cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(wanted) + b"\n")
        yield Running(process.pid, msgspec.json.decode(await process.stdout.readline(), type=Serving))
    finally:
        process.stdin.close()
        await process.wait()


def main() -> None:
    raise_file_limit()
    wanted = msgspec.json.decode(sys.stdin.buffer.readline(), type=Serve)
    if wanted.store is not None:
        asyncio.run(serve_ours(wanted.store))
    else:
        assert wanted.like is not None
        asyncio.run(serve_bare(wanted.answer, wanted.like))


if __name__ == "__main__":
    main()
