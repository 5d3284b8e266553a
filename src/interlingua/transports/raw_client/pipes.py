"""Starts a command, and exchanges lines of JSON with it over its pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any, Self

from ...model.errors import Unavailable
from ..process.child_process import environment
from .endpoint import Endpoint, Gone, shown
from .messages import Heard

_SAID = 4  # times what one answer may have: what a command may say in all
_LIGHT = 1024  # bytes that a line counts for at least: short ones take more memory than they have letters
_PIECE = 64 * 1024  # bytes that are read at once; what waits beyond them is left to the command
_STDERR = 64 * 1024  # bytes of what a command says on stderr that are kept


def last_words(stderr: str) -> str:
    """The last line that says something: tracebacks of groups of exceptions end with lines that are only drawn."""
    lines = (line.strip(" |+-\t") for line in reversed(stderr.splitlines()))
    return next((line for line in lines if any(map(str.isalpha, line))), "")


class Pipes(Heard):
    """A command that speaks lines of JSON. What it says on stderr is in `stderr`, the last of it."""

    def __init__(self, process: asyncio.subprocess.Process, subject: Endpoint) -> None:
        super().__init__(subject.patience, subject.quiet)
        self._process = process
        self._most = subject.most
        self.stderr = b""
        self._said = 0  # bytes
        loop = asyncio.get_running_loop()
        self._reading = [loop.create_task(self._read()), loop.create_task(self._read_stderr())]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, subject: Endpoint) -> AsyncIterator[Self]:
        """Starts the command, and in the end ends it with its whole group."""
        pipe = asyncio.subprocess.PIPE
        pipes = cls(await started(subject, stdin=pipe, stdout=pipe, stderr=pipe), subject)
        try:
            yield pipes
        finally:
            await pipes.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        part = bytearray()  # the bytes of a line that has not ended
        while data := await self._process.stdout.read(_PIECE):
            self._said += len(data)
            *ended, rest = data.split(b"\n")
            for line in ended:
                part += line + b"\n"
                await self.take(bytes(part))
                part.clear()
            part += rest
            if len(part) > self._most or self._too_much():
                end_group(self._process)  # it does not stop by itself
                part.clear()
                break
        if part:
            await self.take(bytes(part))
        await self.end()
        while await self._process.stdout.read(_PIECE):
            pass  # as long as something waits to be read, asyncio takes the process not to have ended

    def _too_much(self) -> bool:
        return max(self._said, _LIGHT * len(self.lines)) > _SAID * self._most

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65536):  # always read, or the process would wait for a reader
            self.stderr = (self.stderr + data)[-_STDERR:]

    def send(self, message: Any) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Waits until the process ends by itself, and returns its exit code. Its output is read by then."""
        try:
            async with asyncio.timeout(self._patience):
                code = await self._process.wait()
                await asyncio.wait(self._reading, timeout=1.0)  # its children may keep the pipes open
                return code
        except TimeoutError:
            raise Gone(f"the process did not end within {self._patience:g} s") from None

    def gone(self) -> str:
        if self._too_much():
            return f"the process says too much ({len(self.lines)} lines)"
        said = last_words(self.stderr.decode(errors="replace"))
        return f"the process ended (on stderr: {shown(said, 120)})" if said else "the process ended"

    async def close(self) -> None:
        self.end_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        end_group(self._process)
        await self._process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


async def started(subject: Endpoint, **streams: Any) -> asyncio.subprocess.Process:
    """The command as a process with these streams, in a group of its own."""
    try:
        return await asyncio.create_subprocess_exec(
            *subject.command, **streams, env=environment(os.environ), start_new_session=True, limit=_PIECE
        )
    except OSError as error:
        raise Unavailable(f"{subject.command[0]} cannot be started: {error.strerror}", transient=False) from error


def end_group(process: asyncio.subprocess.Process) -> None:
    """Ends a process that `started` returned, and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
