"""An MCP server without agents, made with the published library: tools of every kind, and prompts.

`plain_server.py` speaks over stdio; `plain_server.py http` serves an address, and prints it first. It notes some calls
in the file that the environment variable CALLS_LOG names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from pydantic import BaseModel, Field

server = MCPServer("plain")


class Total(BaseModel):
    total: int
    parts: list[int]


class Where(BaseModel):
    city: str


@server.tool()
def add(numbers: list[int]) -> Total:
    """Adds numbers."""
    return Total(total=sum(numbers), parts=numbers)


@server.tool(structured_output=False)
def shout(text: Annotated[str, Field(description="what to shout")]) -> str:
    """Says it louder."""
    return text.upper()


@server.tool()
def names() -> list[str]:
    """Gives back a list, which the library wraps in an object."""
    return ["one", "two"]


@server.tool()
def picture() -> types.CallToolResult:
    """Gives back a picture, a file and a link."""
    page = types.TextResourceContents(uri="file:///notes.txt", text="notes", mime_type="text/plain")
    image = Image(data=b"\x89PNG", format="png").to_image_content()
    link = types.ResourceLink(uri="https://example.com/r.csv", name="r.csv", mime_type="text/csv", size=12)
    text = types.TextContent(text="a picture")
    return types.CallToolResult(content=[text, image, link, types.EmbeddedResource(resource=page)])


@server.tool()
async def count(to: int, ctx: Context[Any, Any]) -> str:
    """Counts, and says how far it is."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"counting to {to}")
    return "done"


@server.tool()
def refuse(reason: str) -> str:
    """Fails."""
    raise ToolError(reason)


@server.tool()
async def travel(ctx: Context[Any, Any]) -> str:
    """Asks where to."""
    answer = await ctx.elicit("Where to?", Where)
    return f"to {answer.data.city}" if answer.action == "accept" else answer.action


@server.tool()
async def hang(ctx: Context[Any, Any]) -> str:
    """Never ends by itself."""
    note("hang")
    await ctx.report_progress(0, None, "hanging")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return ""


def note(word: str) -> int:
    """Notes a call. Returns how often this was noted by now."""
    log = Path(os.environ["CALLS_LOG"])
    with log.open("a") as file:
        file.write(f"{word}\n")
    return log.read_text().splitlines().count(word)


def die_once(word: str) -> str:
    if note(word) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{word} survived"


@server.tool()
def pay() -> str:
    """Must not be done twice. Kills the server the first time."""
    return die_once("pay")


@server.tool(annotations=types.ToolAnnotations(idempotent_hint=True))
def store() -> str:
    """May be done twice. Kills the server the first time."""
    return die_once("store")


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def crash() -> str:
    """Kills the server each time."""
    note("crash")
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool()
async def learn(name: str, ctx: Context[Any, Any]) -> str:
    """Becomes able to do something else, and forgets how to shout."""

    def learned() -> str:
        return f"I am {name}"

    server.add_tool(learned, name=name)
    server.remove_tool("shout")
    await ctx.session.send_tool_list_changed()
    return "learned"


@server.prompt()
def review(code: str, language: str = "Python") -> str:
    """Asks for a review."""
    return f"Review this {language}: {code}"


@server.prompt()
def interview(topic: str) -> list[UserMessage | AssistantMessage]:
    """Begins a conversation."""
    return [UserMessage(f"Ask me about {topic}."), AssistantMessage("What do you know?")]


@server.prompt()
def greeting() -> str:
    """Takes no arguments."""
    return "Hello"


def http() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    app = server.streamable_http_app(json_response="json" in sys.argv)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    if "http" in sys.argv[1:]:
        http()
    else:
        server.run("stdio")
