"""The mount: makes local agents of what an MCP server offers, started as a process or at an address. These are its
agents, or, where it has none, its tools and its prompts that take arguments.

`connection` keeps the server reachable, `rpc_client` is one connection, `entries` says what can be run, `remote_run`
carries a run, `questions` asks its questions, and `http_channel` is the channel to an address.

When a server reports a change, its lists are read again over the same connection. A run of an agent that was removed
fails and says so, and a server that keeps the mount gets the new agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....mounts.connection import PerLoop, Source
from ....mounts.loader import RemoteAgent, RemoteServer, Target, Traits, local_agents
from ....mounts.settings import read_settings
from ..config import MountSettings
from .agent_card import card_of
from .connection import McpKeeper, source_of
from .remote_run import McpRun, cancel_left
from .rpc_client import Unsuitable

__all__ = ["McpServer", "MountSettings", "load"]

_NO_ATTACH = "MCP has no request that finds a run of another connection; servers of Interlingua add one"


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of mcp:COMMAND or mcp+http(s)://…: all of them, or those that #AGENT can mean."""
    settings = read_settings(MountSettings, "mcp", target.access)
    source = source_of(target.kind, target.rest, settings, target.access)
    return await local_agents(McpServer(source, settings), target.agent)


class McpServer(RemoteServer):
    traits = Traits(parkable=False, lists_again=True)

    def __init__(self, source: Source, settings: MountSettings | None = None) -> None:
        self.source = source
        self.settings = settings or MountSettings()
        self._keepers = PerLoop(lambda: McpKeeper(self.source, self.settings))

    @property
    def keeper(self) -> McpKeeper:
        return self._keepers.get()

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        keeper = self.keeper
        kept = keeper.current
        if kept is not None:
            kept.changed = True  # also where it has reported no change
        try:
            peer = await keeper.connection()
            if not peer.entries:
                raise Unsuitable(f"{self.source.name} offers no agents: its list of them is empty")
        except BaseException:
            if kept is None:
                await keeper.close()
            raise
        prefix = "mcp:" if self.source.command else "mcp+"
        return [
            RemoteAgent(
                card=card_of(entry.listed, f"{prefix}{self.source.name}", streams=entry.streams), name=entry.name,
                more=entry.key, no_attach=None if peer.finds_again else _NO_ATTACH,
            )
            for entry in peer.entries.values()
        ]  # fmt: skip

    def open_run(self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any) -> McpRun:
        return McpRun(self.keeper, agent.more, ctx, input_, existing)

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        await cancel_left(self.keeper, agent.more, left, existing)

    async def close(self) -> None:
        await self.keeper.close()

    def watch(self, lost: Callable[[], None]) -> None:
        self.keeper.lost = self.keeper.changed = lost
