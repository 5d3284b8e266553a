"""The methods by which a client and this server get to know each other, and stay in touch."""

from __future__ import annotations

from typing import Any

from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import INVALID_PARAMS, Call, RpcError
from .. import wire
from .connection import McpConnection, Operation

# The name that acp-sdk 0.0.6 gives itself, and the mcp package of those days, which it was made from.
_AWAITS_CANCELLED = ("2024-11-05", "mcp", "0.1.0")


async def initialize(connection: McpConnection, call: Call) -> dict[str, Any]:
    version = begin(connection, call.params)
    return {
        "protocolVersion": version,
        "capabilities": _capabilities(connection, connection.version),
        "serverInfo": wire.INFO,
        "instructions": "Each agent can be run with agents/run, and called as a tool of the same name.",
    }


def begin(connection: McpConnection, params: Any) -> str | int:
    """Takes the client's description and abilities, and returns the revision of the connection."""
    request = params_.read(params, wire.InitializeRequest)
    asked = request.protocol_version
    # acp-sdk 0.0.6 knows one revision and leaves at any other answer.
    version = "2024-11-05" if asked == 1 else asked if asked in wire.LEGACY else wire.LEGACY[-1]
    connection.version, connection.able = str(version), request.capabilities
    # MCP says that a cancelled request should get no answer. These clients wait for one, for ever: their own server
    # sends it. A client that has stopped waiting ignores it, as MCP says too; all others get none.
    client = (connection.version, request.client_info.name, request.client_info.version)
    connection.awaits_cancelled = client == _AWAITS_CANCELLED
    return version


async def discover(connection: McpConnection, call: Call) -> dict[str, Any]:
    return {
        "supportedVersions": [wire.MODERN],
        "capabilities": _capabilities(connection, wire.MODERN),
        "serverInfo": wire.INFO,
    }


def _capabilities(connection: McpConnection, version: str) -> dict[str, Any]:
    agents: dict[str, Any] = {"listChanged": True}
    if connection.agents.has_templates():
        agents["templates"] = True
    capabilities: dict[str, Any] = {
        "agents": agents,
        "tools": {"listChanged": True},
        "experimental": {"agents": agents},
        "extensions": {wire.EXTENSION: agents},
    }
    if version != wire.MODERN:
        capabilities["logging"] = {}
    return capabilities


async def ping(connection: McpConnection, call: Call) -> dict[str, Any]:
    return {}


async def set_level(connection: McpConnection, call: Call) -> dict[str, Any]:
    level = params_.read(call.params, wire.SetLevelRequest).level
    if level not in wire.LEVELS:
        raise RpcError(INVALID_PARAMS, f"level is {level!r}; it is one of {', '.join(wire.LEVELS)}")
    connection.level = level
    if connection.changed is not None:
        await connection.changed()
    return {}


async def listen(connection: McpConnection, call: Call) -> dict[str, Any]:
    return await connection.subscriptions.listen(call)


OPERATIONS: dict[str, Operation] = {
    "initialize": initialize,
    "server/discover": discover,
    "ping": ping,
    "logging/setLevel": set_level,
    "subscriptions/listen": listen,
}
