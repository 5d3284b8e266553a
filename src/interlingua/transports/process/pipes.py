"""Implements a channel over two file descriptors, one message per line: the stdin and stdout of this process, or those
of a child process.

The event loop reads and writes pipes and sockets; threads read and write anything else (a file, a terminal), because
the loop cannot wait for it, and because other programs may share a terminal and do not expect it to be non-blocking.
The side that reads or writes a descriptor also closes it, so that no number is used after it belongs to another file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import threading

from .lines import LineReader
from .nonblocking_stderr import printing_to

_READ = 256 * 1024
_HIGH, _LOW = 1024 * 1024, 256 * 1024  # bytes queued at which senders wait, and at which they go on
_CLOSING = 2.0  # seconds for a peer to take what is queued at the end


class PipeChannel:
    """Takes over both descriptors: they are closed with it."""

    def __init__(self, reads: int, writes: int, *, max_line: int = 64 * 1024 * 1024) -> None:
        self._input = (_Input if _pollable(reads) else _ThreadInput)(reads, max_line)
        self._output = (_Output if _pollable(writes) else _ThreadOutput)(writes)

    async def receive(self) -> list[bytes]:
        return await self._input.receive()

    def send(self, frame: bytes) -> None:
        self._output.send(frame)

    async def drain(self) -> None:
        await self._output.room.wait()

    async def close(self) -> None:
        try:
            await self._output.finish()
        finally:
            self._output.close()
            self._input.close()

    async def close_writing(self) -> None:
        """Closes the output, so that the peer sees its end, and goes on reading."""
        try:
            await self._output.finish()
        finally:
            self._output.close()


# -- reading --------------------------------------------------------------------------------------------------


class _Input:
    """Reads only what is taken: the rest waits in the pipe, and there it makes the peer wait."""

    def __init__(self, fd: int, max_line: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lines = LineReader(max_line)
        self._frames: list[bytes] = []
        self._ended = False
        self._paused = True
        self._news = asyncio.Event()
        self._start()

    async def receive(self) -> list[bytes]:
        while not self._frames:
            if self._ended:
                return []
            if self._paused:
                self._resume()
            self._news.clear()
            await self._news.wait()
        frames, self._frames = self._frames, []
        return frames

    def _took(self, data: bytes) -> None:
        if data:
            self._frames.extend(self._lines.feed(data))
        elif not self._ended:
            self._ended = True
            self._frames.extend(self._lines.end())  # whole, or cut off: its reader says so
        if self._frames or self._ended:
            self._news.set()

    def close(self) -> None:
        self._ended = True
        self._news.set()
        self._stop()

    # Ways to read the descriptor:

    def _start(self) -> None:
        os.set_blocking(self._fd, False)

    def _resume(self) -> None:
        self._paused = False
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        if self._frames or self._ended:  # the last ones were not taken yet
            self._paused = True
            self._loop.remove_reader(self._fd)
            return
        try:
            data = os.read(self._fd, _READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._took(data)

    def _stop(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            _close(self._fd)
            self._fd = -1


class _ThreadInput(_Input):
    def _start(self) -> None:
        self._wanted = threading.Event()
        threading.Thread(target=self._read, daemon=True, name="interlingua-stdin").start()

    def _resume(self) -> None:
        self._paused = False
        self._wanted.set()

    def _read(self) -> None:
        data = b"-"
        while data:
            self._wanted.wait()
            self._wanted.clear()
            if self._ended:
                break
            try:
                data = os.read(self._fd, _READ)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._took_one, data)
            except RuntimeError:  # the loop is gone
                break
        os.close(self._fd)

    def _took_one(self, data: bytes) -> None:
        self._paused = True
        if not self._ended:
            self._took(data)
            if not self._news.is_set():  # half a line
                self._resume()

    def _stop(self) -> None:
        self._wanted.set()  # a thread that is inside of a read stays there; it is a daemon


# -- writing --------------------------------------------------------------------------------------------------


class _Output:
    """A queue of frames, written together: once for all that is sent in one turn of the loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._piece = memoryview(b"")  # the bytes being written; never copied again, however often the peer stalls
        self._queued = 0
        self._busy = False  # a write is under way, or will be in this turn of the loop
        self._gone = False  # the reader has gone, or this side has closed
        self.room = asyncio.Event()
        self.room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._start()

    def send(self, frame: bytes) -> None:
        if self._gone:
            return
        self._frames.append(frame)
        self._queued += len(frame) + 1
        if self._queued > _HIGH:
            self.room.clear()
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._write)

    def _next_piece(self) -> bool:
        """Takes the whole queue as one piece. Returns False if it is empty."""
        if not self._frames:
            return False
        self._frames.append(b"")  # so that the last line ends too
        self._piece = memoryview(b"\n".join(self._frames))
        self._frames = []
        return True

    def _wrote(self, size: int) -> None:
        self._queued -= size
        if self._queued <= _LOW:
            self.room.set()

    def _all_written(self) -> None:
        self._busy = False
        self._piece = memoryview(b"")
        self._idle.set()

    def _lost(self) -> None:
        self._gone = True
        self._frames = []
        self._queued = 0
        self.room.set()
        self._all_written()

    async def finish(self) -> None:
        """Waits until all is written, but not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._idle.wait()

    def close(self) -> None:
        self._lost()
        self._stop()

    # Ways to write the descriptor:

    def _start(self) -> None:
        os.set_blocking(self._fd, False)
        self._waiting = False  # the loop tells when there is room in the pipe

    def _write(self) -> None:
        if self._gone:
            return
        while self._piece or self._next_piece():
            try:
                written = os.write(self._fd, self._piece)
            except (BlockingIOError, InterruptedError):
                written = 0
            except OSError:
                self._wait(False)
                self._lost()
                return
            self._wrote(written)
            self._piece = self._piece[written:]
            if self._piece:
                self._wait(True)
                return
        self._wait(False)
        self._all_written()

    def _wait(self, waiting: bool) -> None:
        if waiting and not self._waiting:
            self._loop.add_writer(self._fd, self._write)
        elif self._waiting and not waiting:
            self._loop.remove_writer(self._fd)
        self._waiting = waiting

    def _stop(self) -> None:
        if self._fd >= 0:
            self._wait(False)
            if stat.S_ISSOCK(os.fstat(self._fd).st_mode):  # the input may be a second descriptor of the same socket
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as peer:
                    peer.shutdown(socket.SHUT_WR)
            _close(self._fd)
            self._fd = -1


class _ThreadOutput(_Output):
    def _start(self) -> None:
        self._given = threading.Event()
        self._thread: threading.Thread | None = None

    def _write(self) -> None:
        """Gives the thread its next piece, if it has none."""
        if self._gone or self._piece:
            return
        if not self._next_piece():
            self._all_written()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_pieces, daemon=True, name="interlingua-stdout")
            self._thread.start()
        self._given.set()

    def _write_pieces(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone
            while True:
                self._given.wait()
                self._given.clear()
                if self._gone:
                    break
                piece = self._piece
                if not _write_all(self._fd, piece):
                    self._loop.call_soon_threadsafe(self._lost)
                    break
                self._loop.call_soon_threadsafe(self._wrote_piece, len(piece))
        os.close(self._fd)

    def _wrote_piece(self, size: int) -> None:
        if not self._gone:
            self._wrote(size)
            self._piece = memoryview(b"")
            self._write()

    def _stop(self) -> None:
        if self._thread is not None:
            self._given.set()  # the thread closes it
        elif self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write_all(fd: int, piece: memoryview) -> bool:
    while piece:
        try:
            piece = piece[os.write(fd, piece) :]
        except BlockingIOError:  # another process made it non-blocking
            threading.Event().wait(0.005)
        except OSError:
            return False
    return True


# -- descriptors ----------------------------------------------------------------------------------------------


def divert_stdio() -> tuple[int, int]:
    """Takes this process's stdin and stdout away for a `PipeChannel`: from now on nothing else uses them.

    Printed text goes to stderr instead, and child processes find an empty stdin: neither can break into the protocol.
    """
    reads, writes, printed = _aside(0, os.O_RDONLY), _aside(1, os.O_WRONLY), _aside(2, os.O_WRONLY)
    nothing = _nothing(os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(printed, 1)
    os.close(nothing)
    os.close(printed)
    if _pollable(1):
        sys.stdout = sys.__stdout__ = printing_to(1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = printing_to(2)  # type: ignore[misc]
    elif hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # like stderr, into which it goes now
    return reads, writes


def _aside(fd: int, flags: int) -> int:
    """Returns a second descriptor for the same file, or one of /dev/null if it is closed."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
    return _nothing(flags)


def _nothing(flags: int) -> int:
    """Opens /dev/null with a number above those of stdin, stdout and stderr: if one of them is closed, its number would
    be the next."""
    fd = os.open(os.devnull, flags)
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.set_blocking(fd, True)  # the shell that started this process may use the same pipe later
    with contextlib.suppress(OSError):
        os.close(fd)


def _pollable(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
