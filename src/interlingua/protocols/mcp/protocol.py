"""Agents over MCP: `agents/list`, `agents/run` and their deltas, and every agent as a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Door, Protocol

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...security.auth import Authenticator
    from ...transports.channel import Channel
    from ...transports.jsonrpc.connection import Trace
    from .door.connection import McpSettings
    from .door.http_streams import WebSettings


def _door(
    engine: Engine, auth: Authenticator, settings: WebSettings | None = None, mcp: McpSettings | None = None
) -> Door:
    from .door.http import WebDoor

    door = WebDoor(engine, auth, settings, mcp)

    def hint(base: str, agent: str) -> str:
        which = f"#{agent}" if len(list(engine.agents)) > 1 else ""
        return f"interlingua run 'mcp+{base}/mcp{which}' hello"

    return Door(door.routes(), hint, door.close, bound=door.sessions)


async def _stdio(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    from .door.connection import McpDoor

    connection = McpDoor(engine).connect(channel, trace=trace)
    try:
        await connection.rpc.run(linger=1.0)
    finally:
        connection.gone()


async def _mount(target: Any) -> list[Any]:
    from .mount.server import load

    return list(await load(target))


_KINDS = ("mcp", "mcp+http", "mcp+https")

protocol = Protocol(
    "mcp", "Agents over MCP", prefix="/mcp", door=_door, stdio=_stdio, loaders=dict.fromkeys(_KINDS, _mount)
)
