"""Messages as lines: split on `\\n` alone, of any size up to a limit. Without I/O.

Not `str.splitlines`, which also splits on line separators that JSON allows inside strings.
"""

from __future__ import annotations

from .channel import TooLong

_HEAD = 64  # bytes that are kept of a line that is too long


class LineReader:
    """Bytes in, lines out. Of a line beyond the limit only its head is kept: a `TooLong` stands for it."""

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self._limit = limit
        self._partial = bytearray()  # of a line that has not ended; grows in place, or long lines would be quadratic
        self._skipping = False
        self._head = b""  # of the line that is skipped

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their newline (and without a carriage return before it)."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._skipping:
                lines[0] = TooLong(self._head)
                self._skipping = False
            elif self._partial:
                self._partial += lines[0]
                lines[0] = bytes(self._partial)
            self._partial = bytearray()
            limit = self._limit
            for place, line in enumerate(lines):
                if line.endswith(b"\r"):
                    lines[place] = line = line[:-1]
                if len(line) > limit:
                    lines[place] = TooLong(line[:_HEAD])
        if rest and not self._skipping:
            self._partial += rest
            if len(self._partial) > self._limit + 1:  # the one may be a carriage return
                self._skipping = True
                self._head = bytes(self._partial[:_HEAD])
                self._partial = bytearray()
        return lines
