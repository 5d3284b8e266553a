"""Runs a child process that speaks over its pipes: starts it in a group of its own, reads it, and ends it together with
all processes that it started.

Wrappers (npx, node shims, shell scripts) start the real program as a child of theirs, so ending the process that was
started here is not enough: its whole group is ended. That happens in every way of ending:

- the owner ends it: its stdin is closed, then the group is asked to end (SIGTERM), then made to (SIGKILL);
- the child exits by itself, and leaves others behind: the rest of its group is ended the same way;
- this process exits: the task that keeps the child is cancelled with the event loop, and `atexit` is the last resort;
- this process is killed and can do nothing any more: a shell that waits on a pipe from this process sees it close, and
  ends the group. (PR_SET_PDEATHSIG would need code between fork and exec, and reaches only the first process of the
  group.)
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import shlex
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping

from ...model.errors import InvalidRequest, Unavailable
from ..channel import TooLong
from .pipes import PipeChannel

_TAIL = 20  # lines of stderr that are kept, to tell why it ended
_LINE = 2000  # characters of a line of stderr that are kept
_PATIENCE = (3.0, 2.0)  # seconds for a child to end after its stdin is closed, and after SIGTERM
_LOOK_EVERY = 0.02
_READ = 64 * 1024
_SOON = 1.0

_GUARD = 'read -r _ || { kill -TERM "-$1"; sleep 2; kill -KILL "-$1"; }'

Clean = Callable[[str], str]
"""Removes secrets from the output of a child before it is shown or logged."""

_groups: set[int] = set()  # the groups of living children


def _end_all() -> None:
    for group in list(_groups):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


atexit.register(_end_all)


def environment(own: Mapping[str, str], *, without: str = "INTERLINGUA_") -> dict[str, str]:
    """Returns the environment of a child: everything, as agents find their keys there, but what is meant for this
    program alone."""
    return {name: value for name, value in own.items() if not name.startswith(without)}


def words_of(command: str, kind: str) -> list[str]:
    """Splits a command into words. `kind` is the scheme of the target, for errors."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidRequest(f"{command!r} is not a command: {error}") from None
    if not words:
        raise InvalidRequest(f"there is no command after {kind}:")
    return words


