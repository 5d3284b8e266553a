"""Clients of the five doors, each of which speaks its wire by hand."""

from __future__ import annotations

from .base import Asked, DoorClient, Ended, Failed, File, Listed, Turn
from .cap import CapClient
from .connect import ConnectClient
from .editor import EditorClient
from .mcp import McpClient, ModernClient
from .peer import PeerClient

CLIENTS: dict[str, type[DoorClient]] = {
    "connect": ConnectClient,
    "editor": EditorClient,
    "mcp": McpClient,
    "mcp-2026": ModernClient,
    "peer": PeerClient,
    "cap": CapClient,
}

__all__ = ["CLIENTS", "Asked", "DoorClient", "Ended", "Failed", "File", "Listed", "Turn"]
