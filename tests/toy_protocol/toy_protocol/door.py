"""The door, over HTTP and over pipes: a call becomes a run, and its events become lines."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from interlingua.doors.endpoint import Operation, authenticated, routes
from interlingua.doors.errors import STATUSES, HttpErrors
from interlingua.engine.engine import Engine
from interlingua.model.card import AgentCard
from interlingua.model.errors import AgentNotFound, InterlinguaError, InvalidRequest
from interlingua.model.run import OWNER, Caller, RunRequest
from interlingua.protocols.base import Door
from interlingua.security.auth import Authenticator
from interlingua.transports.channel import Channel
from interlingua.transports.http.body import json_response
from interlingua.transports.jsonrpc.connection import Trace

from . import translate, wire
from .config import DoorSettings

ERRORS = HttpErrors(STATUSES, lambda error, status, request: wire.Line(error=error.message))

WELL_KNOWN = "/.well-known/toy.json"

log = logging.getLogger("interlingua.toy")


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    toy = ToyDoor(engine, settings or DoorSettings())
    made = routes(toy, OPERATIONS, authenticated(auth), ERRORS, log)
    return Door(routes=[*made], root_routes=[Route(WELL_KNOWN, made[0].endpoint)], hint=_hint)


def _hint(base_url: str, agent: AgentCard) -> str:
    return f"interlingua run 'toy+{base_url}#{agent.name}' hello"


class ToyDoor:
    def __init__(self, engine: Engine, settings: DoorSettings) -> None:
        self.engine = engine
        self.settings = settings

    async def begin(self, body: bytes, caller: Caller) -> AsyncIterator[wire.Line]:
        """Begins the run of a call. Returns the lines that answer it."""
        try:
            call = msgspec.json.decode(body, type=wire.Call)
        except msgspec.DecodeError as error:
            raise InvalidRequest(str(error)) from error
        if self.engine.agents.find(call.agent) is None:
            raise AgentNotFound(f"there is no agent {call.agent}")
        run = await self.engine.runs.submit(RunRequest(call.agent, None, call.input, caller=caller), watch=True)
        return self._lines(run.id)

    async def _lines(self, run: str) -> AsyncIterator[wire.Line]:
        if self.settings.greeting:
            yield wire.Line(text=self.settings.greeting)
        async for event in self.engine.runs.events(run):
            if event.body is not None and (line := translate.line_of(event.body)) is not None:
                yield line
        yield translate.last_line(await self.engine.runs.wait(run))


async def list_agents(toy: ToyDoor, request: Request, caller: Caller) -> Response:
    return json_response(wire.Listing(1, [translate.listed(agent.card) for agent in toy.engine.agents]))


async def call_agent(toy: ToyDoor, request: Request, caller: Caller) -> Response:
    lines = await toy.begin(await request.body(), caller)
    return StreamingResponse(_encoded(lines), media_type="application/x-ndjson")


async def _encoded(lines: AsyncIterator[wire.Line]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield msgspec.json.encode(line) + b"\n"


OPERATIONS = [Operation("GET", "/agents", list_agents), Operation("POST", "/calls", call_agent, "run")]


async def serve_pipes(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    """Answers one call after the other, until the client ends its input."""
    toy = ToyDoor(engine, DoorSettings())
    while frames := await channel.receive():
        for frame in frames:
            try:
                async for line in await toy.begin(frame, OWNER):
                    channel.send(msgspec.json.encode(line))
            except InterlinguaError as error:
                channel.send(msgspec.json.encode(wire.Line(error=error.message)))
        await channel.drain()
