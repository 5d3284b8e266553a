"""The streams of one client over HTTP: a message goes into the answer to the POST that it belongs to, or to the stream
that a GET has opened.

The answer to a POST is plain JSON where it comes soon and is the first message, and an event stream otherwise. Each
stream has an outbox of its own: a stream that is not read delays only its own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ....doors.outbox_channel import OutboxChannel
from ....doors.rpc_errors import Refused
from ....transports.http.event_outbox import Outbox
from ....transports.jsonrpc.core import Id
from ..config import DoorSettings


class _Named(msgspec.Struct):
    request: Any = msgspec.field(name="requestId", default=None)


class _Sent(msgspec.Struct):
    """The members of our own message that decide its stream."""

    id: Any = None
    method: str | None = None
    params: _Named | None = None


_sent = msgspec.json.Decoder(_Sent | list[_Sent]).decode

_CHANGED = (
    b'{"jsonrpc":"2.0","method":"notifications/agents/list_changed"}',
    b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
)
"""A second one is not news to a client that has not read the first, and many clients never read any."""

_LONG = 256 * 1024
"""The bytes of an ended stream without a reader, beyond which its messages are not held: where they come from the log
of a run, they are made again for a client that resumes the stream."""

_REQUEST = b'{"jsonrpc":"2.0","id":'  # how our own requests begin; a notification has no id


class Exchange:
    """A POST with requests in it, and the messages that answer it."""

    def __init__(self, name: str, ids: list[Id], make: Callable[[str], Outbox]) -> None:
        self.name = name
        self.ids = ids
        self.answer: bytes | None = None  # where it is all that was sent
        self.streams = False
        self.over = False
        self.ours: set[Id] = set()  # our own requests that were sent here
        self.asked: list[dict[str, Any]] = []  # the requests, where it is a stream
        self.mark = ""  # the last event of the run's log that was sent here
        self.noted = False  # in the store, so that another process can resume it
        self.emptied = False  # its messages are made again for a client that resumes it
        self._make = make
        self._outbox: Outbox | None = None  # most answers come alone, and need none
        self._news = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def outbox(self) -> Outbox:
        if self._outbox is None:
            self._outbox = self._make(self.name)
            if self.over:
                self._outbox.finish()
        return self._outbox

    async def alone(self, patience: float | None) -> bytes | None:
        """Returns the answer, where it comes soon and is the first message. Otherwise returns None: the exchange is a
        stream now."""
        if not self._news:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = None if patience is None else loop.call_later(patience, self._wake)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        if self.answer is None:
            self.streams = True
        return self.answer

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _wake_waiter(self) -> None:
        self._news = True
        self._wake()

    def put(self, frame: bytes) -> None:
        self.streams = True
        self.outbox.put(frame, mark=self.mark)
        self._wake_waiter()

    def end(self, answer: bytes | None) -> None:
        """Ends the exchange with its answer as the last message. None means that there will be no answer."""
        if answer is not None:
            if self.streams:
                self.outbox.put(answer, mark=self.mark)
            else:
                self.answer = answer
        self.over = True
        if self._outbox is not None:
            self._outbox.finish()
        self._wake_waiter()

    async def drain(self) -> None:
        if self._outbox is not None:
            await self._outbox.drain()

    @property
    def kept(self) -> int:
        return 0 if self._outbox is None else self._outbox.kept

    @property
    def is_read(self) -> bool:
        return self._outbox is not None and self._outbox.reader is not None

    @property
    def is_long(self) -> bool:
        return self._outbox is not None and self._outbox.holds > _LONG

    def discard(self) -> None:
        self.emptied = True
        if self._outbox is not None:
            self._outbox.discard()


class PostsChannel(OutboxChannel):
    """The channel of a client that sends POSTs."""

    def __init__(
        self,
        settings: DoorSettings,
        *,
        resumable: bool = True,
        times: int = 0,
        overflow: Callable[[], None] | None = None,
    ) -> None:
        """`times` counts the processes that had the session before this one. It is part of stream names, so that a
        process knows its own. `overflow` is called when the client reads too slowly."""
        super().__init__(settings.max_buffered_bytes, settings.keep_bytes, overflow)
        self._settings = settings
        self.dropped: Callable[[Exchange], None] | None = None  # called for an exchange that is no longer kept
        self.closed = False
        self._resumable = resumable
        self._asked: dict[Id, Exchange] = {}  # by the requests that have no answer
        self._kept: dict[str, Exchange] = {}  # streams that can be resumed, oldest first
        self._number = 0
        self._before = f"{times}." if times else ""
        self._whole: Outbox | None = None

    @property
    def whole(self) -> Outbox:
        """The outbox for messages that belong to no request. Most clients that send a single request never get any."""
        if self._whole is None:
            self._whole = self._outbox(f"{self._before}0")
            if self.closed:
                self._whole.finish()
        return self._whole

    def _outbox(self, name: str, after: int = 0) -> Outbox:
        return self.new_outbox(f"{name}-" if self._resumable else None, after=after)

    # -- the channel --------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        message = _sent(frame)
        if isinstance(message, list):  # the answers to one POST
            self._answer(self._asked.get(message[0].id), frame)
        elif message.method is None:
            self._answer(self._asked.get(message.id), frame)
        else:
            self._put(self._asking(message.params.request if message.params is not None else None), frame)

    def send_about(self, frame: bytes, about: Id) -> None:
        exchange = self._asked.get(about)
        if exchange is not None and frame.startswith(_REQUEST):
            request = _sent(frame)
            assert isinstance(request, _Sent)
            exchange.ours.add(request.id)
        self._put(exchange, frame)

    def mark(self, about: Id, seq: int) -> None:
        """Marks all later messages about a request as belonging to this event of its run, or to later ones."""
        exchange = self._asked.get(about)
        if exchange is not None and len(exchange.ids) == 1:  # of several runs, one number says nothing
            exchange.mark = str(seq)

    def _asking(self, request: Any) -> Exchange | None:
        """Returns the exchange in which the server sent a request. Its cancellation goes there too, because on another
        stream it could arrive first."""
        if request is None:
            return None
        return next((exchange for exchange in self._asked.values() if request in exchange.ours), None)

    def _put(self, exchange: Exchange | None, frame: bytes) -> None:
        if exchange is None:
            self.whole.put(frame, once=frame in _CHANGED)
        else:
            exchange.put(frame)

    def _answer(self, exchange: Exchange | None, frame: bytes) -> None:
        if exchange is None:
            return
        for id_ in exchange.ids:
            self._asked.pop(id_, None)
        exchange.end(frame)
        self._drop_old()

    def drop_long(self) -> None:
        """Drops the messages of long streams that have ended and that nobody reads. The streams stay."""
        for exchange in self._kept.values():
            if exchange.over and exchange.noted and exchange.is_long and not exchange.is_read:
                exchange.discard()

    def _drop_old(self) -> None:
        self.drop_long()
        if len(self._kept) <= self._settings.keep_streams:
            return
        ended = [exchange for exchange in self._kept.values() if exchange.over and not exchange.is_read]
        size = sum([exchange.kept for exchange in ended])
        for place, exchange in enumerate(ended):
            if len(ended) - place <= self._settings.keep_streams and size <= self._settings.keep_bytes:
                break
            size -= exchange.kept
            del self._kept[exchange.name]
            exchange.discard()
            if self.dropped is not None:
                self.dropped(exchange)

    async def drain(self) -> None:
        """Does not wait: answers are held in streams of their own, so the channel can go on reading requests."""

    async def drain_topic(self, topic: Id) -> None:
        exchange = self._asked.get(topic)
        if exchange is not None:
            await exchange.drain()

    async def close(self) -> None:
        self.closed = True
        if self._whole is not None:
            self._whole.finish()
        for exchange in set(self._asked.values()):
            exchange.end(None)
        self._asked.clear()

    # -- POSTs and streams --------------------------------------------------------------------------------

    def begin(self, ids: list[Id]) -> Exchange:
        """Begins the exchange of a POST with these requests."""
        self._number += 1
        return self._begin(f"{self._before}{self._number}", ids, self._outbox)

    def _begin(self, name: str, ids: list[Id], make: Callable[[str], Outbox]) -> Exchange:
        if len(set(ids)) < len(ids) or any(id_ in self._asked for id_ in ids):
            raise Refused(400, "a request with this id is open already; every request has an id of its own")
        exchange = Exchange(name, ids, make)
        self._asked.update(dict.fromkeys(ids, exchange))
        return exchange

    def begin_again(self, name: str, ids: list[Id], after: int) -> Exchange:
        """Begins a stream again whose messages are not here, after the last of them that arrived."""
        exchange = self._begin(name, ids, lambda name: self._outbox(name, after))
        exchange.streams = exchange.noted = True
        self.keep(exchange)
        return exchange

    def asking(self, id_: Any) -> Exchange | None:
        """Returns the exchange of a request that has no answer yet."""
        return self._asked.get(id_) if type(id_) in (int, str) else None

    def keep(self, exchange: Exchange) -> None:
        """Keeps an exchange that is a stream now, so that a client can resume it."""
        self._kept.pop(exchange.name, None)
        self._kept[exchange.name] = exchange
        self._drop_old()

    def find(self, event: str) -> tuple[Outbox, str]:
        """Returns the stream of an event, and the event's number in it."""
        name, _, number = event.partition("-")
        if name == f"{self._before}0":
            return self.whole, number
        exchange = self._kept.get(name)
        if exchange is None:
            raise Refused(400, f"Last-Event-ID {event!r}: that stream is no longer here")
        return exchange.outbox, number

    def holds(self, name: str) -> bool:
        """Tells if the messages of a stream are here."""
        exchange = self._kept.get(name)
        return exchange is not None and not exchange.emptied

    def knows(self, name: str) -> bool:
        """Tells if a stream belongs to this process."""
        return name in self._kept or name.rpartition(".")[0] == self._before.removesuffix(".")

    def catch_up(self) -> None:
        """Tells the client that the lists changed: it read another process's stream, and may have missed that
        notification."""
        for frame in _CHANGED:
            self.whole.put(frame, once=True)


class OneStream(OutboxChannel):
    """The channel of a client that reads everything from one stream."""

    def __init__(self, settings: DoorSettings, overflow: Callable[[], None]) -> None:
        super().__init__(settings.max_buffered_bytes, 0, overflow)
        self.outbox = self.new_outbox(None, kind="message")

    def send(self, frame: bytes) -> None:
        self.outbox.put(frame, once=frame in _CHANGED)

    async def drain(self) -> None:
        await self.outbox.drain()

    async def close(self) -> None:
        self.outbox.finish()
