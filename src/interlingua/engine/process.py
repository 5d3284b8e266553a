"""Worker processes for agents that keep a CPU busy (`process=True`).

Each is a fresh Python that loads the agent's file and speaks length-prefixed JSON over its pipes. Cancelling a run
ends its process, in the middle of whatever it computes; the next run gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from typing import TYPE_CHECKING, Any

from ..model import values
from ..model.errors import AgentCrashed, ErrorInfo, RunLost
from ..model.events import OutputDelta

if TYPE_CHECKING:
    from .execution import Execution

_HEAD = struct.Struct("!I")


class ProcessFailed(AgentCrashed):
    """What the agent raised over there."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"], details=error.get("details"), transient=error.get("transient", False))
        self._info = ErrorInfo(error["code"], error["message"], error.get("transient", False), error.get("details"))

    def info(self) -> ErrorInfo:
        return self._info


class ProcessPool:
    def __init__(self, size: int) -> None:
        self._free: list[asyncio.subprocess.Process] = []
        self._young: set[asyncio.subprocess.Process] = set()  # all that were started since files changed
        self._slots = asyncio.Semaphore(size)

    async def run(self, execution: Execution, kwargs: dict[str, Any]) -> Any:
        """The output of the agent, or None where it is the join of what was yielded."""
        agent = execution.agent
        assert agent is not None
        async with self._slots:
            process = await self._take()
            clean = False
            try:
                order = {
                    "file": agent.fn.__code__.co_filename,
                    "module": agent.fn.__module__,
                    "name": agent.fn.__qualname__,
                    "input": execution.request.input,
                }
                await _send(process, order)
                while True:
                    news = await _receive(process)
                    if "delta" in news:
                        execution.emit(OutputDelta(news["delta"]))
                        await execution.log.breathe()
                    elif "error" in news:
                        clean = True
                        raise ProcessFailed(news["error"])
                    else:
                        clean = True
                        return news["output"]
            finally:
                if clean and process in self._young:
                    self._free.append(process)
                else:
                    self._young.discard(process)
                    await _end(process)

    async def _take(self) -> asyncio.subprocess.Process:
        while self._free:
            process = self._free.pop()
            if process.returncode is None and process in self._young:
                return process
            self._young.discard(process)
            await _end(process)  # it died while nobody needed it, or has loaded what has changed since
        process = await self._start()
        self._young.add(process)
        return process

    def renew(self) -> None:
        """Files of agents have changed: what has loaded them before is used for no other run."""
        self._young.clear()

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "interlingua.engine.process_main",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
            start_new_session=True,  # Ctrl-C at a terminal is for the engine, which ends its processes itself
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )  # fmt: skip

    async def close(self) -> None:
        for process in self._free:
            await _end(process)
        self._free.clear()


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    transport = getattr(process, "_transport", None)  # asyncio leaves the pipes open until the collector comes by
    if transport is not None:
        transport.close()


async def _send(process: asyncio.subprocess.Process, message: Any) -> None:
    assert process.stdin is not None
    data = values.encode(message)
    try:
        process.stdin.write(_HEAD.pack(len(data)) + data)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        raise RunLost("the worker process died") from None


async def _receive(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    try:
        (size,) = _HEAD.unpack(await process.stdout.readexactly(_HEAD.size))
        message: dict[str, Any] = values.decode(await process.stdout.readexactly(size))
    except asyncio.IncompleteReadError:
        code = await process.wait()
        raise AgentCrashed(f"the worker process ended with exit code {code} while the agent ran") from None
    return message
