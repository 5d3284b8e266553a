"""Keeps numbered messages for the reader of an event stream: one reader at a time, and the last few messages for a
replay.

A stream may open late, drop, and open again: messages wait here until a reader takes them. A reader that sends
`Last-Event-ID` gets the last messages after that number again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .sse import event_of, id_line

_HIGH, _LOW = 1024 * 1024, 256 * 1024  # bytes that wait at which senders wait too, and at which they go on
_CHUNK = 256 * 1024


class Missed(Exception):
    """Messages after the given id are no longer there."""


class Backlog:
    """Bytes that wait in all outboxes of one peer."""

    def __init__(self, most: int | None = None, overflow: Callable[[], None] | None = None) -> None:
        """`overflow` is called once, when more than `most` bytes wait."""
        self.bytes = 0
        self._most = most
        self._overflow = overflow

    def add(self, size: int) -> None:
        self.bytes += size
        if self._overflow is not None and self._most is not None and self.bytes > self._most:
            overflow, self._overflow = self._overflow, None
            overflow()


class Reader:
    """The current reader of an outbox."""

    def __init__(self, after: int) -> None:
        self.after = after  # the number of the message before the first that it gets
        self.news = asyncio.Event()
        self.ended = False

    def end(self) -> None:
        self.ended = True
        self.news.set()


class Outbox:
    def __init__(
        self, keep: int, backlog: Backlog, *, ids: str | None = "", kind: str | None = None, after: int = 0
    ) -> None:
        """`ids` stands before the number of each message, where one client has several streams; None: they have no
        ids. `kind` is the name of every event. `after`: how many messages of it others have sent.

        A message may have a mark, which stands behind its number: what the reader that has it has seen of something
        else, for those who go on without these messages."""
        self._kind = kind
        self._ids = ids
        self.reader: Reader | None = None
        self.used = False  # a reader has read from it
        self.waiting = 0  # bytes
        self._waiting: deque[tuple[int, str, bytes]] = deque()
        self._taken: deque[tuple[int, str, bytes]] = deque()  # kept for a reader that comes back
        self._mark = ""  # the mark of the message that was taken last
        self._taken_bytes = 0
        self._once: dict[bytes, int] = {}  # the newest number of messages that are put once
        self._keep = keep
        self._backlog = backlog
        self._last = after  # the number of the newest
        self._finished = False
        self._room = asyncio.Event()
        self._room.set()

    # -- writing ------------------------------------------------------------------------------------------

    def put(self, frame: bytes, *, once: bool = False, mark: str = "") -> None:
        """Adds a message. `once`: not while the same message waits already."""
        if self._finished or (once and self._once.get(frame, 0) > self._taken_to):
            return
        self._last += 1
        if once:
            self._once[frame] = self._last
        event = event_of(frame, id=self._id(self._last, mark), event=self._kind)
        self._waiting.append((self._last, mark, event))
        self._wait(len(event))
        if self.waiting > _HIGH:
            self._room.clear()
        if self.reader is not None:
            self.reader.news.set()

    def place(self, number: int) -> bytes:
        """Returns the line with the id of the message after which a reader begins. A reader that returns sends it."""
        id_ = self._id(number, self._mark)
        return b"" if id_ is None else id_line(id_)

    def _id(self, number: int, mark: str) -> str | None:
        if self._ids is None:
            return None
        return f"{self._ids}{number}.{mark}" if mark else f"{self._ids}{number}"

    def _wait(self, size: int) -> None:
        self.waiting += size
        self._backlog.add(size)

    async def drain(self) -> None:
        await self._room.wait()

    def finish(self) -> None:
        """Closes the outbox: readers get the waiting messages, and then the end."""
        self._finished = True
        self._room.set()
        if self.reader is not None:
            self.reader.news.set()

    # -- reading ------------------------------------------------------------------------------------------

    def open(self, after: str | None = None) -> Reader:
        """Begin to read, after the message with that id or, without one, where the last reader came to.

        The newest reader has the stream: who opens it again has often lost the old connection long before the server
        can know. (TypeScript SDK 2.4.0 refuses a second reader; two that share a stream, as in the Python SDK 0.12.1,
        would each get half of the messages.)
        """
        if after is not None:
            self._rewind(after)
        if self.reader is not None:
            self.reader.end()
        self.used = True
        self.reader = Reader(self._taken_to)
        return self.reader

    def _rewind(self, after: str) -> None:
        after, _, mark = after.partition(".")
        taken = self._taken_to
        oldest = self._taken[0][0] if self._taken else taken + 1
        if not after.isdecimal() or len(after) > 15 or not oldest - 1 <= int(after) <= taken:
            raise Missed(after)
        while self._taken and self._taken[-1][0] > int(after):
            number, last, event = self._taken.pop()
            self._taken_bytes -= len(event)
            self._waiting.appendleft((number, last, event))
            self._wait(len(event))
        self._mark = self._taken[-1][1] if self._taken else mark

    @property
    def kept(self) -> int:
        """Bytes of messages that were taken, and can be taken again."""
        return self._taken_bytes

    @property
    def holds(self) -> int:
        """Bytes of all messages that are here."""
        return self.waiting + self._taken_bytes

    @property
    def _taken_to(self) -> int:
        return self._waiting[0][0] - 1 if self._waiting else self._last

    def take(self) -> bytes:
        """The next events, as one piece of the stream. They are the reader's now, whether or not they arrive."""
        events = []
        size = 0
        while self._waiting and size < _CHUNK:
            number, self._mark, event = self._waiting.popleft()
            events.append(event)
            size += len(event)
            self._taken.append((number, self._mark, event))
        self._taken_bytes += size
        while self._taken and self._taken_bytes > self._keep:
            self._taken_bytes -= len(self._taken.popleft()[2])
        self._wait(-size)
        if self.waiting <= _LOW:
            self._room.set()
        return b"".join(events)

    def left(self, reader: Reader) -> None:
        if self.reader is reader:
            self.reader = None

    def discard(self) -> None:
        """Drops all messages, those kept for a replay included, and closes the outbox: no reader will come for them."""
        self._waiting.clear()
        self._wait(-self.waiting)
        self._taken.clear()
        self._taken_bytes = 0
        self.finish()

    @property
    def ended(self) -> bool:
        return self._finished and not self._waiting
