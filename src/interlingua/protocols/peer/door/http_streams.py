"""The events of a feed as they happen: server-sent events, or the frames of a WebSocket.

A reader gets more only after it has taken the earlier events, so one that stops reading delays no other, and little is
kept for it: its unread events are in the journal. An event is encoded once for all readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from ....doors.streams import EventStream, Streams
from ....model.errors import InvalidRequest
from ....transports.http.body import header
from ....transports.http.sse import encode
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


S = TypeVar("S", "FeedStream", "WholeStream", "SocketStream")


class StreamSettings(msgspec.Struct, kw_only=True, frozen=True):
    look: float = 5.0
    """Seconds after which a reader looks for new events by itself: another process may have written some."""
    keep_alive: float = 15.0
    stall: float = 60.0
    """Seconds after which a reader that takes nothing is dropped."""


def place(request: Request | WebSocket) -> int | None:
    """Returns the cursor of a reader. The one that a browser remembers is newer than the one in the address."""
    text = _header(request) or request.query_params.get("since") or request.query_params.get("since_seq")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise InvalidRequest(f"/since is the seq of an event, got {text[:80]!r}", path="/since")
    return int(text)


def _header(request: Request | WebSocket) -> str | None:
    if isinstance(request, Request):
        return header(request, b"last-event-id")
    return request.headers.get("last-event-id")


class NodeStreams(Streams):
    """The open streams of one node through one app."""

    def __init__(self, node: Node, settings: StreamSettings | None = None) -> None:
        super().__init__(node.settings.max_streams, tenths=1)
        self._node = node
        self.settings = settings or StreamSettings()

    def feed(self, surface: Surface, task: Task | None = None) -> Feed:
        caller = surface.feed
        if task is not None:
            caller = task.scope.removeprefix("caller:") if task.scope.startswith("caller:") else ""
        return self._node.journal.feed(caller)

    async def subscribe(self, kind: type[S], surface: Surface, since: int | None, task: Task | None = None) -> S:
        """Returns a stream. A task is shown from its beginning, everything else from now on, unless the reader has a
        cursor."""
        caller = surface.scope or None
        if why := self.why_full(caller):
            raise Refusal(BUSY, 503 if self.closed or self.is_full else 429, why)
        feed = self.feed(surface, task)
        head = await feed.head()
        beginning = head if task is None else 0
        after = beginning if since is None else min(since, head)  # a cursor cannot lie in the future
        stream = kind(FeedReader(self._node, self.settings, feed, after, task), self.settings)
        stream.counted = self.holding(stream, caller)
        return stream


class FeedReader:
    """Reads a feed from a cursor on: all of it, or the events of one task until the task ends."""

    def __init__(self, node: Node, settings: StreamSettings, feed: Feed, after: int, task: Task | None) -> None:
        self._node = node
        self._settings = settings
        self._feed = feed
        self._read_any = False
        self._over = False
        self._news: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.began = self.after = after
        self.task = task

    def end(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _look(self) -> None:
        """Wakes the reader, which reads the store: another process may have written something. One timer per reader:
        one per event would cost more than the event."""
        self._timer = asyncio.get_running_loop().call_later(self._settings.look, self._look)
        self._wake()

    async def events(self) -> AsyncGenerator[list[Heard]]:
        """Yields events as they come, until the reader ends, or the task."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.look, self._look)
        check_task_at = 0.0
        try:
            while not self._over:
                self._news = self._feed.news()
                events, self.after = await self._feed.read(self.after, self.task.id if self.task is not None else None)
                if not events and self.task is not None and loop.time() >= check_task_at:
                    check_task_at = loop.time() + self._settings.keep_alive
                    events = await self._last_events(self.task)
                if events:
                    self._feed.forget(self._news)
                    self._read_any = True
                    if self.task is not None:
                        end = next((place for place, event in enumerate(events, 1) if ends(event)), None)
                        self._over = end is not None
                        events = events[:end]
                    given = [events]
                    del events
                    yield given.pop()
                elif not self._over:
                    await self._news
        finally:
            self._timer.cancel()
            if self._news is not None:
                self._feed.forget(self._news)

    async def _last_events(self, task: Task) -> list[Heard]:
        """Returns the last events of a task that has ended. Its last event is in the store together with the end of the
        task, at the latest."""
        task = await self.task_now(task)
        if task.status not in task_states.TERMINAL:
            return []
        left = await self._feed.stored(self.after, task.id)
        if left:
            self.after = left[-1].seq
            return left
        self._over = True
        if self._read_any or await self._saw_the_end(task):
            return []
        # It ended so long ago that its events are gone, but the task still holds its end.
        return [await self._last_word(task)]

    async def task_now(self, task: Task) -> Task:
        return await self._node.journal.task(task.scope, task.id) or task

    async def _saw_the_end(self, task: Task) -> bool:
        """Tells if the end of the task lies before the reader's cursor."""
        after = 0
        while after < self.began and (page := await self._feed.stored(after, task.id)):
            if any(ends(event) for event in page if event.seq <= self.began):
                return True
            after = page[-1].seq
        return False

    async def _last_word(self, task: Task) -> Heard:
        seq = await self._feed.head()
        event: dict[str, Any] = {"type": "status", "ts": task.updated_at, "task_id": task.id, "state": task.status}
        if task.error is not None:
            event["error"] = task.error
        return Heard(seq, "status", task.id, msgspec.json.encode(event))


