"""Nodes with their HTTP surfaces on real sockets, in this process, and what tests need to talk to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

import interlingua as il
from interlingua.protocols.peer.config import NodeSettings
from interlingua.protocols.peer.door.control_api import ControlApp, control_app
from interlingua.protocols.peer.door.http import PeerDoor, routes
from interlingua.protocols.peer.door.http_streams import StreamSettings
from interlingua.protocols.peer.node.node import Node
from interlingua.security.auth import Authenticator
from interlingua.security.keys import make_key
from interlingua.transports.http.fixed_routes import IndexedRouter
from interlingua.transports.http.sse import Reader as SseReader
from interlingua.transports.http.sse import Received
from tests.kit.engines import QUICK
from tests.kit.keys import MemoryKeys
from tests.kit.wait_for import PATIENCE

WAIT = PATIENCE

Event = dict[str, Any]


@il.agent
async def echo(text: str) -> AsyncIterator[str]:
    """Repeats what it hears."""
    yield "you said "
    yield text


@il.agent
async def shout(text: str) -> str:
    """Says it loudly."""
    return text.upper()


class Colour(il.Question[str]):
    """Which colour?"""


@il.agent(asks=[Colour])
async def painter(text: str, ctx: il.Context[None, None]) -> str:
    return f"{text} in {await ctx.ask(Colour())}"


@il.agent
async def stuck(text: str) -> str:
    await asyncio.sleep(3600)
    return text


@il.agent
async def breaks(text: str) -> str:
    raise il.AgentError("it cannot be done")


class Running:
    """A node that is up."""

    def __init__(self, node: Node, app: ControlApp, base: str, http: httpx2.AsyncClient) -> None:
        self.node = node
        self.app = app
        self.base = base
        self.http = http

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        return checked(await self.http.get(path, params=query or None), status)

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return checked(await self.http.post(path, json=body if body is not None else {}), status)

    async def connect(self, other: Running) -> str:
        """Connect to another node, and give back what it is called here. Both know each other's card then."""
        before = await self.node.journal.feed().head()
        behind = await other.node.journal.feed().head()
        told = await self.post("/peers/connect", {"link": other.node.link})
        await self.until(lambda event: event.get("event") == "card" and event["peer_id"] == told["peer_id"], before)
        await other.until(lambda event: event.get("event") == "card", behind)
        return str(told["peer_id"])

    async def until(self, test: Callable[[Event], bool], after: int = 0) -> Event:
        """The first event of the owner's feed that fits."""
        async with asyncio.timeout(WAIT):
            async with contextlib.aclosing(self.node.journal.feed().follow(after)) as news:  # type: ignore[type-var]
                async for events in news:
                    for event in events:
                        found: Event = json.loads(event.data)
                        if test(found):
                            return found
        raise AssertionError("the feed has ended")

    async def message(self, after: int = 0, **members: Any) -> Event:
        """The first message event with these members."""
        return await self.until(
            lambda event: event["type"] == "message" and all(event.get(name) == members[name] for name in members),
            after,
        )

    async def state(self, task: str, state: str) -> Event:
        return await self.until(lambda event: event.get("task_id") == task and event.get("state") == state)


