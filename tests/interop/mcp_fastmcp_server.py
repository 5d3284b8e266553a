"""Tools and prompts on PyPI `fastmcp` 4.1.2, in its own virtualenv.

python mcp_fastmcp_server.py stdio|http      http prints its address
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastmcp import Context, FastMCP

server: FastMCP[Any] = FastMCP("fast")


@dataclass
class Total:
    total: int


@server.tool
def add(a: int, b: int) -> Total:
    """Adds two numbers."""
    return Total(a + b)


@server.tool
def shout(text: str) -> str:
    return text.upper()


@server.tool
async def count(to: int, ctx: Context) -> str:
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, "counting")
    return "done"


@server.tool
async def travel(ctx: Context) -> str:
    answer = await ctx.elicit("Where to?", response_type=str)
    return f"to {answer.data}" if answer.action == "accept" else answer.action


@server.tool
def refuse(reason: str) -> str:
    raise ValueError(reason)


@server.prompt
def review(code: str) -> str:
    return f"Review {code}"


if __name__ == "__main__":
    if sys.argv[1] == "http":
        listening = socket.create_server(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(server.http_app(), log_level="error")).run(sockets=[listening])
    else:
        server.run("stdio", show_banner=False)
