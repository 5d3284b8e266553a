"""The agents that MCP is measured with, on Interlingua. `mcp_sdk.py` has the same ones on the published SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator

import interlingua as il


@il.agent
async def echo(text: str) -> str:
    """Says what it hears."""
    return text


@il.agent
async def counter(count: int) -> AsyncIterator[str]:
    """Counts as far as it is told, a token for each."""
    for index in range(count):
        yield f"token{index} "
