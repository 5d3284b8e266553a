"""A bare starlette app, for uvicorn's own command: it says what our Connect door says, and does nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from interlingua.transports.http.sse import encode

from .load import token
from .servers import ANSWER

_ANSWER = msgspec.json.decode(os.environ.get(ANSWER, "null"))


async def wait(request: Request) -> Response:
    return JSONResponse(_ANSWER)


async def stream(request: Request) -> Response:
    wanted = (await request.json())["input"]
    return StreamingResponse(ticks(**wanted), media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def ticks(count: int, pause: float) -> AsyncIterator[bytes]:
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


app = Starlette(
    routes=[
        Route("/connect/runs/wait", wait, methods=["POST"]),
        Route("/connect/runs/stream", stream, methods=["POST"]),
    ]
)
