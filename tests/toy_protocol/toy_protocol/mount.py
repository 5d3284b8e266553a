"""The mount: the agents of a server as local agents."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from interlingua.engine.agents.agent import Agent
from interlingua.engine.handler.context import Context
from interlingua.model.errors import RunError, RunLost, Unavailable
from interlingua.mounts.errors import RemoteError
from interlingua.mounts.loader import RemoteAgent, RemoteServer, Target, local_agents
from interlingua.mounts.remote_run import ENDED, FAILED, RemoteRun, Stretch

from . import translate, wire


async def load(target: Target) -> list[Agent[..., Any]]:
    return await local_agents(ToyServer(target.rest.removeprefix("toy+"), target.access.headers), target.agent)


class ToyServer(RemoteServer):
    def __init__(self, base: str, headers: dict[str, str]) -> None:
        self.base = base.rstrip("/")
        self.headers = headers

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.base, headers=self.headers, timeout=60, trust_env=False)

    async def agents(self, wanted: str | None) -> list[RemoteAgent]:
        try:
            async with self.client() as http:
                listing = msgspec.json.decode((await http.get("/agents")).content, type=wire.Listing)
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise Unavailable(f"{self.base} has no list of agents: {error}") from error
        return [
            RemoteAgent(card=translate.card_of(agent), name=agent.name, no_attach="runs have no ids on this wire")
            for agent in listing.agents
        ]

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> RemoteRun:  # fmt: skip
        return ToyRun(self, agent.name, ctx, input_)


class ToyRun(RemoteRun):
    """One call. The wire cannot find it again, so it is lost with its connection."""

    def __init__(self, server: ToyServer, agent: str, ctx: Context[Any, Any], input_: dict[str, Any]) -> None:
        super().__init__(ctx, input_, server.base, patience=0)
        self._server = server
        self._call = wire.Call(agent, input_)

    def lost(self) -> str | None:
        return "the connection of the call is gone" if self.resumed else None

    async def follow(self) -> Stretch:
        body = msgspec.json.encode(self._call)
        line = wire.Line(error="the answer has no end")
        try:
            async with self._server.client() as http, http.stream("POST", "/calls", content=body) as answer:
                async for text in answer.aiter_lines():
                    line = msgspec.json.decode(text, type=wire.Line)
                    if line.text is not None:
                        await self.output.delta({"text": line.text})
        except httpx2.HTTPError as error:
            raise RunLost(f"the call of {self._call.agent} was cut off: {error}") from error
        return Stretch(FAILED, line.error) if line.error is not None else Stretch(ENDED, line.output)

    def failure(self, data: Any) -> RunError:
        return RemoteError(str(data))
