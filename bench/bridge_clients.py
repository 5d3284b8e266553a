"""Clients of the five doors that cost little: bare connections that stay open, and as few requests as the wire allows.

`call` runs an agent and gives its text; `pieces` gives its text as it comes. The same client measures a server directly
and through a bridge. `talk` says that a call goes on with a conversation (a thread) that the client keeps for the
agent; otherwise it is on its own, and what the wire needs for that is part of it: a session of the editor protocol.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import websockets.asyncio.client

MODERN = "2026-07-28"
_META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}

decode = msgspec.json.Decoder().decode


class Connection:
    """HTTP/1.1, one request after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._host, self._port = host, int(port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def _send(self, method: str, path: str, body: Any, headers: str) -> tuple[int, dict[str, str]]:
        if self._reader is not None and self._reader.at_eof():
            await self.close()  # servers close what nobody used for a while
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._reader is not None
        data = b"" if body is None else msgspec.json.encode(body)
        kind = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n" if data else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{kind}{headers}\r\n"
        self._writer.write(head.encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        told = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), told

    async def ask(self, method: str, path: str, body: Any = None, headers: str = "") -> Any:
        status, told = await self._send(method, path, body, headers)
        assert self._reader is not None
        data = await self._reader.readexactly(int(told["content-length"]))
        if status not in (200, 201, 202):
            raise RuntimeError(f"{method} {path} was answered with {status} {data[:500]!r}")
        return decode(data)

    async def events(self, method: str, path: str, body: Any = None, headers: str = "") -> AsyncIterator[Any]:
        """The data of an event stream, which is read to its end."""
        status, told = await self._send(method, path, body, headers)
        assert self._reader is not None
        if told.get("transfer-encoding") != "chunked" or status != 200:
            data = await self._reader.readexactly(int(told["content-length"]))
            if status != 200:
                raise RuntimeError(f"{method} {path} was answered with {status} {data[:500]!r}")
            yield decode(data)
            return
        rest = b""
        while size := int(await self._reader.readline(), 16):
            rest += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and line[5:].strip():
                    yield decode(line[5:])
        await self._reader.readexactly(2)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class Client:
    """One client of one door."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.http = Connection(address)
        self._threads: dict[str, str] = {}

    async def call(self, agent: str, text: str, *, talk: bool = False) -> str:
        raise NotImplementedError

    def pieces(self, agent: str, text: str) -> AsyncIterator[str]:
        raise NotImplementedError

    def thread(self, agent: str) -> str:
        """The conversation of this client with an agent."""
        if agent not in self._threads:
            self._threads[agent] = str(uuid.uuid4())
        return self._threads[agent]

    async def close(self) -> None:
        await self.http.close()


class Connect(Client):
    async def call(self, agent: str, text: str, *, talk: bool = False) -> str:
        body: dict[str, Any] = {"agent_id": agent, "input": {"text": text}}
        runs = "/connect/runs"
        if talk:
            runs, body["if_not_exists"] = f"/connect/threads/{self.thread(agent)}/runs", "create"
        told = await self.http.ask("POST", f"{runs}/wait", body)
        return str(told["output"]["values"]["text"])

    async def pieces(self, agent: str, text: str) -> AsyncIterator[str]:
        body = {"agent_id": agent, "input": {"text": text}, "stream_mode": "custom"}
        async for told in self.http.events("POST", "/connect/runs/stream", body):
            update = told.get("update") or {}
            if update.get("kind") == "delta":
                yield update["delta"]["text"]


class Mcp(Client):
    def _request(self, agent: str, text: str, **meta: Any) -> tuple[dict[str, Any], str]:
        params = {"name": agent, "input": {"text": text}, "_meta": {**_META, **meta}}
        headers = (
            "accept: application/json, text/event-stream\r\n"
            f"mcp-protocol-version: {MODERN}\r\nmcp-method: agents/run\r\nmcp-name: {agent}\r\n"
        )
        return {"jsonrpc": "2.0", "id": 1, "method": "agents/run", "params": params}, headers

    async def call(self, agent: str, text: str, *, talk: bool = False) -> str:
        meta = {"interlingua/thread": self.thread(agent)} if talk else {}
        told = await self.http.ask("POST", "/mcp", *self._request(agent, text, **meta))
        return str(told["result"]["output"]["text"])

    async def pieces(self, agent: str, text: str) -> AsyncIterator[str]:
        async for told in self.http.events("POST", "/mcp", *self._request(agent, text, progressToken=1)):
            if "method" in told:
                yield told["params"]["delta"]["text"]


class Peer(Client):
    async def call(self, agent: str, text: str, *, talk: bool = False) -> str:
        body = {"role": "user", "text": text, "skill_id": agent, "sync": True}
        if talk:
            body["context_id"] = self.thread(agent)
        told = await self.http.ask("POST", "/peer/message:send", body)
        return "".join(part["content"] for part in told["reply"]["parts"])

    async def pieces(self, agent: str, text: str) -> AsyncIterator[str]:
        body = {"skill_id": agent, "input": {"parts": [{"type": "text", "content": text}]}}
        task = (await self.http.ask("POST", "/peer/tasks", body))["task"]["id"]
        async for told in self.http.events("GET", f"/peer/tasks/{task}:subscribe"):
            if told["type"] == "artifact" and told["artifact"]["artifact_id"] == "output":
                for part in told["artifact"]["parts"]:
                    yield part["content"]


class Cap(Client):
    _count = 0

    async def call(self, agent: str, text: str, *, talk: bool = False) -> str:
        output = ""
        about = {"metadata": {"thread": self.thread(agent)}} if talk else {}
        async for told in self._events(agent, text, **about):  # to its end: the connection is used again
            if told.get("final"):
                output = told["output"]["text"]
        return output

    async def _events(self, agent: str, text: str, **about: Any) -> AsyncIterator[Any]:
        Cap._count += 1
        task = f"T{id(self)}-{Cap._count}"
        notice = {
            "type": "delegation_notice", "task_id": task, "sender_id": "user", "recipient_id": agent,
            "context_summary": text, **about,
        }  # fmt: skip
        await self.http.ask("POST", "/cap/messages", notice)
        async for told in self.http.events("GET", f"/cap/tasks/{task}/events"):
            yield told

    async def pieces(self, agent: str, text: str) -> AsyncIterator[str]:
        async for told in self._events(agent, text):
            if "delta" in told:
                yield told["delta"]["text"]


class Editor(Client):
    """Over a WebSocket. Its pieces are of a session that it keeps for each agent."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._socket: websockets.asyncio.client.ClientConnection | None = None
        self._sessions: dict[str, str] = {}
        self._keys: dict[str, str] = {}  # agents, as the option says which names them
        self._number = 0

    async def _ask(self, method: str, params: dict[str, Any]) -> int:
        if self._socket is None:
            address = self.address.replace("http://", "ws://") + "/editor"
            self._socket = await websockets.asyncio.client.connect(address, compression=None, max_size=None)
            await self._answer("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        self._number += 1
        asked = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self._socket.send(json.dumps(asked))
        return self._number

    async def _told(self, method: str, params: dict[str, Any]) -> AsyncIterator[Any]:
        """What is told until the answer, and the answer as the last."""
        number = await self._ask(method, params)
        assert self._socket is not None
        async for message in self._socket:
            told = decode(message)
            if "error" in told:
                raise RuntimeError(str(told["error"]))
            yield told
            if told.get("id") == number:
                return

    async def _answer(self, method: str, params: dict[str, Any]) -> Any:
        async for told in self._told(method, params):
            last = told
        return last["result"]

    async def _session(self, agent: str) -> str:
        """A session with an agent. Whom it is with is said with the request, once it is known how: one of ours does it
        at once, as our own client has it."""
        params: dict[str, Any] = {"cwd": "/", "mcpServers": []}
        if agent in self._keys:
            params["_meta"] = {"interlingua/agent": self._keys[agent]}
        made = await self._answer("session/new", params)
        choice = next(one for one in made["configOptions"] if one["id"] == "agent")
        value = next(o["value"] for o in choice["options"] if o["value"].partition("@")[0] == agent)
        if choice["currentValue"] != value:
            chosen = {"sessionId": made["sessionId"], "configId": "agent", "value": value}
            await self._answer("session/set_config_option", chosen)
        self._keys[agent] = value
        return str(made["sessionId"])

    async def _prompt(self, session: str, text: str) -> AsyncIterator[str]:
        params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        async for told in self._told("session/prompt", params):
            update = told.get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                yield update["content"]["text"]

    async def call(self, agent: str, text: str, *, talk: bool = False) -> str:
        if talk:
            return "".join([piece async for piece in self.pieces(agent, text)])
        session = await self._session(agent)
        said = "".join([piece async for piece in self._prompt(session, text)])
        await self._ask("session/close", {"sessionId": session})  # nobody waits for its answer
        return said

    async def pieces(self, agent: str, text: str) -> AsyncIterator[str]:
        if agent not in self._sessions:
            self._sessions[agent] = await self._session(agent)
        async for piece in self._prompt(self._sessions[agent], text):
            yield piece

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()


CLIENTS: dict[str, type[Client]] = {"connect": Connect, "mcp": Mcp, "peer": Peer, "editor": Editor, "cap": Cap}
