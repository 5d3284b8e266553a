"""What the tests of the mount need: agents to mount, nodes that have them, and short ways to mount and watch."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount as Routes

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.mounts.loader import local_agents
from interlingua.protocols.peer.config import MountSettings
from interlingua.protocols.peer.door.http import PeerDoor, routes
from interlingua.protocols.peer.mount.server import PeerServer
from interlingua.protocols.peer.node.node import Node
from interlingua.protocols.peer.relay.app import RelaySettings, relay_app
from interlingua.protocols.peer.wire import links
from interlingua.security.auth import Authenticator
from interlingua.transports.http.fixed_routes import IndexedRouter
from tests.kit.engines import engine
from tests.kit.mounts.watch import SETTINGS, Gate, remote_agents
from tests.kit.peer_nodes import Running, listening, running_node
from tests.kit.postgres import beside


class Place(msgspec.Struct):
    city: str
    floor: int = 0


class Report(msgspec.Struct):
    title: str
    lines: list[str]
    total: int


def peer_agents(gate: Gate) -> list[il.Agent[..., Any]]:
    @il.agent
    async def flood(count: int) -> AsyncIterator[str]:
        for n in range(count):
            yield f"{n} "

    @il.agent
    async def survey(place: Place, tags: list[str]) -> Report:
        """Takes an object, and gives one."""
        return Report(f"{place.city}/{place.floor}", tags, len(tags))

    @il.agent
    async def stuck(ctx: il.Context[Any, Any], text: str) -> str:
        gate.entered += 1
        await ctx.emit("wait ")
        await asyncio.Event().wait()
        return text

    @il.agent
    async def busybody(ctx: il.Context[Any, Any], text: str) -> str:
        """Shows everything that can be shown."""
        await ctx.thought("hm")
        await ctx.plan(["look", "leap"])
        await ctx.tool_call("t1", title="Looks", status="in_progress")
        await ctx.artifact("one, ", id="list", name="List", last=False)
        await gate.open.wait()
        await ctx.artifact("two", id="list", name="List", append=True)
        await ctx.warn("careful", {"level": 2})
        await ctx.message("nearly there")
        await ctx.emit("so ")
        await ctx.emit(text)
        return f"so {text}"

    return [*remote_agents(gate, {"minutes": 5}), flood, survey, stuck, busybody]


def mount(link: str | None, **settings: Any) -> PeerServer:
    assert link is not None
    return PeerServer(links.parse(link), MountSettings(**{"patience": 20.0, **settings}))


@contextlib.asynccontextmanager
async def mounted(store: Path, link: str | None, **settings: Any) -> AsyncIterator[tuple[il.Engine, PeerServer]]:
    made = mount(link, **settings)
    try:
        async with engine(store, *await local_agents(made), settings=SETTINGS) as eng:
            yield eng, made
    finally:
        await made.close()


async def output(eng: il.Engine, run: str) -> dict[str, Any]:
    view = await eng.runs.wait(run, timeout=20)
    assert view.status is il.Status.SUCCEEDED, (view.status, view.error)
    assert isinstance(view.output, dict)
    return view.output


async def runs_of(node: Node) -> list[il.Run]:
    return await node.engine.runs.search(RunFilter())


# -- nodes ----------------------------------------------------------------------------------------------------

BINDINGS = ("acp", "tcp", "relay", "http")


class There(msgspec.Struct):
    """A remote node, and the link to it."""

    node: Node
    running: Running
    link: str

    @property
    def engine(self) -> il.Engine:
        return self.node.engine


@contextlib.asynccontextmanager
async def remote(
    kind: str = "acp",
    gate: Gate | None = None,
    *,
    agents: list[il.Agent[..., Any]] | None = None,
    door_port: int = 0,
    **settings: Any,
) -> AsyncIterator[There]:
    """A node with the agents above, reached by one of the bindings. Ports that are given can be used again."""
    async with contextlib.AsyncExitStack() as stack:
        if kind == "relay":
            relay = await stack.enter_async_context(listening(relay_app(RelaySettings())))
            settings["relay"] = relay.replace("http://", "acp+ws://")
        if kind == "tcp":
            settings.setdefault("tcp_port", 0)
        given = peer_agents(gate or Gate(open_=True)) if agents is None else agents
        running = await stack.enter_async_context(running_node("Remote", agents=given, **settings))
        node = running.node
        if kind == "http":
            link = "peer+" + await stack.enter_async_context(door_at(node, door_port))
        elif kind == "relay":
            assert node.relay is not None
            await node.relay.ready()
            link = str(node.relay_link(node.token))
        else:
            link = str(node.tcp_link if kind == "tcp" else node.link)
        yield There(node, running, link)


@contextlib.asynccontextmanager
async def door_at(node: Node, port: int) -> AsyncIterator[str]:
    """The door of a node, on a port that may have been used before."""
    door = PeerDoor(node, Authenticator(None, open_to_all=True))
    app = Starlette(routes=[Routes("/peer", app=IndexedRouter(routes(door)))])
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, http="httptools", loop="asyncio", lifespan="off", log_config=None,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", port)) as listener:
        serving = asyncio.ensure_future(server._serve([listener]))
        try:
            while not server.started:
                assert not serving.done()
                await asyncio.sleep(0)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/peer"
        finally:
            await door.close()
            server.should_exit = True
            await serving


class Again:
    """A node that can be stopped and started again: the same store, the same ports."""

    def __init__(self, kind: str, folder: Path, gate: Gate, **settings: Any) -> None:
        self._kind = kind
        self._gate = gate
        self._settings = {"store": folder / "there.db", **settings}
        self._stack: contextlib.AsyncExitStack | None = None
        self.there: There

    async def __aenter__(self) -> Again:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> There:
        self._stack = contextlib.AsyncExitStack()
        self.there = await self._stack.enter_async_context(remote(self._kind, self._gate, **self._settings))
        port = links.parse(self.there.link).port
        self._settings["door_port" if self._kind == "http" else "port"] = port
        return self.there

    async def stop(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            await stack.aclose()

    def forget(self) -> None:
        """The next start is one with an empty store, but the same link."""
        self._settings["store"] = beside(self._settings["store"], "fresh")


class Wire:
    """Sees every frame that a mount sends and receives."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, dict[str, Any]]] = []

    def sent(self, frame: bytes) -> None:
        self.frames.append(("sent", msgspec.json.decode(frame)))

    def received(self, frame: bytes) -> None:
        self.frames.append(("received", msgspec.json.decode(frame)))

    def of(self, way: str, kind: str) -> list[dict[str, Any]]:
        return [frame for one, frame in self.frames if one == way and frame.get("type") == kind]