def ends(event: Heard) -> bool:
    """Tells if an event is the last of its task."""
    return event.kind == "status" and msgspec.json.decode(event.data)["state"] in task_states.TERMINAL


class FeedStream(EventStream):
    """A stream of server-sent events."""

    def __init__(self, reader: FeedReader, settings: StreamSettings) -> None:
        super().__init__(keep_alive=settings.keep_alive, stall=settings.stall, headers=_HEADERS, comment=_KEEP_ALIVE)
        self._reader = reader

    async def produce(self) -> bool:
        await self.write(_KEEP_ALIVE + ready(self._reader.after) + _FILL)
        async with contextlib.aclosing(self._reader.events()) as batches:
            async for events in batches:
                await self.put(events)
        return True

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
        if pieces:
            await self.write(b"".join(pieces))


class WholeStream(FeedStream):
    """An event stream of a task, which ends with the whole result of the task."""

    async def put(self, events: list[Heard]) -> None:
        await super().put(events)
        task = self._reader.task
        if task is not None and ends(events[-1]):
            await self.write(whole(await self._reader.task_now(task)))


def ready(after: int) -> bytes:
    """Returns the first event. It has the number of the reader's cursor, so the numbers rise by one from here."""
    return encode({"type": "ready", "ts": now_z(), "seq": after}, event="acp.ready")


def whole(task: Task) -> bytes:
    """Returns the last event of a stream that ends with the whole result of the task."""
    return encode({"type": "task", "ts": now_z(), "task_id": task.id, "task": task.view()}, event="acp.task")


class SocketStream:
    """A stream of WebSocket frames, in the reference's shape: the name of the event, and its data."""

    def __init__(self, reader: FeedReader, settings: StreamSettings) -> None:
        self._reader = reader
        self._stall = settings.stall
        self.counted: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def stop(self) -> None:
        self._reader.end()

    async def serve(self, socket: WebSocket) -> None:
        try:
            await socket.accept()
        except WebSocketDisconnect:
            return
        channel = WebSocketChannel(ServerSocket(socket))
        listening = asyncio.ensure_future(self._listen(channel))
        try:
            # An engine that has closed, and a reader that takes nothing, end a stream silently.
            with contextlib.suppress(Exception), self.counted:
                await self._produce(channel)
        finally:
            listening.cancel()
            await channel.close()

    async def _listen(self, channel: WebSocketChannel) -> None:
        while await channel.receive():
            pass
        self._reader.end()

    async def _produce(self, channel: WebSocketChannel) -> None:
        ready = {"event": "acp.ready", "data": {"type": "ready", "ts": now_z(), "seq": self._reader.after}}
        await self._send(channel, msgspec.json.encode(ready))
        async with contextlib.aclosing(self._reader.events()) as batches:
            async for events in batches:
                for event in events:
                    await self._send(channel, _frame(event))

    async def _send(self, channel: WebSocketChannel, frame: bytes) -> None:
        """Sends one frame, and waits until the reader has taken it."""
        channel.send(frame)
        del frame
        async with asyncio.timeout(self._stall):
            if not await channel.written():
                raise ConnectionError("the reader has gone")


def _frame(event: Heard) -> bytes:
    if event.kind != "message":
        name = f"acp.task.{event.kind}" if event.kind in ("status", "artifact") else f"acp.{event.kind}"
        return b'{"event":"%s","data":%s}' % (name.encode(), event.data)
    data = msgspec.json.decode(event.data)
    frame = {"event": "acp.message", "data": {**data, "timestamp": data["ts"], "server_seq": event.seq}}
    return msgspec.json.encode(frame)
