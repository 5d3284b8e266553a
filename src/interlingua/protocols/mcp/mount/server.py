"""The mount: finds agents of a server that has agents over MCP, started as a process or at an address, and makes local
agents of them.

`connection` keeps the server reachable, `rpc_client` is one connection, `remote_run` carries a run, `remote_output`
shows its output, `questions` asks its questions, and `http_channel` is the channel to an address.

When a server's agents change, the next run lists them again: a run of a removed agent fails and says so, and new agents
appear when the server is mounted again.
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
        """Calls back when the server is gone without being closed."""
        self.host.lost = tell

    async def close(self) -> None:
        """Closes the connection to the server. The end of the event loop does it too."""
        await self.host.close()

    async def agents(self, wanted: str | None = None) -> list[Agent[..., Any]]:
        try:
            peer = await self.host.peer()
            if not peer.offered:
                raise Unsuitable(f"{self.source.name} offers no agents: its list of them is empty")
        except BaseException:
            await self.host.close()
            raise
        entries = list(peer.offered.values())
        entries = [entry for entry in entries if entry["name"] == wanted] or entries
        made: dict[str, Agent[..., Any]] = {}
        for entry in entries:
            agent = self._agent(entry, made, finds=peer.finds_again)
            made[agent.card.key] = agent
        return list(made.values())

    def _agent(
        self, entry: dict[str, Any], others: dict[str, Agent[..., Any]], *, finds: bool, existing: str | None = None
    ) -> Agent[..., Any]:
        """Returns an agent. `finds` tells if the server finds a run by its id; `existing` is the run to go on with."""
        name = entry["name"]
        prefix = "mcp:" if self.source.command else "mcp+"
        card = card_of(entry, f"{prefix}{self.source.name}")
        plain, number = card.name, 1
        while card.key in others:  # two names that are one when written plainly
            number += 1
            card.name = f"{plain}-{number}"
        schema = Validator(card.output, what="output")

        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            return await Attachment(self.host, name, schema, ctx, existing).run(input)

        async def on_cancel(left: LeftRun) -> None:
            await cancel_left(self.host, name, left, existing)

        handler.__name__ = name  # so that a target can name the agent as its server does
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
