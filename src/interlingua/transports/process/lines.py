"""Splits a stream into messages, one per line: at `\\n` alone, of any size up to a limit. Without I/O.

Not `str.splitlines`, which also splits on line separators that JSON allows inside strings.
"""

from __future__ import annotations

from ..channel import KEPT, TooLong


class LineReader:
    """Bytes in, lines out. Of a line beyond the limit only its ends are kept: a `TooLong` stands for it."""

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self._limit = limit
        self._partial = bytearray()  # of a line that has not ended; grows in place, or long lines would be quadratic
        self._skipping = False
        self._head = b""  # the first bytes of the skipped line
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their newline (and without a carriage return before it)."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._skipping:
                lines[0] = self._skipped(lines[0])
            elif self._partial:
                self._partial += lines[0]
                lines[0] = bytes(self._partial)
            self._partial = bytearray()
            limit = self._limit
            for place, line in enumerate(lines):
                if type(line) is TooLong:
                    continue
                if line.endswith(b"\r"):
                    lines[place] = line = line[:-1]
                if len(line) > limit:
                    lines[place] = TooLong.of(line, limit)
        if rest and self._skipping:
            self._tail = (self._tail + rest[-KEPT:])[-KEPT:]
        elif rest:
            self._partial += rest
            if len(self._partial) > self._limit + 1:  # the one may be a carriage return
                self._skipping = True
                self._head, self._tail = bytes(self._partial[:KEPT]), bytes(self._partial[-KEPT:])
                self._partial = bytearray()
        return lines

    def end(self) -> list[bytes]:
        """Returns the bytes after the last newline when nothing more comes: a line without a newline, or one that was
        cut."""
        rest = self._skipped(b"") if self._skipping else bytes(self._partial)
        self._partial = bytearray()
        return [rest] if rest.strip() else []

    def _skipped(self, rest: bytes) -> TooLong:
        self._skipping = False
        return TooLong.of(self._head, self._limit, tail=self._tail + rest)
