"""Runs mounted agents in a process of its own, so that it can be killed.

python -m tests.protocols.connect.mount_process STORE ADDRESS
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from interlingua.protocols.connect.mount.server import load
from interlingua.protocols.targets import Target
from tests.kit.engines import engine

REPO = Path(__file__).parent.parent.parent.parent


class MountProcess:
    """The process. `kill` is kill -9."""

    def __init__(self, store: Path, address: str) -> None:
        self._command = [sys.executable, "-m", __name__, str(store), address]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> MountProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        env = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'src'}"}
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, env=env, cwd=REPO
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process._transport.close()  # type: ignore[attr-defined]
            self._process = None


async def main(store: str, address: str) -> None:
    agents = await load(Target("connect+http", f"connect+{address}"))
    async with engine(Path(store), *agents):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
