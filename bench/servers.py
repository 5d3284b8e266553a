"""The servers that are measured over HTTP, each in a process of its own and started as users start it: ours by
`interlingua serve`, with an API key of its store; a bare endpoint by uvicorn's own command.

Both write no line for a request. What else differs between them is theirs: nothing of uvicorn is replaced or hidden.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .load import raise_file_limit

ROOT = Path(__file__).parent.parent
ANSWER = "BENCH_ANSWER"  # the variable with what the bare endpoint answers, as JSON
_AGENTS = str(Path(__file__).parent / "http_agents.py")
_ADDRESS = re.compile(rb"on (?:\x1b\[[0-9;]*m)*http://127\.0\.0\.1:(\d+)")


class Running(msgspec.Struct):
    """A server that was started."""

    process: int
    port: int
    key: str = ""  # that callers send


def interlingua(*arguments: str) -> list[str]:
    """The command line of our program, as it is installed."""
    script = Path(sys.executable).with_name("interlingua")
    return [*([str(script)] if script.exists() else [sys.executable, "-m", "interlingua"]), *arguments]


def new_key(store: Path) -> str:
    """A key for the servers on a store."""
    command = interlingua("keys", "add", "bench", "--store", str(store))
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.asynccontextmanager
async def ours(store: Path, *, keyed: bool = True) -> AsyncIterator[Running]:
    """Our server. Without a key it is open to everybody on this machine."""
    key = await asyncio.to_thread(new_key, store) if keyed else ""
    command = interlingua("serve", _AGENTS, "--port", "0", "--no-peer-ports", "--log", "off", "--store", str(store))
    async with _started(command, {}) as running:
        running.key = key
        yield running


@contextlib.asynccontextmanager
async def bare(answer: Any) -> AsyncIterator[Running]:
    """The bare endpoint, which gives this answer to everybody."""
    command = [sys.executable, "-m", "uvicorn", "bench.bare:app", "--port", "0", "--no-access-log"]
    async with _started(command, {ANSWER: msgspec.json.encode(answer).decode()}) as running:
        yield running


@contextlib.asynccontextmanager
async def _started(command: list[str], environment: Mapping[str, str]) -> AsyncIterator[Running]:
    raise_file_limit()  # the server inherits it
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    reading: asyncio.Task[bytes] | None = None
    try:
        said = b""
        while (found := _ADDRESS.search(said)) is None:
            line = await process.stderr.readline()
            if not line:
                raise RuntimeError(f"{' '.join(command)} said {said[-2000:]!r}")
            said += line
        reading = asyncio.ensure_future(process.stderr.read())  # so that the server never waits for a reader
        yield Running(process.pid, int(found[1]))
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if reading is not None:
            await reading
