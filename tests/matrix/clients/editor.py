"""The Agent Client Protocol by hand, version 1, over a WebSocket or the pipes of a process.

A session is a thread; an option of it says which agent answers. Questions come as requests of the agent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import websockets.asyncio.client
import websockets.exceptions

from ..behaviours import ANSWER_SCHEMA, laid
from .base import PATIENCE, Asked, DoorClient, Failed, File, Json, Listed, Turn, question


class Wire(Protocol):
    """Whole messages, in order."""

    async def send(self, message: str) -> None: ...

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...

    async def close(self) -> None: ...


class Pipes:
    """The same over stdin and stdout of a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def send(self, message: str) -> None:
        self._in.write(message.encode() + b"\n")
        await self._in.drain()

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        while line := await self._out.readline():
            yield line

    async def close(self) -> None:
        self._in.close()
        with contextlib.suppress(ConnectionError):
            await self._in.wait_closed()


class EditorTurn(Turn):
    def __init__(self, client: EditorClient, session: str) -> None:
        super().__init__()
        self.client = client
        self.session = session
        self._request: Json = {}
        self._message = ""
        self._member = ""  # of the form that asks for one word
        self._schema: Json | None = None  # of what is asked for, where that is more than the form

    async def prompt(self, params: Json) -> None:
        answer = await self.client.call("session/prompt", params)
        if "error" in answer:
            told, about = answer["error"], answer["error"]["data"]
            self.over("failed", Failed(about["code"], told["message"], about["transient"], about.get("details")))
            return
        result = answer["result"]
        self.so_far.output = result["_meta"]["interlingua"].get("output")
        self.over("cancelled" if result["stopReason"] == "cancelled" else "succeeded")

    def told(self, update: Json) -> None:
        if update["sessionUpdate"] != "agent_message_chunk":
            return
        block = update["content"]
        ours = block.get("_meta", {})
        if "interlingua/data" in ours:
            self.so_far.data.append(ours["interlingua/data"])
        elif block["type"] == "text":
            if update["messageId"] != self._message:  # another one: the last is what the agent has to say
                self._message, self.so_far.text = update["messageId"], ""
            self.so_far.text += block["text"]
            self.piece(block["text"])
        elif block["type"] == "resource_link":
            self.so_far.files.append(File(block["name"], block["mimeType"], url=block["uri"]))
        elif block["type"] == "resource":
            found = block["resource"]
            name = unquote(urlsplit(found["uri"]).path.rpartition("/")[2])
            body = base64.b64decode(found["blob"]) if "blob" in found else found["text"].encode()
            self.so_far.files.append(File(name, found["mimeType"], body))
        else:
            body = base64.b64decode(block["data"])
            self.so_far.files.append(File("", block["mimeType"], body))

    def request(self, message: Json) -> None:
        self._request, params = message, message["params"]
        if message["method"] == "session/request_permission":
            options = tuple(option["optionId"] for option in params["options"])
            self.asked(Asked("choose", params["toolCall"]["title"], options))
            return
        assert message["method"] == "elicitation/create"
        assert params["mode"] == "form"
        self._schema = params.get("_meta", {}).get(ANSWER_SCHEMA)
        asked = question(params["message"], self._schema or params["requestedSchema"])
        self._member = next(iter(params["requestedSchema"]["properties"]))
        self.asked(asked)

    async def answer(self, value: Any) -> None:
        if self._request["method"] == "session/request_permission":
            result: Json = {"outcome": {"outcome": "selected", "optionId": value}}
        elif self._schema is not None:
            result = {"action": "accept", "content": laid(self._schema, value)}
        else:
            result = {"action": "accept", "content": value if isinstance(value, dict) else {self._member: value}}
        await self.client.send({"id": self._request["id"], "result": result})

    async def cancel(self) -> None:
        await self.client.send({"method": "session/cancel", "params": {"sessionId": self.session}})


