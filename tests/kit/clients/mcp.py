"""A raw client of the MCP door: `tests.kit.clients.rpc` with the messages of MCP, and agents to run.

`stdio` starts the real command as a desktop assistant would; `in_process` serves the same door over a pair of pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec

import interlingua as il
from interlingua.model.delta import ABSENT, Joiner
from interlingua.model.run import OWNER, Caller
from interlingua.protocols.mcp.config import DoorSettings
from interlingua.protocols.mcp.door.connection import McpConnection
from interlingua.protocols.mcp.door.door import McpDoor
from interlingua.protocols.mcp.wire import MODERN
from interlingua.transports.jsonrpc.connection import Trace
from tests.kit.clients import rpc
from tests.kit.clients.rpc import INTERLINGUA, PATIENCE, Message, Refused, pipes
from tests.kit.engines import QUICK

__all__ = [
    "COMMAND", "DELTA", "LATEST", "LEGACY", "MODERN", "PATIENCE", "RUN", "THREAD", "Client", "Message", "Process",
    "Refused", "client_of", "in_process", "stdio",
]  # fmt: skip

COMMAND = [INTERLINGUA, "stdio", "--as", "mcp"]
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST = LEGACY[-1]
DELTA = "notifications/agents/run/progress"
RUN, THREAD = "interlingua/run", "interlingua/thread"
SCHEMA = "interlingua/answerSchema"

_IO = "io.modelcontextprotocol/"


class Client(rpc.Client):
    async def initialize(self, version: Any = LATEST, *, elicits: bool = False, **members: Any) -> Message:
        able = {"elicitation": {}} if elicits else {}
        request = {"protocolVersion": version, "capabilities": able, "clientInfo": {"name": "test", "version": "1"}}
        id_ = await self.send("initialize", {**request, **members}, id_=f"initialize {self.count}")
        told: Message = rpc.result_of(await self.answer(id_))
        await self.notify("notifications/initialized")
        return told

    async def start_run(self, name: str, input_: Message, **meta: Any) -> Any:
        """Send `agents/run`; its id, for `answer`. `token` is the progress token, the rest stands in `_meta`."""
        return await self.send("agents/run", {"name": name, "input": input_, **_meta(meta)})

    async def run(self, name: str, input_: Message, **meta: Any) -> Message:
        """The output of a run."""
        output: Message = (await self.whole_run(name, input_, **meta))["output"]
        return output

    async def whole_run(self, name: str, input_: Message, **meta: Any) -> Message:
        result: Message = rpc.result_of(await self.answer(await self.start_run(name, input_, **meta)))
        return result

    async def failed_run(self, name: str, input_: Message, **meta: Any) -> Message:
        answer = await self.answer(await self.start_run(name, input_, **meta))
        error: Message = answer["error"]
        return error

    async def start_tool(self, name: str, arguments: Any = None, **meta: Any) -> Any:
        return await self.send("tools/call", {"name": name, "arguments": arguments or {}, **_meta(meta)})

    async def tool(self, name: str, arguments: Any = None, **meta: Any) -> Message:
        result: Message = rpc.result_of(await self.answer(await self.start_tool(name, arguments, **meta)))
        return result

    def deltas(self, token: Any) -> list[Message]:
        """The deltas that came with a token, in order."""
        return [
            message["params"]["delta"]
            for message in self.notices(DELTA)
            if _same(message["params"]["progressToken"], token)
        ]

    def joined(self, token: Any) -> Any:
        return join(self.deltas(token))

    def notices(self, method: str) -> list[Message]:
        return [message for message in self.messages if message.get("method") == method]

    async def notice(self, method: str, *, after: int = 0) -> Message:
        return await self.wait_for(lambda m: m.get("method") == method, after=after)

    def place(self, message: Message) -> int:
        """Where among all that came a message stands."""
        return next(i for i, other in enumerate(self.messages) if other is message)

    # -- the revision without a handshake -----------------------------------------------------------------

    async def modern(
        self, method: str, params: Message | None = None, *, elicits: bool = False, **meta: Any
    ) -> Message:
        """Send a request that says in itself what the handshake would have said, and wait for its answer."""
        able = {"elicitation": {"form": {}}} if elicits else {}
        told = {_IO + "protocolVersion": MODERN, _IO + "clientCapabilities": able, **_meta(meta).get("_meta", {})}
        return await self.call(method, {**(params or {}), "_meta": told})


class Process(Client, rpc.Process):
    """The client of a process of its own."""


def _meta(meta: Message) -> Message:
    if "token" in meta:
        meta["progressToken"] = meta.pop("token")
    return {"_meta": meta} if meta else {}


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def join(deltas: list[Message]) -> Any:
    joiner = Joiner()
    for delta in deltas:
        joiner.add(delta)
    return None if joiner.value is ABSENT else joiner.value


@contextlib.asynccontextmanager
async def stdio(folder: Path, agents: str | Path, *options: str) -> AsyncIterator[Process]:
    """`interlingua stdio --as mcp` as a process, with a store and a stderr file in `folder`.

    Agents are a file, or the source of one.
    """
    if isinstance(agents, str):
        path = folder / "agents.py"
        path.write_text(agents)
    else:
        path = agents
    command = [*COMMAND, "--store", str(folder / "store.db"), *options, str(path)]
    async with rpc.start(Process, command, folder / "stderr.txt") as client:
        yield client


@contextlib.asynccontextmanager
async def client_of(
    engine: il.Engine, caller: Caller = OWNER, settings: DoorSettings | None = None, trace: Trace | None = None
) -> AsyncIterator[tuple[Client, McpConnection]]:
    """One client more of an engine that runs in this process. At the end it hangs up, and the door lets it go."""
    channel, reader, writer = await pipes()
    connection = McpDoor(engine, settings).connect(channel, caller, trace)
    serving = asyncio.create_task(connection.rpc.run())
    client = Client(reader, writer)
    try:
        yield client, connection
    finally:
        client.read_on()
        await client.end_input()
        async with asyncio.timeout(PATIENCE):
            await serving
        connection.gone()
        await client.reading
        await client.stop()


@contextlib.asynccontextmanager
async def in_process(store: Path, *agents: Any, **door: Any) -> AsyncIterator[tuple[Client, il.Engine]]:
    """The door in this process, with an engine of its own."""
    async with (
        il.Engine(store, agents=agents, settings=QUICK) as engine,
        client_of(engine, settings=DoorSettings(**door)) as (client, _),
    ):
        yield client, engine


# -- agents ---------------------------------------------------------------------------------------------------


@il.agent
async def echo(text: str):
    """Repeats what it hears, word by word."""
    for word in text.split():
        yield word + " "


class Total(msgspec.Struct):
    total: int
    seen: list[int]
    note: str | None = None


@il.agent
async def adder(numbers: list[int], ctx: il.Context[Any, Any]) -> Total:
    """Adds numbers, and shows each as it goes."""
    for number in numbers:
        await ctx.emit({"total": number, "seen": [None, number]})
    return Total(sum(numbers), numbers, "done")


@il.agent
async def silent(text: str) -> str:
    """Says all at once."""
    return text.upper()


@il.agent
async def regrets(text: str, ctx: il.Context[Any, Any]) -> str:
    """Says one thing, and ends with another."""
    await ctx.emit("first thoughts")
    return "something else"


@il.agent
async def slow(text: str):
    """Says one word, and goes on for ever."""
    yield "begun "
    await asyncio.Event().wait()


class Broken(il.AgentError):
    """It is broken."""

    code = "broken"
    transient = True


@il.agent(errors=[Broken])
async def breaks(text: str):
    """Fails in the middle."""
    yield "so far "
    raise Broken("the saw is broken", details={"tool": "saw"})


@il.agent(asks=[il.Confirm])
async def careful(text: str, ctx: il.Context[Any, Any]):
    """Asks before it does anything."""
    yield "asking. "
    verdict = await ctx.ask(il.Confirm(message=f"Do {text}?"))
    yield "done" if verdict.approved else "left alone"


class Address(msgspec.Struct):
    street: str
    number: int
    country: Literal["it", "fr"] = "it"


class WhereTo(il.Question[Address]):
    """Where shall it go?"""


@il.agent(asks=[WhereTo])
async def shipper(text: str, ctx: il.Context[Any, Any]) -> str:
    """Asks for an address."""
    address = await ctx.ask(WhereTo())
    return f"{address.street} {address.number} {address.country}"


class Lines(msgspec.Struct):
    lines: list[list[str]]


class Table(il.Question[Lines]):
    """Which lines?"""


@il.agent(asks=[Table])
async def deep(text: str, ctx: il.Context[Any, Any]) -> str:
    """Asks for what is more than a flat form."""
    return str((await ctx.ask(Table())).lines)


class Said(msgspec.Struct):
    said: list[str] = []


class Style(msgspec.Struct):
    tone: str = "dry"


@il.agent
async def remember(text: str, ctx: il.Context[Said, None]) -> str:
    """Remembers what was said."""
    ctx.state.said.append(text)
    return " ".join(ctx.state.said)


@il.agent(version="2.0.0")
async def styled(text: str, ctx: il.Context[None, Style]) -> str:
    """Speaks in a tone."""
    return f"{text} in a {ctx.config.tone} tone"


@il.agent
async def show(text: str, ctx: il.Context[Any, Any]):
    """Shows what it does."""
    await ctx.thought("Let me think.")
    await ctx.plan([il.PlanEntry("look", status="completed"), il.PlanEntry("leap", status="in_progress")])
    await ctx.tool_call("call-1", title="Edit", status="in_progress")
    yield "Half "
    await ctx.warn("Something is odd.")
    yield "and whole."
