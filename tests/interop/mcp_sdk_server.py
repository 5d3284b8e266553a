"""Agents on the low-level server of the PyPI SDK `mcp` 2.3, which knows nothing of agents, in the SDK's own virtualenv.

    python mcp_sdk_server.py stdio|http|sse [modern]      http and sse print their address

`modern` refuses the handshake, as a server does that speaks only the revision without one. Nothing of our own package
is imported here: what we can run here we can run of everybody who uses the SDK.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from pydantic import ConfigDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}, "seen": {"type": "array"}}}
YES_OR_NO = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}

Agent = Callable[["Running"], Awaitable[dict[str, Any]]]

agents: dict[str, tuple[dict[str, Any], Agent]] = {}
stopped: asyncio.Queue[str] = asyncio.Queue()


class RunParams(types.RequestParams):
    model_config = ConfigDict(extra="allow")

    name: str
    input: dict[str, Any]


class Custom(types.Notification[dict[str, Any], str]):
    """A notification that the SDK does not know."""


class Running:
    def __init__(self, ctx: Any, params: RunParams) -> None:
        self.ctx, self.input, self.more = ctx, params.input, params.model_extra or {}

    async def show(self, delta: dict[str, Any]) -> None:
        token = (self.ctx.meta or {}).get("progress_token")
        if token is not None:
            await self.tell("notifications/agents/run/progress", {"progressToken": token, "delta": delta})

    async def tell(self, method: str, params: dict[str, Any]) -> None:
        await self.ctx.session.send_notification(
            Custom(method=method, params=params), related_request_id=self.ctx.request_id
        )


def agent(input_: dict[str, Any], output: dict[str, Any]) -> Callable[[Agent], Agent]:
    def register(function: Agent) -> Agent:
        name = function.__name__
        agents[name] = ({"name": name, "inputSchema": input_, "outputSchema": output, "license": "none"}, function)
        return function

    return register


@agent(TEXT, TEXT)
async def echo(run: Running) -> dict[str, Any]:
    words = run.input["text"].split()
    for word in words:
        await run.show({"text": word + " "})
    return {"text": "".join(word + " " for word in words)}


@agent({"type": "object", "properties": {"numbers": {"type": "array"}}}, TOTAL)
async def adder(run: Running) -> dict[str, Any]:
    numbers = run.input["numbers"]
    for number in numbers:
        await run.show({"total": number, "seen": [None, number]})
    return {"total": sum(numbers), "seen": numbers}


@agent(TEXT, TEXT)
async def endless(run: Running) -> dict[str, Any]:
    await run.show({"text": "begun "})
    try:
        await asyncio.Event().wait()
    finally:
        stopped.put_nowait(run.input["text"])
    raise AssertionError("an event that nobody sets was set")


@agent(TEXT, TEXT)
async def counter(run: Running) -> dict[str, Any]:
    """Goes on as well, and shows it."""
    while True:
        await run.show({"text": "on and "})
        await asyncio.sleep(0.05)


@agent(TEXT, TEXT)
async def witness(run: Running) -> dict[str, Any]:
    return {"text": await stopped.get()}


@agent(TEXT, TEXT)
async def breaks(run: Running) -> dict[str, Any]:
    await run.show({"text": "so far "})
    raise MCPError(-32050, f"the {run.input['text']} is broken", {"tool": run.input["text"]})


@agent(TEXT, TEXT)
async def careful(run: Running) -> dict[str, Any]:
    """Asks: with a request where the revision has them, with its result where it has not."""
    asked = {"message": f"Do {run.input['text']}?", "requestedSchema": YES_OR_NO}
    if run.ctx.protocol_version == "2026-07-28":
        given = run.more.get("inputResponses")
        if given is None:
            request = {"method": "elicitation/create", "params": asked}
            return {"resultType": "input_required", "inputRequests": {"sure": request}, "requestState": "sealed"}
        assert run.more["requestState"] == "sealed"
        answer = given["sure"]
    else:
        session, about = run.ctx.session, run.ctx.request_id
        told = await session.elicit_form(asked["message"], YES_OR_NO, related_request_id=about)
        answer = {"action": told.action, "content": told.content}
    return {"text": "done" if answer["action"] == "accept" and answer["content"]["sure"] else "left alone"}


@agent(TEXT, TEXT)
async def retire(run: Running) -> dict[str, Any]:
    del agents[run.input["text"]]
    await run.tell("notifications/agents/list_changed", {})
    return {"text": "gone"}


async def list_agents(ctx: Any, params: types.PaginatedRequestParams) -> dict[str, Any]:
    return {"agents": [described for described, _ in agents.values()]}


async def run_agent(ctx: Any, params: RunParams) -> dict[str, Any]:
    if params.name not in agents:
        raise MCPError(types.INVALID_PARAMS, f"no agent {params.name}")
    told = await agents[params.name][1](Running(ctx, params))
    return told if "resultType" in told else {"output": told}


server: Server[Any] = Server("mcp-agents", version="1.0.0")
server.add_request_handler("agents/list", types.PaginatedRequestParams, list_agents)
server.add_request_handler("agents/run", RunParams, run_agent)


async def declare_agents(ctx: Any, call_next: Any) -> Any:
    """The SDK drops a capability that it does not know, unless it is added at the very end."""
    if ctx.method == "initialize" and "modern" in sys.argv:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
    result = await call_next(ctx)
    if ctx.method in ("initialize", "server/discover"):
        result["capabilities"]["agents"] = {"listChanged": True}
    return result


server.middleware.append(declare_agents)


async def over_stdio() -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def sse_app() -> Starlette:
    transport = SseServerTransport("/messages/")

    async def stream(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", stream), Mount("/messages/", app=transport.handle_post_message)])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(over_stdio())
    else:
        app = sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=0)  # prints where it listens