def checked(answer: httpx2.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


@contextlib.asynccontextmanager
async def promptly() -> AsyncIterator[None]:
    """What happens in here waits for nobody: it is over sooner than anybody's patience, and takes little of the time of
    this process, in which both ends run. What else a busy machine has to do does not count."""
    began = time.process_time()
    async with asyncio.timeout(8):
        yield
    assert time.process_time() - began < 1.0


@contextlib.asynccontextmanager
async def running_node(
    name: str = "Node",
    *,
    agents: Iterable[il.Agent[..., Any]] = (),
    store: Path | None = None,
    engine: il.Settings = QUICK,
    streams: StreamSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A node with its control API, on free ports."""
    with tempfile.TemporaryDirectory() as folder:
        async with il.Engine(store or Path(folder) / "store.db", agents=list(agents), settings=engine) as running:
            node = Node(running, NodeSettings(name=name, **{"port": 0, "card_wait": 0.3, **settings}))
            await node.start()
            app = control_app(node, streams=streams)
            try:
                async with listening(app) as base:
                    node.http_address = base.removeprefix("http://")
                    node.files.offer_at(base)
                    headers = {}
                    if node.settings.http_token is not None:
                        headers["authorization"] = f"Bearer {node.settings.http_token}"
                    async with client(base, headers) as http:
                        yield Running(node, app, base, http)
                    await app.close()
            finally:
                await node.stop()


class Keys(MemoryKeys):
    def add(self, name: str, *scopes: str) -> dict[str, str]:
        """The headers of a caller with a new key."""
        key, record = make_key(name, scopes or ("*",), 1)
        self.records[record.id] = record
        return {"x-api-key": key}


@contextlib.asynccontextmanager
async def running_door(
    node: Node, keys: Keys | None = None, streams: StreamSettings | None = None
) -> AsyncIterator[str]:
    """The door of a node below /peer of a shared app. Without keys, whoever is on this machine may use it."""
    door = PeerDoor(node, Authenticator(keys, open_to_all=keys is None), streams)
    app = Starlette(routes=[Mount("/peer", app=IndexedRouter(routes(door)))])
    async with listening(app) as base:
        node.files.offer_at(f"{base}/peer")
        try:
            yield f"{base}/peer"
        finally:
            await door.close()


@contextlib.asynccontextmanager
async def at_door(
    *agents: il.Agent[..., Any], keys: Keys | None = None, **more: Any
) -> AsyncIterator[tuple[Running, httpx2.AsyncClient]]:
    """A node with agents, and a client of its door."""
    async with (
        running_node("Agents", agents=agents, **more) as node,
        running_door(node.node, keys, more.get("streams")) as base,
        client(base) as http,
    ):
        yield node, http


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """An app on a free port. Gives its address."""
    config = uvicorn.Config(
        app, http="httptools", loop="asyncio", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=1, ws="websockets-sansio", ws_per_message_deflate=False,
    )  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", 0))
        await server.startup([listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # As the server's own shutdown does it, without the tenths of a second that it sleeps.
            for one in server.servers:
                one.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
            left = list(server.server_state.tasks)
            if left:
                _, late = await asyncio.wait(left, timeout=2.0)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)


@contextlib.asynccontextmanager
async def client(base: str, headers: dict[str, str] | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=50)
    # Nothing here is encrypted, and to load the authorities of the system takes longer than most tests.
    async with httpx2.AsyncClient(
        base_url=base, timeout=WAIT, limits=limits, headers=headers or {}, verify=False
    ) as http:
        yield http


class EventReader:
    """A stream of server-sent events, read when it is asked for."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self.raw = b""
        self._pieces = answer.aiter_bytes()
        self._reader = SseReader()
        self._ready: list[Received] = []

    async def received(self) -> Received | None:
        async with asyncio.timeout(WAIT):
            while not self._ready:
                piece = await anext(self._pieces, None)
                if piece is None:
                    return None
                self.raw += piece
                self._ready += self._reader.feed(piece)
        return self._ready.pop(0)

    async def next(self) -> Event:
        """The next event of the feed."""
        found = await self.maybe()
        assert found is not None, "the stream has ended"
        return found

    async def maybe(self) -> Event | None:
        while (event := await self.received()) is not None:
            if event.event != "acp.ready":
                found: Event = json.loads(event.data)
                return {**found, "_id": event.id, "_name": event.event}
        return None

    async def rest(self) -> list[Event]:
        found = []
        while (event := await self.maybe()) is not None:
            found.append(event)
        return found

    async def ready(self) -> Event:
        event = await self.received()
        assert event is not None
        assert event.event == "acp.ready"
        found: Event = json.loads(event.data)
        return found


@contextlib.asynccontextmanager
async def events(
    http: httpx2.AsyncClient, path: str = "/stream", headers: dict[str, str] | None = None, **query: Any
) -> AsyncIterator[EventReader]:
    """An open stream."""
    async with http.stream("GET", path, params=query, headers=headers or {}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield EventReader(answer)


def text(content: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": content}]