class EditorClient(DoorClient):
    door = "editor"

    def __init__(self, address: str, wire: Wire | None = None) -> None:
        super().__init__(address)
        self._wire = wire
        self._ids = 0
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._sessions: dict[str, EditorTurn | None] = {}
        self._begun: asyncio.Future[Json] | None = None
        self._receiving: asyncio.Task[None] | None = None

    # -- the wire -----------------------------------------------------------------------------------------

    async def send(self, message: Json) -> None:
        assert self._wire is not None
        await self._wire.send(json.dumps({"jsonrpc": "2.0", **message}))

    async def call(self, method: str, params: Json) -> Json:
        """The answer to a request: a result, or an error."""
        self._ids += 1
        id_ = self._ids
        answer = self._answers[id_] = asyncio.get_running_loop().create_future()
        await self.send({"id": id_, "method": method, "params": params})
        return await answer

    async def result(self, method: str, params: Json) -> Json:
        async with asyncio.timeout(PATIENCE):
            answer = await self.call(method, params)
        assert "result" in answer, answer
        told: Json = answer["result"]
        return told

    async def _receive(self) -> None:
        assert self._wire is not None
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            async for text in self._wire:
                self._take(json.loads(text))

    def _take(self, message: Json) -> None:
        if "method" not in message:
            self._answers.pop(message["id"]).set_result(message)
            return
        turn = self._sessions.get(message.get("params", {}).get("sessionId", ""))
        if turn is None:
            return
        try:
            if message["method"] == "session/update":
                turn.told(message["params"]["update"])
            elif "id" in message:
                turn.request(message)
        except Exception as error:
            turn.broke(error)

    async def begin(self) -> Json:
        """Connect and shake hands, once."""
        if self._begun is None:
            self._begun = asyncio.ensure_future(self._begin())
        return await self._begun

    async def _begin(self) -> Json:
        if self._wire is None:
            address = self.address.replace("http://", "ws://") + "/editor"
            self._wire = await websockets.asyncio.client.connect(address, max_size=None)
        self._receiving = asyncio.ensure_future(self._receive())
        able = {"elicitation": {"form": {}}}
        return await self.result("initialize", {"protocolVersion": 1, "clientCapabilities": able})

    async def close(self) -> None:
        await super().close()
        if self._wire is not None:
            await self._wire.close()
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)

    # -- what it does -------------------------------------------------------------------------------------

    async def _new(self) -> tuple[str, list[Json]]:
        """A session, and the agents that it can have."""
        await self.begin()
        made = await self.result("session/new", {"cwd": "/", "mcpServers": []})
        agents = [option for option in made.get("configOptions", []) if option["id"] == "agent"]
        return made["sessionId"], agents[0]["options"] if agents else []

    async def list(self) -> list[Listed]:
        _, agents = await self._new()
        return [Listed(agent["name"], agent.get("description", "")) for agent in agents]

    async def start(
        self, agent: str, text: str = "", *, data: Any = None, files: Sequence[File] = (), parts: Sequence[Any] = (),
        thread: str | None = None, metadata: Json | None = None, trace: dict[str, str] | None = None,
    ) -> Turn:  # fmt: skip
        session, agents = await self._new()
        if thread is not None:
            session = thread
        if agents:
            value = next(one["value"] for one in agents if one["name"] == agent)
            await self.result("session/set_config_option", {"sessionId": session, "configId": "agent", "value": value})
        turn = EditorTurn(self, session)
        self.turns.append(turn)
        self._sessions[session] = turn
        blocks: list[Json] = [{"type": "text", "text": text if data is None else json.dumps(data)}]
        blocks += map(_block, files)
        for value in parts:
            blocks.append({"type": "text", "text": json.dumps(value), "_meta": {"interlingua/data": value}})
        params: Json = {"sessionId": session, "prompt": blocks}
        if metadata or trace:
            params["_meta"] = {**(metadata or {}), **(trace or {})}
        turn.read(turn.prompt(params))
        return turn

    async def new_thread(self) -> str:
        session, _ = await self._new()
        return session


def _block(file: File) -> Json:
    if file.url:
        return {"type": "resource_link", "name": file.name, "uri": file.url, "mimeType": file.media_type}
    inner = {"uri": f"file:///{file.name}", "mimeType": file.media_type, "blob": base64.b64encode(file.data).decode()}
    return {"type": "resource", "resource": inner}
