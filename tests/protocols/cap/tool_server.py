"""A tool server made with the published library, which does what tests need. `tool_server.py` speaks over stdio;
`tool_server.py http PORT` serves an address, and prints its port first."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

NAMES = ["about", "say", "blocks", "fail", "big", "wait", "cancelled", "grow", "die", "spawn"]
PAGE = 4
_began, _cancelled = anyio.Event(), anyio.Event()


async def list_tools(ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    _note("list")
    start = int(params.cursor) if params is not None and params.cursor else 0
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "x-own": [1]}
    found = [types.Tool(name=name, description=f"Does {name}.", input_schema=schema) for name in NAMES]
    more = str(start + PAGE) if start + PAGE < len(found) else None
    return types.ListToolsResult(tools=found[start : start + PAGE], next_cursor=more)


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    _note(params.name)
    given = params.arguments or {}
    match params.name:
        case "about":
            headers = dict(ctx.request.headers) if ctx.request is not None else {}
            told = {"scopes": ctx.meta.get("interlingua/scopes"), "pid": os.getpid(), "cwd": str(Path.cwd()),
                    "env": dict(os.environ), "args": sys.argv[1:], "headers": headers}  # fmt: skip
            return types.CallToolResult(content=[], structured_content=told)
        case "say":
            return _texts(*given["texts"])
        case "blocks":
            data = base64.b64encode(b"\x89PNG").decode()
            page = types.TextResourceContents(uri="file:///notes.txt", text="notes", mime_type="text/plain")
            return types.CallToolResult(
                content=[
                    types.TextContent(text="a picture"),
                    types.ImageContent(data=given.get("data", data), mime_type="image/png"),
                    types.ResourceLink(uri="https://example.com/r.csv", name="r.csv", mime_type="text/csv", size=12),
                    types.EmbeddedResource(resource=page),
                ]
            )
        case "fail":
            said = types.TextContent(text=given.get("text", "the table is locked"))
            return types.CallToolResult(content=[said], is_error=True)
        case "big":
            return _texts("x" * given["size"])
        case "wait":
            _began.set()
            try:
                await anyio.sleep_forever()
            except BaseException:
                _cancelled.set()
                raise
        case "cancelled":
            await _cancelled.wait()
            return _texts("yes")
        case "grow":
            NAMES.append(given["name"])
            await ctx.session.send_tool_list_changed()
            return _texts("grown")
        case "die":
            if given.get("when") == "waited":
                await _began.wait()
            print("the disk is full", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "spawn":
            child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
            return types.CallToolResult(content=[], structured_content={"pid": child.pid})
    raise ValueError(f"there is no tool {params.name}")


def _texts(*texts: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text) for text in texts])


def _note(word: str) -> None:
    if log := os.environ.get("CALLS_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{word}\n")


server: Server[Any] = Server("tests", on_list_tools=list_tools, on_call_tool=call_tool)


async def stdio() -> None:
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


def http() -> None:
    listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    print(listening.getsockname()[1], flush=True)
    app = server.streamable_http_app(json_response="json" in sys.argv)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    _note("start")
    if "http" in sys.argv[1:]:
        http()
    else:
        anyio.run(stdio)
