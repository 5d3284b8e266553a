"""Lines out of bytes, however the bytes are cut."""

from __future__ import annotations

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from interlingua.transports.channel import TooLong
from interlingua.transports.process.lines import LineReader


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_lines_are_split_on_newlines_alone() -> None:
    text = "a\u2028b\u2029c\x85d\x0b\x0c\x1c\r e"
    assert LineReader().feed(text.encode() + b"\n") == [text.encode()]


def test_a_carriage_return_before_the_newline_is_dropped_and_only_one() -> None:
    assert LineReader().feed(b"a\r\n\r\nb\r\r\n\n") == [b"a", b"", b"b\r", b""]


def test_half_a_line_waits_for_its_end() -> None:
    lines = LineReader()
    assert lines.feed(b"one\ntw") == [b"one"]
    assert lines.feed(b"o") == []
    assert lines.feed(b"\r") == []
    assert lines.feed(b"\nthree\n") == [b"two", b"three"]


def test_a_line_above_the_limit_is_told_and_the_next_is_whole() -> None:
    lines = LineReader(5)
    first, second, third = lines.feed(b"123456\n12345\r\n12345\n")
    assert type(first) is TooLong
    assert [second, third] == [b"12345", b"12345"]
    assert lines.feed(b"1234567") == []
    assert lines.feed(b"8" * 100) == []
    told, after = lines.feed(b"9\nok\n")
    assert type(told) is TooLong
    assert type(after) is bytes
    assert after == b"ok"


def test_of_a_line_above_the_limit_its_ends_are_kept_and_nothing_else() -> None:
    lines = LineReader(10_000)
    lines.feed(b"the head")
    for _ in range(100):
        lines.feed(b"x" * 1000)
    assert len(lines._partial) + len(lines._head) + len(lines._tail) <= 18_192
    [long] = lines.feed(b" the end\n")
    assert isinstance(long, TooLong)
    assert (long[:9], long.tail[-9:]) == (b"the headx", b"x the end")
    assert long.problem == "line longer than 10000 bytes"


def test_a_last_line_needs_no_newline() -> None:
    lines = LineReader(5)
    assert lines.feed(b"one\ntwo") == [b"one"]
    assert lines.end() == [b"two"]
    assert lines.end() == []
    lines.feed(b"123456789")
    [long] = lines.end()
    assert isinstance(long, TooLong)
    assert LineReader().end() == []


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=10), st.lists(st.integers(0)))
def test_however_bytes_arrive_the_same_lines_come_out(wanted: list[bytes], places: list[int]) -> None:
    limit = 8
    lines = LineReader(limit)
    got = [line for piece in cut(b"".join(line + b"\n" for line in wanted), places) for line in lines.feed(piece)]
    without = [line.removesuffix(b"\r") for line in wanted]
    assert len(got) == len(wanted)
    for line, plain in zip(got, without, strict=True):
        if len(plain) > limit:
            assert type(line) is TooLong
        else:
            assert (type(line), line) == (bytes, plain)


def test_a_long_line_in_many_small_pieces_takes_time_in_proportion_to_its_length() -> None:
    def seconds(pieces: int) -> float:
        lines = LineReader()
        began = time.process_time()
        for _ in range(pieces):
            lines.feed(b"x" * 64)
        assert len(lines.feed(b"\n")[0]) == pieces * 64
        return time.process_time() - began

    seconds(1000)
    assert seconds(160_000) < 40 * seconds(16_000)  # ten times the work; quadratic would be a hundred
