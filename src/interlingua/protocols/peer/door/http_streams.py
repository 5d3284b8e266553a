"""The events of a feed as they happen: server-sent events, or the frames of a WebSocket.

A reader gets more only after it has taken the earlier events, so one that stops reading delays no other, and little is
kept for it: its unread events are in the journal. An event is encoded once for all readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from ....doors.streams import EventStream
from ....model.errors import InvalidRequest
from ....transports.http.body import header
from ....transports.websocket import ServerSocket, WebSocketChannel
from ..node.node_store import Feed, Heard
from ..node.task_record import Task
from ..translate import task_states
from ..translate.errors import BUSY, Refusal
from ..wire.frames import now_z

if TYPE_CHECKING:
    from ..node.node import Node
    from ..node.tasks import Surface

_PIECE = 256 * 1024  # bytes that are written at once
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "x-accel-buffering": "no",  # nginx would hold events back
}
# Some clients read in blocks of 256 bytes, and would see nothing of a quiet stream.
_FILL = b": " + b"." * 600 + b"\n"
_KEEP_ALIVE = b": keepalive\n"
_SHARE = 10  # one caller of the door has at most this part of all streams


L = TypeVar("L", bound="Listener")


class StreamSettings(msgspec.Struct, kw_only=True, frozen=True):
    look: float = 5.0
    """Seconds after which a reader looks for news by itself: another process may have told something."""
    keep_alive: float = 15.0
    stall: float = 60.0
    """Seconds after which a reader that takes nothing is given up."""


def place(request: Request | WebSocket) -> int | None:
    """Returns the cursor of a reader. The one that a browser remembers is newer than the one in the address."""
    given = _header(request) or request.query_params.get("since") or request.query_params.get("since_seq")
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > 15:
        raise InvalidRequest(f"/since is the seq of an event, got {given[:80]!r}", path="/since")
    return int(given)


def _header(request: Request | WebSocket) -> str | None:
    if isinstance(request, Request):
        return header(request, b"last-event-id")
    return request.headers.get("last-event-id")


class Streams:
    """All readers of one node through one app."""

    def __init__(self, node: Node, settings: StreamSettings | None = None) -> None:
        self._node = node
        self.settings = settings or StreamSettings()
        self.open: dict[Listener, str] = {}
        self._closed = False

    def check_room(self, surface: Surface) -> None:
        limit = self._node.settings.max_streams
        if self._closed:
            raise Refusal(BUSY, 503, "the node stops")
        if len(self.open) >= limit:
            raise Refusal(BUSY, 503, f"{limit} streams are open already")
        share = max(1, limit // _SHARE)
        if surface.scope and sum(scope == surface.scope for scope in self.open.values()) >= share:
            raise Refusal(BUSY, 429, f"you have {share} streams open already")

    def feed(self, surface: Surface, task: Task | None = None) -> Feed:
        caller = surface.feed
        if task is not None:
            caller = task.scope.removeprefix("caller:") if task.scope.startswith("caller:") else ""
        return self._node.journal.feed(caller)

    async def listener(self, kind: type[L], surface: Surface, since: int | None, task: Task | None = None) -> L:
        """Returns a listener. A task is shown from its beginning, everything else from now on, unless the reader has a
        cursor."""
        self.check_room(surface)
        feed = self.feed(surface, task)
        head = await feed.head()
        beginning = head if task is None else 0
        after = beginning if since is None else min(since, head)  # a cursor cannot lie in the future
        return kind(self, feed, after, surface, task)

    async def task_now(self, task: Task) -> Task:
        return await self._node.journal.task(task.scope, task.id) or task

    async def close(self) -> None:
        """Ends all streams when the server stops."""
        self._closed = True
        for listener in list(self.open):
            listener.end()


class Listener:
    """One reader. Its subclasses decide what it is sent, and how."""

    def __init__(self, streams: Streams, feed: Feed, after: int, surface: Surface, task: Task | None) -> None:
        self._streams = streams
        self._settings = streams.settings
        self._feed = feed
        self._began = self._after = after
        self._told = False
        self._surface = surface
        self._task = task
        self._over = False
        self._due = False  # nothing was said for a while
        self._news: asyncio.Future[None] | None = None
        self._writing: float | None = None  # since when
        self._said = 0.0
        self._running: asyncio.Task[Any] | None = None
        self._gave_up = False

    async def greet(self) -> None: ...

    async def put(self, events: list[Heard]) -> None: ...

    async def keep_alive(self) -> None: ...

    def end(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def run(self) -> bool:
        """Serves until the reader goes, or there is nothing more to come. Returns False where the reader took nothing
        any more."""
        loop = asyncio.get_running_loop()
        self._running, self._said = asyncio.current_task(), loop.time()
        self._streams.open[self] = self._surface.scope
        timer = loop.call_later(self._settings.look, self._tick)
        self._timer = timer
        try:
            await self.greet()
            await self._follow()
        except asyncio.CancelledError:
            if not self._gave_up or self._running is None or self._running.uncancel():
                raise
            return False
        finally:
            self._timer.cancel()
            self._streams.open.pop(self, None)
            if self._news is not None:
                self._feed.forget(self._news)
        return True

    def _tick(self) -> None:
        """Runs one clock for looking, keeping alive, and giving up: a timer per event would cost more than the
        event."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.look, self._tick)
        if self._writing is not None:
            if loop.time() - self._writing > self._settings.stall and self._running is not None:
                self._gave_up = True
                self._running.cancel()
            return
        self._due = loop.time() - self._said >= self._settings.keep_alive
        self._wake()

    async def _follow(self) -> None:
        topic = self._task.id if self._task is not None else None
        looked = False
        while not self._over:
            self._news = news = self._feed.news()
            events, self._after = await self._feed.read(self._after, topic)
            if events:
                self._feed.forget(news)
                await self._tell(events)
                continue
            if self._task is not None and (not looked or self._due):
                looked = True
                if await self._has_ended(self._task):
                    return
            await news
            if self._due and not self._over:
                self._due = False
                self._writing = asyncio.get_running_loop().time()
                await self.keep_alive()
                self._written()

    async def _tell(self, events: list[Heard]) -> None:
        self._told = True
        self._writing = asyncio.get_running_loop().time()
        if self._task is not None:
            for index, event in enumerate(events):
                if _ends(event):
                    await self.put(events[: index + 1])
                    self._over = True
                    return
        await self.put(events)
        self._written()

    def _written(self) -> None:
        self._said, self._writing = asyncio.get_running_loop().time(), None

    async def _has_ended(self, task: Task) -> bool:
        """Tells if a task has no more events. Its last event is in the store together with the end of the task, at the
        latest."""
        task = await self._streams.task_now(task)
        if task.status not in task_states.TERMINAL:
            return False
        left = await self._feed.stored(self._after, task.id)
        if left:
            self._after = left[-1].seq
            await self._tell(left)
            return self._over
        if not self._told and not await self._saw_the_end(task):
            # It ended so long ago that its events are gone, but the task still holds its end.
            await self.put([await self._last_word(task)])
        return True

    async def _saw_the_end(self, task: Task) -> bool:
        """Tells if the end of the task lies before the reader's cursor."""
        after = 0
        while after < self._began and (page := await self._feed.stored(after, task.id)):
            if any(_ends(event) for event in page if event.seq <= self._began):
                return True
            after = page[-1].seq
        return False

    async def _last_word(self, task: Task) -> Heard:
        seq = await self._feed.head()
        told: dict[str, Any] = {"type": "status", "ts": task.updated_at, "task_id": task.id}
        told["state"] = task.status
        if task.error is not None:
            told["error"] = task.error
        return Heard(seq, "status", task.id, msgspec.json.encode(told))


