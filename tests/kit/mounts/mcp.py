"""A fake server as a mount of an engine, and short ways to say what it shall do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.mounts.loader import local_agents
from interlingua.protocols.mcp.config import MountSettings
from interlingua.protocols.mcp.mount.connection import source_of
from interlingua.protocols.mcp.mount.server import McpServer
from tests.kit.engines import engine
from tests.kit.mounts.watch import SETTINGS

FAKE = Path(__file__).parents[1] / "fake_remotes" / "mcp_server.py"


def command(given: dict[str, Any]) -> str:
    return shlex.join([sys.executable, str(FAKE), json.dumps(given)])


def mount(given: dict[str, Any] | str, **settings: Any) -> McpServer:
    """Of a fake with these options, or of an address."""
    made = MountSettings(**settings)
    kind, rest = ("mcp+http", f"mcp+{given}") if isinstance(given, str) else ("mcp", command(given))
    return McpServer(source_of(kind, rest, made), made)


@contextlib.asynccontextmanager
async def mounted(
    store: Path, given: dict[str, Any] | str | None = None, **settings: Any
) -> AsyncIterator[tuple[il.Engine, McpServer]]:
    made = mount({} if given is None else given, **settings)
    try:
        async with engine(store, *await local_agents(made, None), settings=SETTINGS) as eng:
            yield eng, made
    finally:
        await made.close()


def act(word: str, value: Any = None) -> str:
    return word if value is None else f"{word} {json.dumps(value)}"


def script(*lines: str) -> dict[str, Any]:
    return {"text": "\n".join(lines)}


def wire(log: Path) -> list[dict[str, Any]]:
    """What the fake was sent."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


async def sent(log: Path, method: str) -> dict[str, Any]:
    """Wait until the fake was sent this."""
    async with asyncio.timeout(20):
        while True:
            found = [message for message in wire(log) if message.get("method") == method]
            if found:
                return found[-1]
            await asyncio.sleep(0.01)
