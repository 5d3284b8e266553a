"""A raw HTTP client of the MCP door on a real server, and an agent to run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.filters import RunFilter
from interlingua.model.status import Status
from interlingua.protocols.mcp import wire
from interlingua.protocols.mcp.config import DoorSettings
from interlingua.protocols.mcp.door.http import WebDoor
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.transports.http.sse import Reader as SseReader
from interlingua.transports.http.sse import Received
from tests.kit.engines import QUICK
from tests.kit.wait_for import PATIENCE

WAIT = PATIENCE
FLOOD = 100  # pieces of 100 kB
BOTH = "application/json, text/event-stream"
PROGRESS = "notifications/agents/run/progress"

Message = dict[str, Any]


class Approval(il.Question[il.Verdict]):
    """Shall it be done?"""

    what: str


@il.agent(asks=[Approval])
async def helper(text: str, ctx: il.Context[None, None]) -> AsyncIterator[str]:
    if text == "ask":
        verdict = await ctx.ask(Approval(what="it"))
        yield "done" if verdict.approved else "refused"
    elif text == "wait":
        yield "waiting"
        await asyncio.sleep(3600)
    elif text == "flood":
        for number in range(FLOOD):
            yield f"{number:05} " + "x" * 100_000
            await asyncio.sleep(0.003)  # or all of it is one event
    elif text == "nothing":
        await asyncio.sleep(3600)
    else:
        yield "grüße "
        yield text


@contextlib.asynccontextmanager
async def up(store: Path, **settings: Any) -> AsyncIterator[tuple[Server, WebDoor]]:
    doors = {"mcp": DoorSettings(**settings)}
    async with (
        asyncio.timeout(60),
        serving(store, [helper], ServeSettings(port=0, engine=QUICK, doors=doors)) as server,
    ):
        web = server.app.doors["mcp"][1].close_streams.__self__  # type: ignore[union-attr]
        assert isinstance(web, WebDoor)
        yield server, web


class Answer:
    """The answer to one HTTP request, of which an event stream is read only when it is asked for."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.status = response.status_code
        self.kind = response.headers.get("content-type", "").partition(";")[0]
        self.last_id: str | None = None
        self.events: list[Received] = []
        self.raw = b""
        self._pieces = response.aiter_bytes()
        self._reader = SseReader()
        self._ready: list[Received] = []

    async def json(self) -> Any:
        return json.loads(await self.response.aread())

    async def event(self) -> Received | None:
        """The next event; None at the end."""
        async with asyncio.timeout(WAIT):
            while not self._ready:
                piece = await anext(self._pieces, None)
                if piece is None:
                    return None
                self.raw += piece
                self._ready += self._reader.feed(piece)
        event = self._ready.pop(0)
        self.last_id = event.id
        self.events.append(event)
        return event

    async def next(self) -> Message:
        while True:
            event = await self.event()
            assert event is not None, "the stream has ended"
            if event.data:
                message: Message = json.loads(event.data)
                return message

    async def rest(self) -> list[Message]:
        """All messages to the end of the stream."""
        messages = []
        while (event := await self.event()) is not None:
            if event.data:
                messages.append(json.loads(event.data))
        return messages

    async def leave(self) -> None:
        await self.response.aclose()


class Client:
    def __init__(self, http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> None:
        self.http = http
        self.url = url
        self.headers = headers
        self.id = 0
        self.answers: list[Answer] = []

    async def send(self, method: str, content: Any = None, url: str | None = None, **headers: str | None) -> Answer:
        given: dict[str, str | None] = {**self.headers}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = content if isinstance(content, bytes) else None if content is None else json.dumps(content).encode()
        kept = {name: value for name, value in given.items() if value is not None}
        request = self.http.build_request(method, url or self.url, content=body, headers=kept)
        answer = Answer(await self.http.send(request, stream=True))
        self.answers.append(answer)
        return answer

    async def post(self, message: Any, **headers: str | None) -> Answer:
        return await self.send("POST", message, **{"content_type": "application/json", "accept": BOTH, **headers})

    async def begin(self, version: str = "2025-11-25", **able: Any) -> Message:
        params = {"protocolVersion": version, "capabilities": able, "clientInfo": {"name": "raw", "version": "0"}}
        answer = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert (answer.status, answer.kind) == (200, "application/json")
        self.headers |= {"mcp-session-id": answer.response.headers["mcp-session-id"], "mcp-protocol-version": version}
        result: Message = (await answer.json())["result"]
        assert (await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202
        return result

    async def ask(self, method: str, params: Message | None = None) -> Answer:
        self.id += 1
        return await self.post({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params or {}})

    async def run(self, text: str, token: str | int | None = "t") -> Answer:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        return await self.ask("agents/run", {"name": "helper", "input": {"text": text}, **meta})

    async def listen(self, after: str | None = None) -> Answer:
        return await self.send("GET", accept="text/event-stream", last_event_id=after)

    async def modern(self, method: str, params: Message | None = None, **headers: str | None) -> Answer:
        """A request of the revision without sessions."""
        meta = {wire.META_VERSION: wire.MODERN, wire.META_CAPABILITIES: {}, **(params or {}).pop("_meta", {})}
        self.id += 1
        given: dict[str, str | None] = {"mcp_protocol_version": wire.MODERN, "mcp_method": method, **headers}
        return await self.post(
            {"jsonrpc": "2.0", "id": self.id, "method": method, "params": {**(params or {}), "_meta": meta}}, **given
        )


@contextlib.asynccontextmanager
async def clients(server: Server, **headers: str) -> AsyncIterator[Client]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=10)
    async with httpx2.AsyncClient(limits=limits, timeout=WAIT) as http:
        client = Client(http, server.address + "/mcp", headers)
        try:
            yield client
        finally:
            for answer in client.answers:
                await answer.leave()


def joined(messages: list[Message]) -> Any:
    joiner = Joiner()
    for message in messages:
        if message.get("method") == PROGRESS:
            joiner.add(message["params"]["delta"])
    return joiner.value


async def only_run(server: Server) -> str:
    async with asyncio.timeout(WAIT):
        while not (runs := await server.engine.runs.search(RunFilter())):
            await asyncio.sleep(0)
    return runs[0].id


async def ended(server: Server) -> Status:
    return (await server.engine.runs.wait(await only_run(server), timeout=WAIT)).status
