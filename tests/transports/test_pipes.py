"""Channels over real descriptors: pipes, sockets, files; slow peers, lost peers, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from interlingua.transports.channel import TooLong
from interlingua.transports.process import pipes
from interlingua.transports.process.pipes import PipeChannel


@contextlib.contextmanager
def closing(*fds: int) -> Iterator[None]:
    try:
        yield
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.asynccontextmanager
async def channel(max_line: int = 1 << 26) -> AsyncIterator[tuple[PipeChannel, int, int]]:
    """A channel over two pipes, and the peer's ends: what it reads, and where it writes. Blocking, for threads."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    made = PipeChannel(to_read, from_write, max_line=max_line)
    with closing(from_read, to_write):
        try:
            yield made, from_read, to_write
        finally:
            await made.close()


def read_all(fd: int) -> bytes:
    pieces = []
    while data := os.read(fd, 1 << 20):
        pieces.append(data)
    return b"".join(pieces)


def read_some(fd: int, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        got += os.read(fd, min(size - len(got), 1 << 20))
    return bytes(got)


async def within(seconds: float, awaitable: object) -> object:
    async with asyncio.timeout(seconds):
        return await awaitable  # type: ignore[misc]


async def all_of(made: PipeChannel) -> list[bytes]:
    got: list[bytes] = []
    while frames := await made.receive():
        got += frames
    return got


# -- reading --------------------------------------------------------------------------------------------------


async def test_lines_arrive_whole_and_in_order_however_they_were_written() -> None:
    async with channel() as (made, _, writes):
        wanted = [b'{"a":1}', "\u2028".encode() * 10, b"x" * 300_000, b"", b"end"]

        def write() -> None:
            data = b"".join(line + b"\n" for line in wanted)
            for start in range(0, len(data), 70_001):
                os.write(writes, data[start : start + 70_001])
            os.close(writes)

        thread = threading.Thread(target=write)
        thread.start()
        assert await within(20, all_of(made)) == wanted
        thread.join()


async def test_the_end_comes_after_all_lines_also_one_without_a_newline() -> None:
    async with channel() as (made, _, writes):
        os.write(writes, b"whole\nlast")
        os.close(writes)
        assert await within(20, all_of(made)) == [b"whole", b"last"]
        assert await within(20, made.receive()) == []


async def test_a_line_above_the_limit_is_told_as_such() -> None:
    async with channel(max_line=10) as (made, _, writes):
        os.write(writes, b"x" * 11 + b"\nok\n")
        os.close(writes)
        long, short = await within(20, all_of(made))  # type: ignore[misc]
        assert type(long) is TooLong
        assert short == b"ok"


async def test_what_nobody_takes_stays_in_the_pipe_and_makes_the_peer_wait() -> None:
    async with channel() as (made, _, writes):
        os.set_blocking(writes, False)
        written = os.write(writes, b"x\n" * 10)
        assert await within(20, made.receive()) == [b"x"] * 10  # and now nobody asks for more
        turns = 0
        with contextlib.suppress(BlockingIOError):
            while turns < 500:
                written += os.write(writes, b"y" * 4095 + b"\n")
                turns += 1
                await asyncio.sleep(0)
        assert turns < 500, "the channel reads on without end"
        assert written < 1_000_000


async def test_closing_ends_a_receive_that_waits() -> None:
    async with channel() as (made, _, _writes):
        waiting = asyncio.create_task(made.receive())
        await asyncio.sleep(0)
        await made.close()
        assert await within(20, waiting) == []


# -- writing --------------------------------------------------------------------------------------------------


async def test_frames_sent_in_one_turn_are_written_together() -> None:
    async with channel() as (made, reads, _):
        for number in range(100):
            made.send(b"%d" % number)
        await made._output.finish()
        assert os.read(reads, 1 << 16) == b"".join(b"%d\n" % number for number in range(100))


async def test_a_slow_reader_makes_senders_wait_and_gets_everything_in_order() -> None:
    async with channel() as (made, reads, _):
        frame = b"x" * 1000
        sent = 0
        while made._output.room.is_set():
            made.send(b"%06d" % sent + frame)
            sent += 1
            await asyncio.sleep(0)
        assert 1000 <= sent < 3000
        draining = asyncio.create_task(made.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        got = await asyncio.to_thread(read_some, reads, sent * 1007)
        await within(20, draining)
        assert got == b"".join(b"%06d" % number + frame + b"\n" for number in range(sent))


async def test_a_huge_frame_to_a_slow_reader_is_not_copied_at_every_write() -> None:
    async with channel() as (made, reads, _):
        frame = bytes(48_000_000)
        made.send(frame)
        began = time.process_time()
        got = await asyncio.to_thread(read_some, reads, len(frame) + 1)
        assert len(got) == len(frame) + 1
        assert got.endswith(b"\0\n")
        await within(20, made.drain())
        # 64 KiB at a time are 700 writes; with a copy of the rest at each they would move 17 GB
        assert time.process_time() - began < 2
        assert made._output._queued == 0


async def test_a_peer_that_is_gone_makes_nobody_wait() -> None:
    async with channel() as (made, reads, _):
        os.close(reads)
        for _ in range(3):
            for _ in range(20):
                made.send(b"x" * 100_000)
            await within(20, made.drain())
        made.send(b"more")
        await within(20, made.drain())


async def test_a_peer_that_goes_while_a_write_waits_makes_nobody_wait() -> None:
    async with channel() as (made, reads, _):
        made.send(b"x" * 5_000_000)
        draining = asyncio.create_task(made.drain())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not draining.done()
        os.close(reads)
        await within(20, draining)


# -- the end --------------------------------------------------------------------------------------------------


async def test_close_writes_what_is_queued() -> None:
    async with channel() as (made, reads, _):
        made.send(b"x" * 3_000_000)
        made.send(b"last")
        reading = asyncio.create_task(asyncio.to_thread(read_all, reads))
        await made.close()
        assert await within(20, reading) == b"x" * 3_000_000 + b"\nlast\n"


async def test_close_does_not_wait_for_ever_for_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_CLOSING", 0.05)
    async with channel() as (made, _, _writes):
        made.send(b"x" * 3_000_000)
        draining = asyncio.create_task(made.drain())
        await within(20, made.close())
        await within(20, draining)


async def test_closing_again_never_closes_a_descriptor_that_now_belongs_to_another() -> None:
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    made = PipeChannel(to_read, from_write)
    await made.close()
    others = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
    with closing(to_write, from_read, *others):
        assert set(others) == {to_read, from_write}, "the numbers are used again"
        await made.close()
        await made.close_writing()
        made.send(b"nobody hears this")
        for fd in others:
            os.fstat(fd)


async def test_the_writing_side_can_be_closed_alone() -> None:
    async with channel() as (made, reads, writes):
        made.send(b"last")
        await made.close_writing()
        assert await asyncio.to_thread(read_all, reads) == b"last\n"
        os.write(writes, b"still here\n")
        assert await within(20, made.receive()) == [b"still here"]


async def test_pipes_are_blocking_again_when_we_leave_them_to_others() -> None:
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    shared = os.dup(to_read), os.dup(from_write)
    with closing(to_write, from_read, *shared):
        made = PipeChannel(to_read, from_write)
        assert [os.get_blocking(fd) for fd in shared] == [False, False]
        await made.close()
        assert [os.get_blocking(fd) for fd in shared] == [True, True]


# -- other descriptors ----------------------------------------------------------------------------------------


async def test_a_socket_works_and_its_writing_side_can_be_closed() -> None:
    ours, peer = socket.socketpair()
    with peer:
        fd = ours.detach()
        made = PipeChannel(fd, os.dup(fd))
        peer.sendall(b"one\n")
        assert await within(20, made.receive()) == [b"one"]
        made.send(b"two")
        await made.close_writing()
        assert await asyncio.to_thread(read_all, peer.fileno()) == b"two\n"
        peer.sendall(b"three\n")
        assert await within(20, made.receive()) == [b"three"]
        await made.close()
        assert peer.recv(10) == b""


async def test_files_are_read_and_written_by_threads(tmp_path: Path) -> None:
    wanted = [b"%d" % number * 1000 for number in range(3000)]
    (tmp_path / "in").write_bytes(b"\n".join(wanted) + b"\n")
    reads = os.open(tmp_path / "in", os.O_RDONLY)
    writes = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    made = PipeChannel(reads, writes)
    while frames := await within(20, made.receive()):
        for frame in frames:  # type: ignore[attr-defined]
            made.send(frame)
        await within(20, made.drain())
    await made.close()
    await made.close()
    assert (tmp_path / "out").read_bytes() == b"\n".join(wanted) + b"\n"
    for thread in threading.enumerate():
        if thread.name.startswith("interlingua-std"):
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()


async def test_a_file_is_not_read_ahead_of_whoever_takes_its_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 100_000)
    reads = os.open(tmp_path / "in", os.O_RDONLY)
    place = os.dup(reads)
    with closing(place):
        made = PipeChannel(reads, os.open(os.devnull, os.O_WRONLY))
        assert await within(20, made.receive())
        for _ in range(50):
            await asyncio.sleep(0)
        assert os.lseek(place, 0, os.SEEK_CUR) <= 2 * pipes._READ
        await made.close()


async def test_a_file_that_cannot_be_written_makes_nobody_wait() -> None:
    try:
        full = os.open("/dev/full", os.O_WRONLY)
    except OSError:
        pytest.skip("there is no /dev/full here")
    made = PipeChannel(os.open(os.devnull, os.O_RDONLY), full)
    for _ in range(3):
        made.send(b"x" * 2_000_000)
        await within(20, made.drain())
    assert await within(20, made.receive()) == []
    await within(20, made.close())


async def test_a_terminal_works_and_stays_blocking() -> None:
    import pty
    import tty

    master, slave = pty.openpty()
    tty.setraw(slave)
    with closing(master, slave):
        made = PipeChannel(os.dup(slave), os.dup(slave))
        assert os.get_blocking(slave)
        os.write(master, b"hello\n")
        assert await within(20, made.receive()) == [b"hello"]
        made.send(b"world")
        assert await asyncio.to_thread(read_some, master, 6) == b"world\n"
        await made.close()


# -- our own stdin and stdout ---------------------------------------------------------------------------------

_DIVERTED = """
import os, subprocess, sys
from interlingua.transports.process.pipes import divert_stdio
print("printed before")
reads, writes = divert_stdio()
print("printed")
os.write(1, b"written to 1\\n")
subprocess.run(["sh", "-c", "echo by a child; cat; echo its input has ended"], check=True)
assert sys.stdin.read() == ""
data = os.read(reads, 100)
assert not os.get_inheritable(reads) and not os.get_inheritable(writes)
os.write(writes, b"got " + data)
"""


def test_after_diverting_only_the_channel_reaches_stdin_and_stdout() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", _DIVERTED]
    done = subprocess.run(command, input=b"input\n", capture_output=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"got input\n"
    for told in (b"printed before", b"printed\n", b"written to 1", b"by a child", b"its input has ended"):
        assert told in done.stderr


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_diverting_works_when_standard_descriptors_are_closed(closed: str, tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from interlingua.transports.process.pipes import divert_stdio\n"
        "reads, writes = divert_stdio()\n"
        "assert min(reads, writes) > 2\n"
        "os.write(1, b'x'); os.read(0, 1); os.write(writes, b''); os.read(reads, 1)\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, script]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (tmp_path / "done").exists(), done.stderr
