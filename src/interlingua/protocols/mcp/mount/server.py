"""The mount: makes local agents of what an MCP server offers, started as a process or at an address. These are its
agents, or, where it has none, its tools and its prompts that take arguments.

`connection` keeps the server reachable, `rpc_client` is one connection, `entries` says what can be run, `remote_run`
carries a run, `remote_output` shows its output, `questions` asks its questions, and `http_channel` is the channel to an
address.

When a server reports a change, its lists are read again over the same connection. A run of an agent that was removed
fails and says so, and a server that keeps the mount gets the new agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun, attached
from ....model.card import ANY_OBJECT
from ....model.errors import InvalidRequest
from ....model.schemas import Validator
from ....mounts.links import Source
from ....mounts.settings import Access, read_settings
from ..config import MountSettings
from .agent_card import card_of
from .connection import AddressSource, Host, ProcessSource
from .entries import Entry, Key
from .remote_run import Attachment, cancel_left
from .rpc_client import Unsuitable

__all__ = ["Mount", "MountSettings", "load"]


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
    """Returns the agents of mcp:COMMAND or mcp+http(s)://…: all of them, or those that #AGENT can mean."""
    settings = read_settings(MountSettings, "mcp", target.access)
    source: Source
    if target.kind == "mcp":
        source = ProcessSource(target.rest, target.access)
    else:
        address = target.rest.removeprefix("mcp+")
        if not address.partition("://")[2].strip("/"):
            raise InvalidRequest(f"{target.rest!r} is not the address of a server; write mcp+http://HOST/PATH[#AGENT]")
        source = AddressSource(address, settings, target.access.headers)
    return await Mount(source, settings).agents(target.agent)


class Mount:
    """One server."""

    def __init__(self, source: Source, settings: MountSettings | None = None) -> None:
        self.source = source
        self.settings = settings or MountSettings()
        self._host: tuple[asyncio.AbstractEventLoop, Host] | None = None

    @property
    def host(self) -> Host:
        """Returns the host of this event loop: a server that was started in an ended loop is gone with it."""
        loop = asyncio.get_running_loop()
        if self._host is None or self._host[0] is not loop:
            self._host = (loop, Host(self.source, self.settings))
        return self._host[1]

    def watch(self, tell: Callable[[], None]) -> None:
        """Calls back when the server is gone without being closed, and when its agents may be others."""
        self.host.lost = self.host.changed = tell

    async def close(self) -> None:
        """Closes the connection to the server. The end of the event loop does it too."""
        await self.host.close()

    async def agents(self, wanted: str | None = None, *, again: bool = False) -> list[Agent[..., Any]]:
        """Returns the agents of the server: all, or those that a name can mean. `again` lists them anew over a
        connection that is kept."""
        try:
            peer = await (self.host.peer_listed_again() if again else self.host.peer())
            if not peer.entries:
                raise Unsuitable(f"{self.source.name} offers no agents: its list of them is empty")
        except BaseException:
            if not again:
                await self.host.close()
            raise
        entries = list(peer.entries.values())
        entries = [entry for entry in entries if entry.name == wanted] or entries
        agents: dict[str, Agent[..., Any]] = {}
        for entry in entries:
            agent = self._agent(entry, agents, finds=peer.finds_again)
            agent.relist = lambda: self.agents(wanted, again=True)
            agents[agent.card.key] = agent
        return list(agents.values())

    def _agent(
        self, entry: Entry, others: dict[str, Agent[..., Any]], *, finds: bool, existing: str | None = None
    ) -> Agent[..., Any]:
        """Returns an agent. `finds` tells if the server finds a run by its id; `existing` is the run to go on with."""
        key: Key = entry.key
        prefix = "mcp:" if self.source.command else "mcp+"
        card = card_of(entry.listed, f"{prefix}{self.source.name}", streams=entry.streams)
        plain, number = card.name, 1
        while card.key in others:  # two names that are one when written plainly
            number += 1
            card.name = f"{plain}-{number}"
        schema = Validator(card.output, what="output")

        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            return await Attachment(self.host, key, schema, ctx, existing).run(input)

        async def on_cancel(left: LeftRun) -> None:
            await cancel_left(self.host, key, left, existing)

        handler.__name__ = entry.name  # so that a target can name the agent as its server does
        handler.__doc__ = card.description
        made: Agent[..., Any] = Agent(
            card if existing is None else attached(card), handler, shape="async", ctx_param="ctx", retries=3,
            parkable=False, on_cancel=on_cancel,
        )  # fmt: skip
        if finds:
            made.attach = lambda run: self._agent(entry, {}, finds=True, existing=run)
        else:
            made.no_attach = "MCP has no request that finds a run of another connection; servers of Interlingua add one"
        made.let_go, made.watch = self.close, self.watch
        made.check_output = Validator(ANY_OBJECT, what="output")  # the result counts as it is; a misfit is a warning
        return made
