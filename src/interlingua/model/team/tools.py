"""Tools of servers: what they are, what a call gives back, and what the engine asks of whoever reaches the servers.

Pure: nothing is called here. Which tools an agent may call is decided in `authority`.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ..content import Part
from .manifest import Server


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as its server describes it. The schema is the server's own, and passes as it is."""

    server: str
    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}


class ToolOutcome(msgspec.Struct, omit_defaults=True):
    """What a call gave back: `result` is plain JSON; `content` is the same for people, with pictures and files."""

    result: Any = None
    failed: bool = False
    content: list[Part] = msgspec.field(default_factory=list)


class ToolServers(Protocol):
    """Reaches tool servers. Servers are given with each call, so that nothing must be registered before."""

    async def list(self, server_id: str, server: Server) -> list[ToolSpec]:
        """All tools of a server. Raises as `call` does."""
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
        """Call a tool once.

        Raises Unavailable where the server cannot be started or reached, or dies; RunTimedOut where it takes too long;
        ToolFailed where the tool says that it failed, or gives back what nobody can use.
        """
        ...

    async def close(self) -> None:
        """End every connection and every process."""
        ...
