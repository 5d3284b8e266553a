"""A raw client of the editor door: `tests.kit.clients.rpc` with the messages of an editor.

`stdio` starts the real command as an editor would; `in_process` serves the same door over a pair of pipes. Both give a
`Client`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from interlingua.engine.engine import Engine
from interlingua.model.run import OWNER, Caller
from interlingua.protocols.editor.config import DoorSettings
from interlingua.protocols.editor.door.connection import EditorConnection
from interlingua.protocols.editor.door.door import EditorDoor
from tests.kit.clients import rpc
from tests.kit.clients.rpc import INTERLINGUA, PATIENCE, Message, Refused, check_frame, pipes, result_of

__all__ = [
    "COMMAND", "PATIENCE", "Client", "Message", "Process", "Refused", "check_frame", "client_of", "in_process", "pipes",
    "prompt", "result_of", "selected", "stdio",
]  # fmt: skip

COMMAND = [INTERLINGUA, "stdio", "--as", "editor"]


class Client(rpc.Client):
    def allow(self, option: int = 0) -> None:
        """Answer every permission request with one of its options."""
        self.on("session/request_permission", lambda params: selected(params["options"][option]["optionId"]))

    async def update(self, kind: str, matches: Callable[[Message], Any] = lambda _: True, *, after: int = 0) -> Message:
        """The first session update of a kind (that matches)."""

        def fits(message: Message) -> bool:
            update = message.get("params", {}).get("update", {}) if message.get("method") == "session/update" else {}
            return update.get("sessionUpdate") == kind and bool(matches(update))

        found: Message = (await self.wait_for(fits, after=after))["params"]["update"]
        return found

    def updates(self, session: str | None = None) -> list[Message]:
        """The session updates that came, in order."""
        return [
            message["params"]["update"]
            for message in self.messages
            if message.get("method") == "session/update" and session in (None, message["params"]["sessionId"])
        ]

    def text(self, session: str | None = None, kind: str = "agent_message_chunk") -> str:
        """What the agent has said."""
        chunks = [update for update in self.updates(session) if update["sessionUpdate"] == kind]
        return "".join(chunk["content"].get("text", "") for chunk in chunks)

    async def initialize(self, version: int = 1, **members: Any) -> Message:
        """`members` are those of the request: clientCapabilities, or info and capabilities."""
        told: Message = await self.ask("initialize", {"protocolVersion": version, **members})
        return told

    async def new_session(self, cwd: str = "/tmp", **members: Any) -> str:
        session: str = (await self.ask("session/new", {"cwd": cwd, "mcpServers": [], **members}))["sessionId"]
        return session

    async def start_prompt(self, session: str, *blocks: str | Message) -> Any:
        """Send a prompt; its id, for `answer`."""
        return await self.send("session/prompt", prompt(session, *blocks))

    async def prompt(self, session: str, *blocks: str | Message) -> Any:
        """Send a prompt and wait for its result."""
        return await self.ask("session/prompt", prompt(session, *blocks))


class Process(Client, rpc.Process):
    """The client of a process of its own."""


def prompt(session: str, *blocks: str | Message) -> Message:
    told = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return {"sessionId": session, "prompt": told}


def selected(option: str) -> Message:
    return {"outcome": {"outcome": "selected", "optionId": option}}


@contextlib.asynccontextmanager
async def stdio(
    folder: Path, agents: str | Path, *options: str, env: dict[str, str] | None = None
) -> AsyncIterator[Process]:
    """`interlingua stdio --as editor` as a process, with a store and a stderr file in `folder`.

    Agents are a file, or the source of one.
    """
    if isinstance(agents, str):
        path = folder / "agents.py"
        path.write_text(agents)
    else:
        path = agents
    command = [*COMMAND, "--store", str(folder / "store.db"), *options, str(path)]
    async with rpc.start(Process, command, folder / "stderr.txt", env) as client:
        yield client


@contextlib.asynccontextmanager
async def client_of(
    engine: Engine, settings: DoorSettings | None = None, caller: Caller = OWNER
) -> AsyncIterator[tuple[Client, EditorConnection]]:
    """One client more of an engine that runs in this process. At the end it hangs up, and the door lets it go."""
    channel, reader, writer = await pipes()
    connection = EditorDoor(engine, settings).connect(channel, caller)
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
async def in_process(
    store: Path | str, *agents: Any, door: DoorSettings | None = None, settings: Any = None
) -> AsyncIterator[Client]:
    """The door in this process, with an engine of its own."""
    async with (
        Engine(store, agents=agents, settings=settings) as engine,
        client_of(engine, door) as (client, _),
    ):
        yield client
