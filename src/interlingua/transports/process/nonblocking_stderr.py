"""Provides a stderr that never waits for long: some clients give an agent a pipe for it, and never read that pipe.

Without this, an agent that prints more than the pipe holds stops for ever, in the middle of a turn. It guards the
output of Python code; child processes write by themselves, and stop only themselves.
"""

from __future__ import annotations

import io
import os
import select
import threading

_PATIENCE = 500  # milliseconds for a slow reader; then text is dropped until there is room again

_one_at_a_time = threading.Lock()  # room for one piece is room for one writer


class _Dropping(io.RawIOBase):
    """Writes to a pipe or socket, and drops text that it has no room for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._patience = _PATIENCE
        self._dropped = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        with _one_at_a_time:
            # If there is room at all, there is room for this much: the write does not wait.
            for start in range(0, len(view), select.PIPE_BUF):
                self._put(view[start : start + select.PIPE_BUF])
        return len(view)

    def _put(self, piece: memoryview) -> None:
        if not self._poll.poll(self._patience):
            self._patience = 0
            self._dropped += len(piece)
            return
        self._patience = _PATIENCE
        try:
            if self._dropped:
                note = f"\n[{self._dropped} bytes are missing here: nobody read them]\n".encode()
                self._dropped = 0
                os.write(self._fd, note)
                self._put(piece)
                return
            os.write(self._fd, piece)
        except OSError:  # the reader has gone: what is printed is no reason to fail
            self._dropped += len(piece)


def printing_to(fd: int) -> io.TextIOWrapper:
    """A text stream like sys.stderr."""
    raw = io.BufferedWriter(_Dropping(fd))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