def _ends(event: Heard) -> bool:
    """Tells if an event is the last of its task."""
    return event.kind == "status" and msgspec.json.decode(event.data)["state"] in task_states.TERMINAL


class FeedStream(Listener, EventStream):
    """A stream of server-sent events."""

    def __init__(self, streams: Streams, feed: Feed, after: int, surface: Surface, task: Task | None) -> None:
        Listener.__init__(self, streams, feed, after, surface, task)
        EventStream.__init__(self, stall=streams.settings.stall, headers=_HEADERS)

    async def tell(self) -> bool:
        return await self.run()

    def left(self) -> None:
        self.end()

    async def greet(self) -> None:
        await self.write(_KEEP_ALIVE + ready(self._after) + _FILL)

    async def put(self, events: list[Heard]) -> None:
        if len(events) == 1:
            await self.write(events[0].sse())
            return
        pieces: list[bytes] = []
        size = 0
        for event in events:
            pieces.append(event.sse())
            size += len(pieces[-1])
            if size >= _PIECE:
                await self.write(b"".join(pieces))
                pieces, size = [], 0
                if self._over:
                    return
        if pieces:
            await self.write(b"".join(pieces))

    async def keep_alive(self) -> None:
        await self.write(_KEEP_ALIVE)


class WholeStream(FeedStream):
    """An event stream of a task, which ends with the whole result of the task."""

    async def put(self, events: list[Heard]) -> None:
        await super().put(events)
        if self._task is not None and events and _ends(events[-1]):
            await self.write(whole(await self._streams.task_now(self._task)))


def ready(after: int) -> bytes:
    """Returns the first event. It has the number of the reader's cursor, so the numbers rise by one from here."""
    told = msgspec.json.encode({"type": "ready", "ts": now_z(), "seq": after})
    return b"event: acp.ready\ndata: %s\n\n" % told


def whole(task: Task) -> bytes:
    """Returns the last event of a stream that ends with the whole result of the task."""
    told = {"type": "task", "ts": now_z(), "task_id": task.id, "task": task.view()}
    return b"event: acp.task\ndata: %s\n\n" % msgspec.json.encode(told)


class SocketStream(Listener):
    """A stream of WebSocket frames, in the reference's shape: the name of the event, and its data."""

    channel: WebSocketChannel

    async def serve(self, socket: WebSocket) -> None:
        try:
            await socket.accept()
        except WebSocketDisconnect:
            return
        self.channel = WebSocketChannel(ServerSocket(socket))
        listening = asyncio.ensure_future(self._listen())
        try:
            with contextlib.suppress(Exception):  # an engine that has closed ends a stream silently
                await self.run()
        finally:
            listening.cancel()
            await self.channel.close()

    async def _listen(self) -> None:
        while await self.channel.receive():
            pass
        self.end()

    async def greet(self) -> None:
        ready = {"event": "acp.ready", "data": {"type": "ready", "ts": now_z(), "seq": self._after}}
        await self._send(msgspec.json.encode(ready))

    async def put(self, events: list[Heard]) -> None:
        for event in events:
            await self._send(_frame(event))
            if self._over:
                return

    async def _send(self, frame: bytes) -> None:
        """Sends one frame, and waits until the reader has taken it."""
        self.channel.send(frame)
        del frame
        if not await self.channel.written():
            self.end()


def _frame(event: Heard) -> bytes:
    if event.kind != "message":
        name = f"acp.task.{event.kind}" if event.kind in ("status", "artifact") else f"acp.{event.kind}"
        return b'{"event":"%s","data":%s}' % (name.encode(), event.data)
    data = msgspec.json.decode(event.data)
    told = {"event": "acp.message", "data": {**data, "timestamp": data["ts"], "server_seq": event.seq}}
    return msgspec.json.encode(told)
