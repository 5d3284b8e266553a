"""Makes the door of agents over MCP: `agents/*` for clients that know it, and every agent as a tool for all others."""

from __future__ import annotations

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....model.run import OWNER, Caller
from ....security.auth import Authenticator
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Trace
from ...base import Door
from ..config import DoorSettings
from . import operations_agents, operations_lifecycle, operations_tools
from .connection import McpConnection
from .shared import Shared

OPERATIONS = operations_lifecycle.OPERATIONS | operations_agents.OPERATIONS | operations_tools.OPERATIONS


class McpDoor(Shared):
    """Serves clients over any channel."""

    def connect(
        self, channel: Channel, caller: Caller = OWNER, trace: Trace | None = None, *, silent_cancel: bool = True
    ) -> McpConnection:
        """Returns a connection to one client. With `silent_cancel`, a cancelled request gets no answer. Where each
        request has a stream of its own that ends with the answer, there must be one: a client that misses it (mcp
        2.3.0) opens the stream again for ever."""
        return McpConnection(self, OPERATIONS, channel, caller=caller, trace=trace, silent_cancel=silent_cancel)


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    from .http import WebDoor  # pipes need no HTTP

    web = WebDoor(McpDoor(engine, settings), auth)

    def hint(base_url: str, agent: AgentCard) -> str:
        name = f"#{agent.name}" if len(list(engine.agents)) > 1 else ""
        return f"interlingua run 'mcp+{base_url}{name}' hello"

    return Door(routes=web.routes(), hint=hint, close_streams=web.close, affinity=web.sessions)
