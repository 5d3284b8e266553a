"""Answers that wait for nothing but the store, without a task, a request object or an ASGI message.

Most requests of most servers are small, come in one piece, and are over when what they ask for is committed. A door may
offer a function for such a path (`Door.direct`): given the head and the body it begins the work and gives a `Soon`, or
nothing, and then the request goes the usual way, through ASGI, as if nobody had looked at it. The same happens where
the answer is not there for a moment, or the client leaves: the usual way finds what was begun in
`scope["interlingua.begun"]`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..protocols import BEGUN, Soon
from ..store.base import Outrun
from .onewrite import OneWriteProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Table = dict[bytes, Callable[[list[tuple[bytes, bytes]], bytes], Soon | None]]

_OK = b"HTTP/1.1 200 OK\r\n"
_A_MOMENT = 0.1  # seconds in which a run that is not over with its first commit may still be; a call of another server


class _Waiting:
    """Stands where uvicorn has the cycle of a request, until a direct answer is out."""

    __slots__ = ("disconnected", "keep_alive", "news", "response_complete", "timer")

    def __init__(self) -> None:
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self.news: asyncio.Future[None] | None = None  # what is waited for beyond the first commit
        self.timer: asyncio.TimerHandle | None = None

    @property
    def message_event(self) -> _Waiting:
        return self

    def set(self) -> None:
        """The client left. (Nobody waits for more of the request: all of it is here.)"""
        self.give_up()

    def give_up(self) -> None:
        if self.news is not None:
            self.news.cancel()


class _Begun(RequestResponseCycle):
    """A request whose work has begun: it is read even when its client has left meanwhile, because only who has read it
    can end that work."""

    _read = False

    async def receive(self) -> Any:
        if self._read:
            return await super().receive()
        self._read = True
        body, self.body = bytes(self.body), self.body[:0]
        return {"type": "http.request", "body": body, "more_body": False}


class DirectProtocol(OneWriteProtocol):
    _taken: Any = None  # what may answer the request whose body comes now
    _body = b""
    _head: tuple[Any, bytes] = (None, b"")  # uvicorn's default headers, and how they are written

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._direct: Table = getattr(self.config.app, "direct", {})

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._taken is not None:  # it comes in pieces: that takes a clock, which the usual way has
            self._taken = None
            super().on_headers_complete()
            if self._body:
                super().on_body(self._body)

    def on_headers_complete(self) -> None:
        before = cast("RequestResponseCycle | None", self.cycle)
        if self.url in self._direct and (before is None or before.response_complete):
            parser = self.parser
            if parser.get_method() == b"POST" and parser.should_keep_alive() and not self.expect_100_continue:
                self._taken, self._body = self._direct[self.url], b""
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._taken is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        direct, self._taken = self._taken, None
        if direct is None:
            super().on_message_complete()
            return
        soon = direct(self.headers, self._body)
        if soon is None:
            super().on_headers_complete()
            super().on_body(self._body)
            super().on_message_complete()
            return
        self.cycle = waiting = _Waiting()  # type: ignore[assignment]
        soon.committed.add_done_callback(partial(self._committed, waiting, soon, self.scope, self.url, self._body))

    def _committed(
        self, waiting: _Waiting, soon: Soon, scope: Any, url: bytes, body: bytes, done: asyncio.Future[None]
    ) -> None:
        error = None if done.cancelled() else done.exception()
        answer = soon.answer() if error is None and not done.cancelled() else None
        if answer is None and error is None and not waiting.disconnected and not done.cancelled():
            waiting.news = soon.again()
            if waiting.news is not None:
                if waiting.timer is None:
                    waiting.timer = self.loop.call_later(_A_MOMENT, waiting.give_up)
                waiting.news.add_done_callback(partial(self._committed, waiting, soon, scope, url, body))
                return
        waiting.news = None
        if waiting.timer is not None:
            waiting.timer.cancel()
        if answer is None:
            # What another process has begun in the same moment is found in the usual way, as if nobody had begun here.
            self._usual(waiting, None if isinstance(error, Outrun) else soon.begun, scope, url, body)
            return
        waiting.response_complete = True
        if waiting.disconnected:
            return
        headers = self.server_state.default_headers
        if self._head[0] is not headers:
            self._head = (headers, b"".join([b"%s: %s\r\n" % header for header in headers]))
        self._plain.write(b"%s%scontent-length: %d\r\n%s\r\n%s" % (_OK, self._head[1], len(answer), soon.head, answer))
        if not waiting.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _usual(self, waiting: _Waiting, begun: Any, scope: Any, url: bytes, body: bytes) -> None:
        """The work goes on, or could not be committed: ASGI answers, with what was begun."""
        path = url.decode("ascii")
        scope.update({"method": "POST", "path": path, "raw_path": url, "query_string": b"", BEGUN: begun})
        cycle = _Begun(
            scope=scope, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=self.access_log,
            default_headers=self.server_state.default_headers, message_event=asyncio.Event(),
            expect_100_continue=False, keep_alive=waiting.keep_alive, on_response=self.on_response_complete,
        )  # fmt: skip
        cycle.body += body
        cycle.more_body = False
        cycle.disconnected = waiting.disconnected
        if self.cycle is waiting:  # type: ignore[comparison-overlap]  # else the next request is here already, and waits for this one
            self.cycle = cycle
        self._start_asgi_task(cycle, self.app)
