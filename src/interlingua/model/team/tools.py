"""Tools of tool servers: their description, the outcome of a call, and the port through which the engine calls them.

Pure: this module calls nothing. `authority` decides which tools an agent may call.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ..content import Part
from .manifest import Server


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as its server describes it, with the server's own schema."""

    server: str
    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}


class ToolOutcome(msgspec.Struct, omit_defaults=True):
    """The outcome of a call: `result` as plain JSON, `content` for people, with pictures and files."""

    result: Any = None
    failed: bool = False
    content: list[Part] = msgspec.field(default_factory=list)


class ToolServers(Protocol):
    """The port to tool servers. Each call names its server, so that none needs to be registered."""

    async def list(self, server_id: str, server: Server) -> list[ToolSpec]:
        """Lists all tools of a server. Raises the errors of `call`."""
        ...

    async def call(
        self,
        server_id: str,
        server: Server,
        tool: str,
        arguments: dict[str, Any],
        *,
        scopes: tuple[str, ...] = (),
        timeout: float | None = None,
    ) -> ToolOutcome:
        """Calls a tool once.

        Raises Unavailable if the server cannot be started or reached, or dies; RunTimedOut if it takes too long;
        ToolFailed if the tool reports a failure or returns an unusable result.
        """
        ...

    async def close(self) -> None:
        """Closes all connections and ends all processes."""
        ...
