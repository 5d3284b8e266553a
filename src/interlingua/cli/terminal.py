"""Reads lines from the terminal in a way that can be given up, and notices Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from types import FrameType, TracebackType
from typing import Any

from .errors import ExitCode


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
        sys.stderr.write("\n")
        raise
    finally:
        loop.remove_reader(fd)
    if not text:
        sys.stderr.write("\n")
        raise EOFError
    return text.decode(errors="replace").rstrip("\r\n")


def forget_typed() -> None:
    """Drop what was typed ahead: it cannot have been meant for a question that was not there yet."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


class Interrupts:
    """While it is entered: the first Ctrl-C sets `pressed`, the second leaves at once.

    A plain signal handler rather than the loop's: it also works while an agent keeps the event loop busy. It is entered
    before there is anything to be ended: what came earlier ends the command, and what comes later is not lost.
    """

    def __init__(self) -> None:
        self.pressed = asyncio.Event()
        self._count = 0
        self._before: Any = None

    async def __aenter__(self) -> Interrupts:
        self._loop = asyncio.get_running_loop()
        self._before = signal.signal(signal.SIGINT, self._press)
        try:
            await asyncio.sleep(
                0
            )  # asyncio's handler cancels this task at its next wait: here, and not in what follows
        except BaseException:
            signal.signal(signal.SIGINT, self._before)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(ExitCode.CANCELLED)  # the run's log is safe: whoever has the agent's code can take it up again
        self._loop.call_soon_threadsafe(self.pressed.set)
