"""The mount: remote participants as local agents.

A server is asked for its list of agents; a program is one agent, in any programming language, and gets a process of its
own for every task. One run of such an agent is in `remote_run`, the connections are in `remote_task`.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import httpx2

from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....model.card import AgentCard
from ....model.errors import Unavailable
from ....model.team.manifest import cap_id
from ....mounts.agent_card import origin
from ....mounts.errors import RemoteError
from ....mounts.http import HttpAddress, Refused, words_of
from ....mounts.loader import RemoteAgent, RemoteServer, Target, Traits, local_agents
from ....mounts.settings import ORDINARY, Access, read_settings
from ....security.redaction import redact_text
from ....transports.process.child_process import words_of as words_of_command
from .. import agent_manifest
from ..config import MountSettings
from .process_task import ProcessTask, try_out
from .remote_run import ProcessRun, ServerRun
from .server_task import cancel_left, json_of


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of cap:COMMAND[#AGENT] or cap+http(s)://HOST[/PREFIX][#AGENT]."""
    server: RemoteServer
    if target.kind == "cap":
        server = ProgramServer(target.rest, target.agent, target.access)
    else:
        server = CapServer(target.rest.removeprefix("cap+"), target.access)
    return await local_agents(server, target.agent)


class ProgramServer(RemoteServer):
    """A program that reads and writes one message per line."""

    traits = Traits(parkable=False, output="any")

    def __init__(self, command: str, agent: str | None = None, access: Access = ORDINARY) -> None:
        read_settings(MountSettings, "cap", access)
        self._access = access
        self.name = redact_text(command)
        self.command = words_of_command(command, "cap")
        self._agent = agent
        self.try_out = self._try_out

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        name = self._agent or _name_of(self.command)
        card = AgentCard(
            name, "0.0.0", f"An agent that {self.name} is", dict(agent_manifest.TEXT), dict(agent_manifest.ANY_TEXT),
            input_text="text", output_text="text", streams=True, metadata=origin(f"cap:{self.name}", "cap"),
        )  # fmt: skip
        return [RemoteAgent(card=card, name=name, no_attach="a task ends with the process that works on it")]

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> ProcessRun:  # fmt: skip
        known = cap_id(self._agent) if self._agent is not None else ctx.me or cap_id(agent.name)
        hint = "" if self._agent is not None else "name one of them with #NAME after the command"
        way = ProcessTask(self.command, self.name, self._access)
        return ProcessRun(way, ctx, input_, agent.card, known, hint)

    async def _try_out(self) -> None:
        await try_out(self.command, self.name, self._access)


class CapServer(RemoteServer):
    """A server that has the door."""

    traits = Traits(output="any")

    def __init__(self, base: str, access: Access = ORDINARY) -> None:
        self.address = HttpAddress(base, access, kind="cap")
        self.base = self.address.base

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        async with self.address.open() as http:
            try:
                body = json_of(await http.get("/agents"))
            except httpx2.TransportError as error:
                raise Unavailable(f"{self.base} cannot be reached: {words_of(error)}") from error
            except Refused as error:
                where = "" if httpx2.URL(self.base).path.strip("/") else "; servers of CAP are often at /cap"
                raise RemoteError(
                    f"{error.message}{where}", code=error.remote_code, transient=error.transient
                ) from None
        listed = body.get("agents") if isinstance(body, dict) else None
        if not isinstance(listed, list):
            raise RemoteError(f"{self.base} does not speak CAP: it has no list of agents")
        return [self._described(entry) for entry in listed if isinstance(entry, dict)]

    def _described(self, entry: dict[str, Any]) -> RemoteAgent:
        card, id_ = agent_manifest.card_of(entry), str(entry["id"])
        card.metadata |= origin(redact_text(self.base), "cap", agent_id=id_)
        return RemoteAgent(card=card, name=id_)

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> ServerRun:  # fmt: skip
        return ServerRun(self.address, ctx, input_, agent.card, agent.name, existing)

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        await cancel_left(self.address, existing or left.id)


def _name_of(command: list[str]) -> str:
    """Returns a name for a program: that of the last file or word of its command."""
    words = [word for word in command if not word.startswith("-")] or command
    stem = PurePath(words[-1].rpartition(":")[2] or words[-1]).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "agent"
