"""Worker processes for agents that keep a CPU busy (`process=True`).

Each is a fresh Python that loads the agent's file and exchanges length-prefixed JSON over its pipes. Cancelling a run
kills its process and all child processes in the middle of the computation; the next run gets a new process. None of
them outlives this process, even if it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...model import json_values
from ...model.errors import AgentCrashed, ErrorInfo, RunError, RunLost
from ...transports.process.child_process import Guard

if TYPE_CHECKING:
    from .agent import Agent

_HEAD = struct.Struct("!I")


class ProcessFailed(AgentCrashed):
    """The error that the agent raised in the worker process."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"], details=error.get("details"), transient=error.get("transient", False))
        self._info = ErrorInfo(error["code"], error["message"], error.get("transient", False), error.get("details"))

    def info(self) -> ErrorInfo:
        return self._info


class ProcessDied(RunLost):
    """A signal ended the worker process, probably because the system ran out of memory."""

    def __init__(self, code: int) -> None:
        try:
            self.signal = signal.Signals(-code).name
        except ValueError:
            self.signal = f"signal {-code}"
        super().__init__(f"the worker process was ended by {self.signal} while the agent ran")

    def final(self, times: int) -> RunLost:
        """The error of a run that ends by such deaths."""
        memory = " (it may need too much memory)" if self.signal == "SIGKILL" else ""
        often = f"{times} times" if times > 1 else "and this agent must not be repeated"
        return RunLost(f"the worker process was ended by {self.signal}{memory} {often}", transient=times <= 1)


class _WorkerProcess:
    """A worker process with its children: a process group that ends as a whole, at the latest with this process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._guard = Guard(process.pid)

    @classmethod
    async def start(cls) -> _WorkerProcess:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "interlingua.engine.agents.process_main", str(os.getpid()),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
                start_new_session=True,  # Ctrl-C at a terminal is for the engine, which ends its processes itself
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        )  # fmt: skip

    @property
    def lives(self) -> bool:
        return self.process.returncode is None

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            await self.process.wait()
        finally:
            self._guard.let_go()
            # asyncio closes the pipes only at garbage collection
            transport = getattr(self.process, "_transport", None)
            if transport is not None:
                transport.close()


class ProcessPool:
    def __init__(self, size: int) -> None:
        self._free: list[_WorkerProcess] = []
        self._current: set[_WorkerProcess] = set()  # processes started since the last change of files
        self._slots = asyncio.Semaphore(size)

    async def run(self, agent: Agent[..., Any], input_: Any, show: Callable[[Any], Awaitable[None]]) -> Any:
        """The output of the agent, or None where it is the join of what was yielded. `show` gets each yield."""
        async with self._slots:
            worker = await self._take()
            clean = False
            try:
                order = {
                    "file": agent.fn.__code__.co_filename,
                    "module": agent.fn.__module__,
                    "name": agent.fn.__qualname__,
                    "input": input_,
                }
                await _send(worker.process, order)
                while True:
                    news = await _receive(worker.process)
                    if "delta" in news:
                        await show(news["delta"])
                    elif "error" in news:
                        clean = True
                        raise ProcessFailed(news["error"])
                    else:
                        clean = True
                        return news["output"]
            finally:
                if clean and worker in self._current:
                    self._free.append(worker)
                else:
                    self._current.discard(worker)
                    await worker.end()

    async def _take(self) -> _WorkerProcess:
        while self._free:
            worker = self._free.pop()
            if worker.lives and worker in self._current:
                return worker
            self._current.discard(worker)
            await worker.end()  # it died while idle, or its files have changed since it loaded them
        worker = await _WorkerProcess.start()
        self._current.add(worker)
        return worker

    def renew(self) -> None:
        """Retires the current processes after a change of agents' files: none of them gets another run."""
        self._current.clear()

    async def close(self) -> None:
        free, self._free = self._free, []
        for worker in free:
            await worker.end()


async def _send(process: asyncio.subprocess.Process, message: Any) -> None:
    assert process.stdin is not None
    data = json_values.encode(message)
    try:
        process.stdin.write(_HEAD.pack(len(data)) + data)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        raise await _ended(process) from None


async def _receive(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    try:
        (size,) = _HEAD.unpack(await process.stdout.readexactly(_HEAD.size))
        message: dict[str, Any] = json_values.decode(await process.stdout.readexactly(size))
    except asyncio.IncompleteReadError:
        raise await _ended(process) from None
    return message


async def _ended(process: asyncio.subprocess.Process) -> RunError:
    code = await process.wait()
    if code < 0:
        return ProcessDied(code)
    return AgentCrashed(f"the worker process ended with exit code {code} while the agent ran")
