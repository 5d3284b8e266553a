"""Describes what was found out about a server that speaks a protocol."""

from __future__ import annotations

from typing import Any

import msgspec

TITLES = {
    "connect": "Agent Connect Protocol (AGNTCY, REST)",
    "mcp": "agents over MCP (BeeAI's first ACP)",
    "peer": "Agent Communication Protocol (acp:// links, peer to peer)",
    "editor": "Agent Client Protocol (editors)",
    "cap": "CAP (agent teams)",
    "mcp-tools": "MCP (tools and prompts)",
    "a2a": "A2A",
    "beeai-rest": "BeeAI's later ACP (REST)",
    "relay": "a relay of the Agent Communication Protocol",
    "lsp": "the Language Server Protocol, or something framed like it",
}
LOCKED = "it wants credentials: give a header with --header"
MOST = 4 * 1024 * 1024  # bytes of an answer that are read: what servers tell of themselves is much shorter
OURS = ("mcp", "connect", "peer", "editor", "cap")


class Listed(msgspec.Struct, frozen=True):
    name: str
    description: str = ""


class Spoken(msgspec.Struct, kw_only=True):
    """A protocol that the server speaks, and the facts about the server that it shows."""

    protocol: str
    target: str | None  # the argument for `interlingua run`; None if that cannot run it
    name: str = ""  # its own name for itself
    version: str = ""  # its own
    protocol_versions: list[str] = []
    agents: list[Listed] = []
    capabilities: list[str] = []
    wrong: list[str] = []  # its mistakes, as far as they were seen
    notes: list[str] = []

    @property
    def title(self) -> str:
        return TITLES[self.protocol]


def flat(value: Any, prefix: str = "") -> list[str]:
    """The names of what is switched on in an object of capabilities: `sessionCapabilities.list`."""
    if not isinstance(value, dict):
        return []
    found = []
    for name, inner in value.items():
        path = f"{prefix}{name}"
        deeper = flat(inner, f"{path}.")
        if deeper:
            found += deeper
        elif inner not in (False, None):
            text = "/".join(map(str, inner)) if isinstance(inner, list) else inner
            found.append(path if isinstance(inner, bool | dict) else f"{path}={text}")
    return found


def object_of(value: Any) -> dict[str, Any]:
    """Returns a value that should be an object, or an empty object if it is something else."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Returns a value that should be a text, or an empty text if it is something else."""
    return value if isinstance(value, str) else ""


def first_line(value: Any) -> str:
    return text_of(value).strip().partition("\n")[0]
