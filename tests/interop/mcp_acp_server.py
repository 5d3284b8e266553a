"""Agents that are written with the PyPI SDK `acp-sdk` 0.0.6, in the SDK's own virtualenv.

    python mcp_acp_server.py stdio
    python mcp_acp_server.py sse        prints its address

Nothing of our own package is imported here: what we can run here we can run of everybody who uses the SDK.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from acp.server.highlevel import Context, Server
from acp.server.highlevel.agents import Agent
from pydantic import BaseModel

server = Server("acp-sdk agents")
stopped: asyncio.Queue[str] = asyncio.Queue()


class Words(BaseModel):
    text: str


class Log(BaseModel):
    level: str
    message: str


class Said(BaseModel):
    text: str
    logs: list[Log | None] = []
    score: float | None = None


class Style(BaseModel):
    tone: str


class Numbers(BaseModel):
    numbers: list[int]


class Total(BaseModel):
    total: int
    seen: list[int | None]


@server.agent("echo", "Repeats what it hears, word by word.", input=Words, output=Said, framework="none", tags=["demo"])
async def echo(words: Words, ctx: Context) -> Said:
    said, logs = "", []
    for word in words.text.split():
        log = Log(level="info", message=word)
        await ctx.report_agent_run_progress(Said(text=word + " ", logs=[None, log]))
        said, logs = said + word + " ", [*logs, log]
    return Said(text=said, logs=logs)


@server.agent("adder", "Adds numbers.", input=Numbers, output=Total)
async def adder(numbers: Numbers, ctx: Context) -> Total:
    for number in numbers.numbers:
        await ctx.report_agent_run_progress(Total(total=number, seen=[None, number]))
    return Total(total=sum(numbers.numbers), seen=list(numbers.numbers))


@server.agent("lastword", "Ends with its last word alone, as generators of beeai-sdk do.", input=Words, output=Words)
async def lastword(words: Words, ctx: Context) -> Words:
    for word in words.text.split():
        await ctx.report_agent_run_progress(Words(text=word))
    return Words(text=words.text.split()[-1])


@server.agent("endless", "Goes on until it is stopped.", input=Words, output=Words)
async def endless(words: Words, ctx: Context) -> Words:
    await ctx.report_agent_run_progress(Words(text="begun "))
    try:
        await asyncio.Event().wait()
    finally:
        stopped.put_nowait(words.text)
    raise AssertionError("an event that nobody sets was set")


@server.agent("witness", "Tells what `endless` was busy with when it was stopped.", input=Words, output=Words)
async def witness(words: Words, ctx: Context) -> Words:
    return Words(text=await stopped.get())


@server.agent("breaks", "Fails in the middle.", input=Words, output=Words)
async def breaks(words: Words, ctx: Context) -> Words:
    await ctx.report_agent_run_progress(Words(text="so far "))
    raise ValueError(f"the {words.text} is broken")


@server.agent("retire", "Takes an agent away, and says that the list has changed.", input=Words, output=Words)
async def retire(words: Words, ctx: Context) -> Words:
    agents: dict[str, Any] = server._agent_manager._agents  # the SDK has no public way
    del agents[words.text]
    await ctx.session.send_agents_list_changed()
    return Words(text="gone")


@server.agent_template("styled", "Speaks in a tone.", config=Style, input=Words, output=Words, tags=["demo"])
async def styled(style: Style, ctx: Context) -> Agent:
    async def speak(words: Words, ctx: Context) -> Words:
        return Words(text=f"{words.text} in a {style.tone} tone")

    name = f"styled-{style.tone}"
    return Agent(name=name, description=None, input=Words, output=Words, run_fn=speak, destroy_fn=None)


async def serve_sse() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        server.settings.port = found.getsockname()[1]
    server.settings.host = "127.0.0.1"
    server.settings.log_level = "INFO"  # uvicorn prints the address when it listens
    await server.run_sse_async(timeout_graceful_shutdown=0)  # its sessions outlive their clients


if __name__ == "__main__":
    if sys.argv[1] == "sse":
        asyncio.run(serve_sse())
    else:
        server.run("stdio")
