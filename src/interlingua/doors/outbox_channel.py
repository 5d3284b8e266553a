"""A channel to a client over HTTP: its messages come as requests, and ours wait in outboxes for its event streams."""

from __future__ import annotations

from collections.abc import Callable

from ..transports.http.event_outbox import Backlog, Outbox


class OutboxChannel:
    """The part of such a channel that does not choose the stream of a message."""

    def __init__(self, most_bytes: int, keep_bytes: int, overflow: Callable[[], None] | None) -> None:
        """`most_bytes` may wait for the client; then `overflow` is called. `keep_bytes` of the sent messages of each
        stream are kept for a reader that comes back."""
        self.backlog = Backlog(most_bytes, overflow)
        self._keep_bytes = keep_bytes

    async def receive(self) -> list[bytes]:
        return []  # requests hand their messages to the connection one by one

    def new_outbox(self, ids: str | None, *, kind: str | None = None, after: int = 0) -> Outbox:
        return Outbox(self._keep_bytes, self.backlog, ids=ids, kind=kind, after=after)
