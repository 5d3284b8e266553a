"""Short ways to tool servers of tests, and to whether their processes are still there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from interlingua.model.team.manifest import Server
from interlingua.model.team.tools import ToolOutcome, ToolSpec
from interlingua.tools.servers import McpServers, ToolSettings

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {"pause": 0.0, "end_patience": (0.2, 2.0)}


class Tools:
    """One server of some `McpServers`."""

    def __init__(self, servers: McpServers, server: Server) -> None:
        self.servers = servers
        self.server = server

    async def call(
        self, tool: str, /, *, scopes: tuple[str, ...] = (), timeout: float | None = None, **given: Any
    ) -> Any:
        return (await self.outcome(tool, scopes=scopes, timeout=timeout, **given)).result

    async def outcome(
        self, tool: str, /, *, scopes: tuple[str, ...] = (), timeout: float | None = None, **given: Any
    ) -> ToolOutcome:
        return await self.servers.call("Tools", self.server, tool, given, scopes=scopes, timeout=timeout)

    async def list(self) -> list[ToolSpec]:
        return await self.servers.list("Tools", self.server)


@contextlib.asynccontextmanager
async def tools(server: Server, environ: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[Tools]:
    servers = McpServers(HERE, ToolSettings(**{**SETTINGS, **settings}), environ)
    try:
        yield Tools(servers, server)
    finally:
        await servers.close()


def polite(log: Path | None = None, **given: Any) -> Server:
    """The server that is made with the library, as a process."""
    env = {**given.pop("env", {}), **({"CALLS_LOG": str(log)} if log is not None else {})}
    return Server(command="python", args=("tool_server.py", *given.pop("args", ())), env=env, **given)


def rude(how: str, log: Path, **given: Any) -> Server:
    return Server(command="python", args=("rude_server.py", how), env={"CALLS_LOG": str(log)}, **given)


def words(log: Path) -> list[str]:
    """What servers wrote down."""
    return log.read_text().split() if log.exists() else []


class Watched:
    """A process, watched for its end. It need not be ours."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._over)

    def _over(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._ended.set()

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            await self._ended.wait()