class Guard:
    """Ends the group of a process when this process ends, however that happens."""

    def __init__(self, group: int) -> None:
        self._group = group
        _groups.add(group)
        self._shell = subprocess.Popen(  # noqa: S603 - it takes a millisecond, and must be there before anything else
            ["/bin/sh", "-c", _GUARD, "sh", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def let_go(self) -> None:
        """The group has ended."""
        _groups.discard(self._group)
        stdin = self._shell.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(b"\n")
            stdin.close()
        try:
            self._shell.wait(1.0)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()


class Output:
    """Reads the output of a process from a pipe.

    The pipe is not one of asyncio's own: there, waiting for a process also waits for every process that inherited its
    pipes.
    """

    def __init__(self) -> None:
        self._reads, self.theirs = os.pipe()
        self._stream = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    async def started(self) -> None:
        """The process has its end now."""
        os.close(self.theirs)
        file = os.fdopen(self._reads, "rb", 0)
        made = asyncio.StreamReaderProtocol(self._stream)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: made, file)

    def not_started(self) -> None:
        os.close(self.theirs)
        os.close(self._reads)

    async def read(self) -> bytes:
        return await self._stream.read(_READ)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Child:
    """A running child process. `start` makes it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pipes: PipeChannel,
        stderr: Output,
        guard: Guard,
        clean: Clean,
        log: logging.Logger,
    ) -> None:
        self._process = process
        self._errors = stderr
        self._guard = guard
        self._clean = clean
        self._log = log
        self._patience = _PATIENCE
        self.pid = process.pid
        self.channel = QuietChannel(pipes, clean)
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._ending: asyncio.Future[None] | None = None
        self._stderr = asyncio.ensure_future(self._drain())
        self._watch = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(
        cls,
        command: list[str],
        cwd: str,
        env: Mapping[str, str],
        *,
        clean: Clean,
        log: logging.Logger,
        patience: tuple[float, float] | None = None,
    ) -> Child:
        """Starts a command. Its stderr goes to the log. `patience`: seconds that the command has to end after its stdin
        is closed, and after SIGTERM."""
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        errors = Output()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=errors.theirs,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as error:
            os.close(ours_in)
            os.close(ours_out)
            errors.not_started()
            reason = error.strerror or str(error)
            raise Unavailable(f"{command[0]} cannot be started: {reason}", transient=False) from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        made = cls(process, PipeChannel(ours_in, ours_out), errors, Guard(process.pid), clean, log)
        if patience is not None:
            made._patience = patience
        try:
            await errors.started()
        except BaseException:
            await made.end()
            raise
        return made

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def how_it_ended(self) -> str:
        """Describes the end for an error message: the exit status, and the last lines on stderr."""
        with contextlib.suppress(TimeoutError):  # these come a moment after its output has ended
            async with asyncio.timeout(_SOON):
                await self._process.wait()
                await asyncio.shield(asyncio.gather(self._stderr, return_exceptions=True))
        code = self._process.returncode
        if code is None:
            end = "it closed its output"
        elif code < 0:
            end = f"it was ended by {signal.Signals(-code).name}"
        else:
            end = f"it exited with status {code}"
        return f"{end}; the last it said: {' | '.join(list(self.tail)[-5:])}" if self.tail else end

    async def _drain(self) -> None:
        """Reads stderr all the time: an agent whose stderr is full stands still."""
        rest = b""
        while data := await self._errors.read():
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > 4 * _LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._said(line)
        if rest:
            self._said(rest)

    def _said(self, line: bytes) -> None:
        text = self._clean(line[: 4 * _LINE].decode(errors="replace").rstrip()[:_LINE])
        if text:
            self.tail.append(text)
            self._log.info("agent %d: %s", self.pid, text)

    async def _wait(self) -> None:
        """Waits until the child exits. If it exits by itself, ends the processes that it started, and the channel."""
        await self._process.wait()
        if self._ending is None:
            with contextlib.suppress(TimeoutError):  # its last words come first
                await asyncio.wait_for(asyncio.shield(self._stderr), 0.5)
            await self.end()

    async def end(self) -> None:
        """Ends the whole group of processes. Returns when all have ended, or do not end by any means."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            if self._process.returncode is None:
                await self.channel.close_writing()
                await self._gone(self._patience[0])
            if self._signal(signal.SIGTERM) and not await self._gone(self._patience[1]):
                self._log.warning("agent %d did not end when it was asked to; it is killed", self.pid)
                self._signal(signal.SIGKILL)
                await self._gone(1.0)
        finally:
            self._signal(signal.SIGKILL)
            self._guard.let_go()
            self._stderr.cancel()
            self._errors.close()
            await self.channel.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 1.0)

    async def _gone(self, seconds: float) -> bool:
        """Waits until the whole process group is gone. Returns whether it is, within a time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._signal(0):
            if loop.time() > deadline:
                return False
            await asyncio.sleep(_LOOK_EVERY)
        return True

    def _signal(self, number: int) -> bool:
        """Sends a signal to the process group. Returns whether there was a process to receive it."""
        try:
            os.killpg(self.pid, number)
        except PermissionError:
            return True
        except OSError:
            return False
        return True


class QuietChannel:
    """A channel to a process that may print: lines that are no messages are skipped and counted."""

    def __init__(self, pipes: PipeChannel, clean: Clean) -> None:
        self._pipes = pipes
        self._clean = clean
        self.noise = 0
        self.first_noise = ""

    async def receive(self) -> list[bytes]:
        while frames := await self._pipes.receive():
            kept = [frame for frame in frames if self._is_message(frame)]
            if kept:
                return kept
        return []

    def _is_message(self, frame: bytes) -> bool:
        start = frame.lstrip()[:1]
        if not start:
            return False
        # JSON without this member is a line of a structured log.
        if start in (b"{", b"[") and (
            b'"jsonrpc"' in frame or (isinstance(frame, TooLong) and b'"jsonrpc"' in frame.tail)
        ):
            return True
        self.noise += 1
        if not self.first_noise:
            self.first_noise = self._clean(frame[:500].decode(errors="replace"))[:200]
        return False

    def send(self, frame: bytes) -> None:
        self._pipes.send(frame)

    async def drain(self) -> None:
        await self._pipes.drain()

    async def close_writing(self) -> None:
        await self._pipes.close_writing()

    async def close(self) -> None:
        await self._pipes.close()
