"""The mount: remote participants as local agents.

A server is asked for its list of agents; a program is one agent, in any programming language, and gets a process of its
own for every task. One run of such an agent is in `remote_run`, the connections are in `remote_task`.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, Protocol

import httpx2

from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import MOUNTED_FROM, LeftRun, MountedRun, attached
from ....model.card import ANY_OBJECT, AgentCard
from ....model.errors import InvalidRequest, Unavailable
from ....model.schemas import Validator
from ....model.team.manifest import cap_id
from ....mounts.errors import RemoteError
from ....mounts.settings import ORDINARY, Access, read_settings
from ....security.redaction import redact_text
from ....transports.http import plain_client as plain
from ....transports.process.child_process import words_of
from .. import agent_manifest
from ..config import MountSettings
from .remote_run import Attachment
from .remote_task import Address, Program, Refused, cancel_left, json_of, open_client, try_out

__all__ = ["ProgramMount", "ServerMount", "load"]


class Target(Protocol):
    """The parts of a command-line target that the loader needs."""

    @property
    def kind(self) -> str: ...
    @property
    def rest(self) -> str: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def access(self) -> Access: ...


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of cap:COMMAND[#AGENT] or cap+http(s)://HOST[/PREFIX][#AGENT]."""
    if target.kind == "cap":
        return [ProgramMount(target.rest, target.agent, target.access).agent()]
    return await ServerMount(target.rest.removeprefix("cap+"), access=target.access).agents(target.agent)


class ProgramMount:
    """A program that reads and writes one message per line."""

    def __init__(self, command: str, agent: str | None = None, access: Access = ORDINARY) -> None:
        read_settings(MountSettings, "cap", access)
        self._access = access
        self.name = redact_text(command)
        self.command = words_of(command, "cap")
        self._agent = agent

    def agent(self) -> Agent[..., Any]:
        name = self._agent or _name_of(self.command)
        card = AgentCard(
            name, "0.0.0", f"An agent that {self.name} is", dict(agent_manifest.TEXT), dict(agent_manifest.ANY_TEXT),
            input_text="text", output_text="text", streams=True,
            metadata={MOUNTED_FROM: f"cap:{self.name}", "protocol": "cap"},
        )  # fmt: skip

        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            known = cap_id(self._agent) if self._agent is not None else ctx.me or cap_id(name)
            hint = "" if self._agent is not None else "name one of them with #NAME after the command"
            way = Program(self.command, self.name, self._access)
            return await Attachment(way, card, known, ctx, hint).run(input)

        handler.__name__ = name
        handler.__doc__ = card.description
        made: Agent[..., Any] = Agent(card, handler, shape="async", ctx_param="ctx", retries=3, parkable=False)
        made.check_output = Validator(ANY_OBJECT, what="output")  # any output is accepted as it is
        made.try_out = self.try_out
        return made

    async def try_out(self) -> None:
        await try_out(self.command, self.name, self._access)


class ServerMount:
    """A server that has the door."""

    def __init__(self, base: str, key: str | None = None, access: Access = ORDINARY) -> None:
        try:
            url = httpx2.URL(base)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{base!r} is not an address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise InvalidRequest(f"{base!r} is not the address of a server; write cap+http://HOST[/PREFIX][#AGENT]")
        self.base = base.rstrip("/")
        self.key = key if key is not None else read_settings(MountSettings, "cap", access).key
        self._headers = access.headers
        self._clients = plain.Shared(lambda: open_client(self.base, self.key, self._headers), self.base)

    async def agents(self, wanted: str | None = None) -> list[Agent[..., Any]]:
        async with open_client(self.base, self.key, self._headers) as http:
            try:
                told = json_of(await http.get("/agents"))
            except httpx2.TransportError as error:
                why = str(error) or type(error).__name__
                raise Unavailable(f"{self.base} cannot be reached: {why}") from error
            except Refused as error:
                where = "" if httpx2.URL(self.base).path.strip("/") else "; servers of CAP are often at /cap"
                raise RemoteError(
                    f"{error.message}{where}", code=error.remote_code, transient=error.transient
                ) from None
        listed = told.get("agents") if isinstance(told, dict) else None
        if not isinstance(listed, list):
            raise RemoteError(f"{self.base} does not speak CAP: it has no list of agents")
        made: dict[str, Agent[..., Any]] = {}
        for entry in listed:
            if not isinstance(entry, dict):
                continue
            agent = self._agent(entry, made)
            made[agent.card.key] = agent
        named = [agent for agent in made.values() if wanted in (agent.card.name, agent.card.key, agent.__name__)]
        return named or list(made.values())

    def _agent(
        self, entry: dict[str, Any], others: dict[str, Agent[..., Any]], existing: str | None = None
    ) -> Agent[..., Any]:
        card, id_ = agent_manifest.card_of(entry), str(entry["id"])
        card.metadata |= {MOUNTED_FROM: redact_text(self.base), "protocol": "cap", "agent_id": id_}
        plain, number = card.name, 1
        while card.key in others:  # two names that are one when written plainly
            number += 1
            card.name = f"{plain}-{number}"

        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            async with self._clients.open() as http:
                way = Address(
                    self.base, http, existing or ctx.run_id, existing=existing is not None,
                    found=MountedRun(ctx).found_at_server,
                )  # fmt: skip
                return await Attachment(way, card, id_, ctx, task=existing).run(input)

        async def on_cancel(left: LeftRun) -> None:
            async with self._clients.open() as http:
                await cancel_left(self.base, http, existing or left.id)

        handler.__name__ = id_  # so that a target can name the agent by its id too
        handler.__doc__ = card.description
        made: Agent[..., Any] = Agent(
            card if existing is None else attached(card), handler, shape="async", ctx_param="ctx", retries=3,
            on_cancel=on_cancel,
        )  # fmt: skip
        made.check_output = Validator(ANY_OBJECT, what="output")
        made.attach = lambda run: self._agent(entry, {}, run)
        return made


def _name_of(command: list[str]) -> str:
    """Returns a name for a program: that of the last file or word of its command."""
    words = [word for word in command if not word.startswith("-")] or command
    stem = PurePath(words[-1].rpartition(":")[2] or words[-1]).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "agent"
