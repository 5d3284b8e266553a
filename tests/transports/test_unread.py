"""Printing to a pipe that perhaps nobody reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from interlingua.transports.process.nonblocking_stderr import printing_to


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends; a test closes the one whose end it is about, by `closed`."""
    ends = os.pipe()
    _open.update(ends)
    yield ends
    for fd in list(_open):
        closed(fd)


_open: set[int] = set()


def closed(fd: int) -> None:
    _open.remove(fd)
    os.close(fd)


def everything(reads: int, writes: int) -> bytes:
    closed(writes)
    with os.fdopen(os.dup(reads), "rb") as file:
        return file.read()


def test_lines_come_at_once_and_whole(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    stream = printing_to(writes)
    print("ünï", file=stream)
    assert os.read(reads, 100) == "ünï\n".encode()
    long = "x" * 20_000
    print(long, file=stream)
    assert everything(reads, writes) == long.encode() + b"\n"
    assert not stream.isatty()


def test_what_a_pipe_has_no_room_for_is_dropped_and_told_when_there_is_room_again(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    stream = printing_to(writes)
    for _ in range(200):
        print("y" * 1000, file=stream)  # more than it holds: must not wait for ever
    first = os.read(reads, 1 << 20)
    assert set(first) <= set(b"y\n")
    print("read again", file=stream)
    rest = everything(reads, writes)
    dropped = 200 * 1001 - len(first)
    assert dropped > 0
    assert rest == f"\n[{dropped} bytes are missing here: nobody read them]\nread again\n".encode()


def test_a_slow_reader_misses_nothing(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    got = bytearray()

    def read() -> None:
        while piece := os.read(reads, 4096):
            got.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    stream = printing_to(writes)
    for number in range(2000):
        print(f"{number} {'z' * 200}", file=stream)
    closed(writes)
    reader.join(20)
    assert [int(line.split()[0]) for line in got.splitlines()] == list(range(2000))


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    closed(reads)
    print("to nobody", file=printing_to(writes))
