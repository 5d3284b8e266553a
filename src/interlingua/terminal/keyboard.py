"""Reads lines from the terminal in a way that can be given up, and notices Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import sys
import termios
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .signals import Signals

if TYPE_CHECKING:
    from ..engine.engine import Engine


async def read_line(prompt: str) -> str:
    """Ask for a line. Raises EOFError on Ctrl-D. Cancelling it takes the prompt away.

    The terminal does the editing, so nothing has to be put back when the prompt is taken away.
    """
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line: asyncio.Future[bytes] = loop.create_future()
    read = bytearray()

    def ready() -> None:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # the terminal is gone
            chunk = b""
        read.extend(chunk)
        if not line.done() and (not chunk or read.endswith(b"\n")):
            line.set_result(bytes(read))

    loop.add_reader(fd, ready)
    try:
        text = await line
    except asyncio.CancelledError:
        forget_typed()
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write("\n")
        raise
    finally:
        loop.remove_reader(fd)
    if not text:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write("\n")
        raise EOFError
    return text.decode(errors="replace").rstrip("\r\n")


def forget_typed() -> None:
    """Drops text that was typed ahead: it cannot have been meant for a question that was not there yet."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def is_gone(fd: int) -> bool:
    """Returns whether a descriptor was a terminal that has been closed."""
    try:
        termios.tcgetattr(fd)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    poll = select.poll()
    poll.register(fd, 0)
    # While a terminal is being closed, its attributes can still be read.
    return any(events & select.POLLHUP for _, events in poll.poll(0))


class Interrupts:
    """Handles interrupts inside its context: the first Ctrl-C or SIGTERM sets `pressed`, the second leaves at once.

    The context begins before there is anything to end: a signal before it ends the command, and none after it is lost.
    """

    def __init__(
        self, engine: Engine | None = None, *, hangup: bool = False, folder: Path | None = None
    ) -> None:  # fmt: skip
        """`engine`: its runs are handed back when the process leaves at once. `hangup`: SIGHUP counts, too, unless the
        process outlives its terminal. `folder`: removed when the process leaves at once."""
        self.pressed = asyncio.Event()
        self._hangup = hangup and not Signals.outlives_terminal()
        self._signals = Signals(self.pressed.set, hangup=self._hung_up if self._hangup else None)
        self._signals.engine, self._signals.folder = engine, folder

    @property
    def name(self) -> str:
        """The name of what was pressed, for a person."""
        number = self._signals.number
        return "Ctrl-C" if number in (None, signal.SIGINT) else number.name

    def terminal_went_away(self) -> bool:
        """Returns whether reading or writing failed because the terminal is gone. That counts as SIGHUP, which may come
        later: the shell gets it first."""
        if not self._hangup or not any(map(is_gone, (0, 1, 2))):
            return False
        self._hung_up()
        self.pressed.set()
        return True

    @staticmethod
    def _hung_up() -> bool:
        """Sends stdout and stderr to the null device if their terminal is gone: a failed write must not keep the
        command from ending in order."""
        for fd in (1, 2):
            if is_gone(fd):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, fd)
                os.close(nothing)
        return True

    async def __aenter__(self) -> Interrupts:
        self._signals.__enter__()
        try:
            # asyncio's handler cancels this task at its next wait: here, and not in what follows
            await asyncio.sleep(0)
        except BaseException:
            self._signals.__exit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.__exit__(kind, error, trace)
