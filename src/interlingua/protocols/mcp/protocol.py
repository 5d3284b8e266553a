"""Agents over MCP: `agents/list`, `agents/run` and their deltas, and every agent as a tool."""

from __future__ import annotations

from ..base import Protocol, addresses, command

protocol = Protocol(
    name="mcp",
    title="Agents over MCP",
    about="BeeAI's first ACP",
    prefix="/mcp",
    rank=30,
    targets=(command("mcp", "uvx some-server"), *addresses("mcp+http", "mcp+https", example="HOST/mcp")),
    door="interlingua.protocols.mcp.door.door:door",
    door_settings="interlingua.protocols.mcp.config:DoorSettings",
    mount_settings="interlingua.protocols.mcp.config:MountSettings",
    stdio="interlingua.protocols.mcp.door.stdio:serve_pipes",
    mount="interlingua.protocols.mcp.mount.server:load",
    probes="interlingua.protocols.mcp.probe:probes",
    parity="interlingua.protocols.mcp.parity",
    demo="interlingua.protocols.mcp.demo:demo",
)
