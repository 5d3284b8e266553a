"""Commands that a mounted agent runs on this machine: each in a process group of its own, with nothing on stdin."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal

from ....engine.handler.workspace import TerminalOutput
from ....model.errors import InvalidRequest, NotFound
from ....transports.process.child_process import Output, environment

DEFAULT_LIMIT = 1024 * 1024  # bytes of output that are kept
_PATIENCE = 1.0  # seconds between SIGTERM and SIGKILL, and for output that comes after the end


class LocalTerminal:
    def __init__(self, id_: str, process: asyncio.subprocess.Process, written: Output, limit: int) -> None:
        self.id = id_
        self._process = process
        self._written = written
        self._limit = limit
        self._kept = bytearray()
        self._truncated = False
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while data := await self._written.read():
            self._kept += data
            if len(self._kept) > self._limit:
                self._truncated = True
                del self._kept[: len(self._kept) - self._limit]
                _to_boundary(self._kept)

    async def output(self) -> TerminalOutput:
        code = self._process.returncode
        return TerminalOutput(
            self._kept.decode("utf-8", "replace"),
            self._truncated,
            code if code is not None and code >= 0 else None,
            signal.Signals(-code).name if code is not None and code < 0 else None,
            code is not None,
        )

    async def wait(self) -> TerminalOutput:
        await self._process.wait()
        with contextlib.suppress(TimeoutError):  # something that it left behind may hold its output open for ever
            await asyncio.wait_for(asyncio.shield(self._reading), _PATIENCE)
        return await self.output()

    async def kill(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                break
            self._signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _PATIENCE)
        self._signal(signal.SIGKILL)  # and its children

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)

    async def release(self) -> None:
        await self.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, _PATIENCE)
        self._written.close()


class Terminals:
    """The local terminals of one session."""

    def __init__(self) -> None:
        self._open: dict[str, LocalTerminal] = {}
        self._numbers = itertools.count(1)

    async def create(
        self, command: str, args: list[str], cwd: str, env: dict[str, str], limit: int | None
    ) -> LocalTerminal:
        words = [command, *args]
        if not args and shutil.which(command) is None:
            words = ["/bin/sh", "-c", command]  # agents give whole lines as the command
        written = Output()
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=written.theirs,
                stderr=asyncio.subprocess.STDOUT,
                cwd=cwd,
                env={**environment(os.environ), **env},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            written.not_started()
            raise InvalidRequest(f"{command} cannot be run: {error}") from error
        await written.started()
        kept = DEFAULT_LIMIT if limit is None else limit
        terminal = LocalTerminal(f"term-{next(self._numbers)}", process, written, kept)
        self._open[terminal.id] = terminal
        return terminal

    def find(self, id_: str) -> LocalTerminal:
        terminal = self._open.get(id_)
        if terminal is None:
            raise NotFound(f"there is no terminal {id_}")
        return terminal

    async def release(self, id_: str) -> None:
        terminal = self.find(id_)
        del self._open[id_]
        await terminal.release()

    async def close(self) -> None:
        """Ends all commands that still run."""
        left, self._open = self._open, {}
        await asyncio.gather(*(terminal.release() for terminal in left.values()), return_exceptions=True)


def _to_boundary(data: bytearray) -> None:
    """Drops the rest of a character that was cut in two at the front."""
    cut = 0
    while cut < min(3, len(data)) and data[cut] & 0xC0 == 0x80:
        cut += 1
    del data[:cut]
