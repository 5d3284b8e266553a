"""The least that two processes can say to each other over a WebSocket: an echo, with the `websockets` library.

`python -m bench.peer_echo` serves, or with a job on stdin asks. The library compresses unless it is told not to, which
costs it some of its rate; between our nodes nothing is compressed. So both can be asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from .servers import ROOT


class Job(msgspec.Struct):
    port: int  # 0: serve
    text: str = ""
    count: int = 0
    in_flight: int = 1
    compressed: bool = True  # as the library does by itself


class Echoed(msgspec.Struct):
    port: int = 0
    seconds: float = 0.0
    computed: float = 0.0


async def _echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


async def _serve() -> None:
    async with serve(_echo, "127.0.0.1", 0) as server:
        _say(Echoed(next(iter(server.sockets)).getsockname()[1]))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


async def _ask(job: Job) -> None:
    how: dict[str, Any] = {} if job.compressed else {"compression": None}
    async with connect(f"ws://127.0.0.1:{job.port}", **how) as socket:
        begun, computed = time.perf_counter(), time.process_time()
        for _ in range(job.in_flight):
            await socket.send(job.text)
        for at in range(job.count):
            if await socket.recv() != job.text:
                raise RuntimeError("the echo differs")
            if at + job.in_flight < job.count:
                await socket.send(job.text)
        _say(Echoed(job.port, time.perf_counter() - begun, time.process_time() - computed))


def _say(what: Echoed) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


async def _process() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.peer_echo", cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def echo(job: Job) -> Echoed:
    process = await _process()
    output, _ = await process.communicate(msgspec.json.encode(job) + b"\n")
    if process.returncode:
        raise RuntimeError(f"the echo ended with {process.returncode}")
    return msgspec.json.decode(output, type=Echoed)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, int]]:
    """The port of an echo, and the process."""
    process = await _process()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(Job(0)) + b"\n")
        yield msgspec.json.decode(await process.stdout.readline(), type=Echoed).port, process.pid
    finally:
        process.stdin.close()
        await process.wait()


async def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    await (_ask(job) if job.port else _serve())


if __name__ == "__main__":
    asyncio.run(main())
