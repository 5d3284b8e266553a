"""Defines the seam between a connection and the transport of its messages: frames in, frames out.

To speak over a new transport (a named pipe, a message queue, a browser's port), write a class with these four methods
and give it to `jsonrpc.connection.Connection`; the pipes, WebSockets and HTTP streams of this project are such classes,
and nothing above them knows which one it has. A channel promises:

- a frame is one whole message, and frames arrive in the order in which they were sent;
- `send` never waits and never raises for a peer that is gone; `drain` is where a slow peer makes its sender wait;
- `receive` gives an empty list exactly once the peer has gone, and nothing after that.

A channel whose peer reads several streams (one per session) may also have `drain_topic(topic)`, so that a stream that
is not read does not hold up the others. A channel that knows why its peer has gone may give that as `reason`.
"""

from __future__ import annotations

from typing import Protocol

KEPT = 4096
"""Bytes that are kept of both ends of a frame that is too long: most have their id there."""


class TooLong(bytes):
    """Stands for a frame that was longer than the limit, and of which only the first and last bytes were kept."""

    tail: bytes
    problem: str

    @classmethod
    def of(cls, frame: bytes, limit: int, *, tail: bytes | None = None) -> TooLong:
        """`frame` may be only the beginning of it, and `tail` its end."""
        short = cls(frame[:KEPT])
        short.tail = (frame if tail is None else tail)[-KEPT:]
        short.problem = f"line longer than {size(limit)}"
        return short


def size(count: int) -> str:
    """A number of bytes as people write it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and not count % unit:
            return f"{count // unit} {name}"
    return f"{count} bytes"


class Channel(Protocol):
    async def receive(self) -> list[bytes]:
        """The next frames, as many as there are; none once the peer has gone."""
        ...

    def send(self, frame: bytes) -> None:
        """Queues a frame."""
        ...

    async def drain(self) -> None:
        """Waits until the peer has taken enough of the queue."""
        ...

    async def close(self) -> None:
        """Sends what is queued, as far as the peer takes it soon, and closes the channel."""
        ...
