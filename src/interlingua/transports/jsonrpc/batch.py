"""Sends several messages as one array. Only on request, and only after version 2 was agreed on: many peers of version 1
end the connection at an array (claude-agent-acp 0.99, agent-client-protocol 0.12.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...model.errors import InvalidRequest
from .connection import Connection

# They change which messages may follow, so each goes alone.
LIFECYCLE = frozenset(
    {
        "initialize", "authenticate", "auth/login", "session/new", "session/load", "session/resume", "session/prompt",
    }
)  # fmt: skip


async def send_batch(
    rpc: Connection, version: int, calls: Iterable[tuple[str, Any, bool]], *, timeout: float | None = None
) -> list[Any]:
    """Calls are (method, params, whether an answer is wanted). Gives results, and RpcErrors in the places of those
    that failed."""
    calls = list(calls)
    if version < 2:
        raise InvalidRequest(f"batches are for version 2 of the protocol, and version {version} was agreed on")
    for method, _, _ in calls:
        if method in LIFECYCLE:
            raise InvalidRequest(f"{method} goes alone, not in a batch")
    if not calls:
        raise InvalidRequest("a batch has at least one entry")
    return await rpc.batch(calls, timeout=timeout)
