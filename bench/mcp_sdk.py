"""The agents of `mcp_ours.py` on the published SDK `mcp`, in whose virtualenv this file runs: `stdio`,
`http`, or `json`: over HTTP with answers that are JSON, which is faster, and in which the SDK drops all progress.

Written the way that costs the SDK least: its low-level server, plain objects where it takes them, the tracing that it
has on by default switched off, and over HTTP the settings of uvicorn that ours has. It keeps nothing: a run is
forgotten when it ends.
"""

import asyncio
import socket
import sys
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
AGENTS = [
    {"name": "echo", "description": "Says what it hears.", "inputSchema": SCHEMA, "outputSchema": SCHEMA},
    {"name": "counter", "description": "Counts as far as told.", "inputSchema": COUNT, "outputSchema": SCHEMA},
]


class RunParams(types.RequestParams):
    name: str
    input: dict[str, Any]


class Progress(types.Notification[dict[str, Any], str]):
    method: str = "notifications/agents/run/progress"
    params: dict[str, Any]


async def list_agents(ctx: Any, params: Any) -> dict[str, Any]:
    return {"agents": AGENTS}


async def run(ctx: Any, params: RunParams) -> dict[str, Any]:
    if params.name == "echo":
        return {"output": {"text": params.input["text"]}}
    if params.name != "counter":
        raise ValueError(f"there is no agent {params.name!r}")
    token = (ctx.meta or {}).get("progress_token")
    said = []
    for index in range(params.input["count"]):
        said.append(text := f"token{index} ")
        if token is not None:
            told = Progress.model_construct(params={"progressToken": token, "delta": {"text": text}})
            await ctx.session.send_notification(told, related_request_id=ctx.request_id)
    return {"output": {"text": "".join(said)}}


def server() -> Any:
    made = Server("counter", version="1")
    made.middleware.clear()
    made.add_request_handler("agents/list", types.PaginatedRequestParams, list_agents)
    made.add_request_handler("agents/run", RunParams, run)
    return made


async def stdio() -> None:
    from mcp.server.stdio import stdio_server

    made = server()
    async with stdio_server() as (reads, writes):
        await made.run(reads, writes, made.create_initialization_options(experimental_capabilities={"agents": {}}))


def http(*, json_response: bool) -> None:
    import uvicorn

    listening = socket.socket()
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.bind(("127.0.0.1", 0))
    print(f"Serving on http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        server().streamable_http_app(json_response=json_response),
        http="httptools", loop="asyncio", lifespan="on", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )  # fmt: skip
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(stdio())
    else:
        http(json_response=sys.argv[1] == "json")
