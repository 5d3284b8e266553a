"""Reads lines from the terminal in a way that can be given up, and notices Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Callable
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
    """While it is entered: the first Ctrl-C calls `first` on the event loop, the second leaves at once.

    A plain signal handler rather than the loop's: it also works while an agent keeps the event loop busy.
    """

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._count = 0
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self._loop = asyncio.get_running_loop()
        self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(ExitCode.CANCELLED)  # the run's log is safe: whoever has the agent's code can take it up again
        self._loop.call_soon_threadsafe(self._first)
