"""The records of a node: its feed of events, its letters and its tasks, on the store's shelf.

All changes go through `keep`: letters, tasks and events of one moment are one transaction, and readers see them only
after it. Readers of the feed are served from a ring in memory, and from the store where they are behind the ring.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

import msgspec

from ....engine.ports import DocumentStore
from ....model.documents import Change, Document, Letter, OnWritten, Put, Settle, Tell, WriteResult
from ....transports.http.sse import event_of
from ..wire.frames import now_z
from .task_record import Task, decoder, document_id

_RING, _RING_BYTES = 2048, 8 * 1024 * 1024  # the limits of a feed in memory
_PIECE = 256 * 1024  # bytes that a reader gets at once
_PAGE = 100  # events that are read from the store at once; each may be as large as a message
_LOOK_EVERY = 5.0  # seconds: another process may have written an event, and the hint got lost
_LARGE = 64 * 1024  # bytes of an event
_encode_event = msgspec.json.Encoder().encode
_NAMED = {"status": "acp.task.status", "artifact": "acp.task.artifact"}


def _encode(event: Any) -> bytes:
    """Copies a large event, because the encoder's buffer has room to grow by a half, and keeps it."""
    data = _encode_event(event)
    return data if len(data) < _LARGE else bytes(memoryview(data))


class Said(msgspec.Struct, tag_field="type", tag="message", gc=False):
    """The event of a message that has no task and no context, and is no reply."""

    ts: str
    message_id: str
    role: str
    parts: Sequence[Any]
    sender: str = msgspec.field(name="from")
    peer_id: str
    direction: Literal["inbound", "outbound"]


class Heard(msgspec.Struct):
    """One event of a feed."""

    seq: int
    kind: str
    topic: str  # the task that it is of
    body: bytes  # the event as it is kept: without its number
    _whole: bytes = b""
    _wire: bytes = b""

    @property
    def weight(self) -> int:
        """Returns its bytes in memory, after it was read in both forms."""
        return 3 * len(self.body)

    @property
    def data(self) -> bytes:
        """Returns the whole event, which is put together once, on demand."""
        if not self._whole:
            self._whole = numbered(self.body, self.seq)
        return self._whole

    def sse(self) -> bytes:
        """Returns the event as a server-sent event, which is put together once for all readers."""
        if not self._wire:
            data = numbered(self.body, self.seq)
            self._wire = event_of(data, id=str(self.seq), event=_NAMED.get(self.kind))
        return self._wire


class Feed:
    """One gapless count of events, and its readers."""

    def __init__(self, documents: DocumentStore, name: str) -> None:
        self._documents = documents
        self.name = name
        self._ring: deque[Heard] = deque()
        self._held = 0  # bytes in it
        self._listeners: set[asyncio.Future[None]] = set()

    def heard(self, events: list[Heard]) -> None:
        """Takes events of this process; in order, each once."""
        ring = self._ring
        for event in events:
            if ring and event.seq != ring[-1].seq + 1:
                ring.clear()  # another process wrote between: readers find it in the store
                self._held = 0
            ring.append(event)
            self._held += event.weight
            while len(ring) > _RING or self._held > _RING_BYTES:  # events beyond the limits are in the store
                self._held -= ring.popleft().weight
        self.wake()

    def wake(self) -> None:
        listeners, self._listeners = self._listeners, set()
        for listener in listeners:
            if not listener.done():
                listener.set_result(None)

    def news(self) -> asyncio.Future[None]:
        """Returns a future that is done when there may be something new."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.add(news)
        return news

    def forget(self, news: asyncio.Future[None]) -> None:
        """Drops a future that is no longer awaited."""
        self._listeners.discard(news)

    async def read(self, seq: int, topic: str | None = None) -> tuple[list[Heard], int]:
        """Returns the events after a cursor, as far as they are there, and the new cursor. With a topic, other topics'
        events count as read."""
        ring = self._ring
        if ring and ring[0].seq <= seq + 1:
            newest = ring[-1].seq
            found, size = list[Heard](), 0
            # Without a gap, so the place of an event is known; a thousand readers must not each look through all.
            for place in range(seq - newest, 0):
                event = ring[place]
                if topic is None or event.topic == topic:
                    size += len(event.body)
                    if found and size > _PIECE:
                        return found, found[-1].seq
                    found.append(event)
            return found, max(seq, newest)
        head = await self._documents.feed_head(self.name) if topic is not None else seq
        told = await self.stored(seq, topic)
        # A page may end anywhere: further events of a topic come with the next page, which is empty at the end.
        return told, told[-1].seq if told else max(seq, head)

    async def stored(self, seq: int, topic: str | None = None) -> list[Heard]:
        """Returns a page of events after a cursor from the store: those of another process, and those that were just
        written."""
        rows = await self._documents.feed(self.name, seq, _PAGE, topic=topic)
        return [Heard(row.seq, row.kind, row.topic, row.body) for row in rows]

    async def after(self, seq: int, *, topic: str | None = None) -> list[Heard]:
        """Returns the events after a cursor, as far as they are there."""
        return (await self.read(seq, topic))[0]

    async def head(self) -> int:
        return self._ring[-1].seq if self._ring else await self._documents.feed_head(self.name)

    async def follow(self, after: int, *, topic: str | None = None) -> AsyncIterator[list[Heard]]:
        """Yields the events after a cursor as they come, for ever. An empty list is only a sign of life."""
        loop = asyncio.get_running_loop()
        while True:
            news = loop.create_future()
            self._listeners.add(news)
            found, after = await self.read(after, topic)
            if found:
                self._listeners.discard(news)
                yield found
                continue
            timer = loop.call_later(_LOOK_EVERY, _ring, news)
            try:
                await news
            finally:
                timer.cancel()
                self._listeners.discard(news)
            yield []


def _ring(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


def numbered(body: bytes, seq: int) -> bytes:
    """Returns an event with its number, which is known only after it was written."""
    return b'%s,"seq":%d}' % (body[:-1], seq)


class Journal:
    def __init__(self, documents: DocumentStore, name: str) -> None:
        self._documents = documents
        self.name = name
        self._own = Feed(documents, name)
        self._names = {name}
        self._kept: list[tuple[Sequence[Change], WriteResult]] = []  # with news for which readers were not yet woken
        # Callers of the door come and go: only their listeners hold their feeds.
        self._feeds: weakref.WeakValueDictionary[str, Feed] = weakref.WeakValueDictionary({name: self._own})
        self.box_in, self.box_out, self.box_door = f"{name}/in", f"{name}/out", f"{name}/door"
        self.box_asked = f"{name}/asked"  # messages of the door's callers; their answers are in box_door
        self.tasks_space, self.peers_space = f"{name}/tasks", f"{name}/peers"
        self.deleted_space = f"{name}/deleted"  # ids of tasks that were deleted; the version counts how often
        self.files_space, self.facts_space = f"{name}/files", f"{name}/facts"

    def feed(self, caller: str = "") -> Feed:
        """Returns the owner's feed, or that of one caller of the door, who must not see the others."""
        name = self._feed_name(caller)
        found = self._feeds.get(name)
        if found is None:
            found = self._feeds[name] = Feed(self._documents, name)
        return found

    def feeds(self) -> list[str]:
        """Returns the names of the feeds that were written or read since the start."""
        return list(self._names)

    def _feed_name(self, caller: str) -> str:
        name = self.name if not caller else f"{self.name}/{caller}"
        self._names.add(name)
        return name

    def foreign_change(self) -> None:
        for feed in list(self._feeds.values()):
            feed.wake()

    # -- writing ------------------------------------------------------------------------------------------

    def event(
        self, kind: str, body: dict[str, Any], *, task: str = "", caller: str = "", ts: str | None = None,
        passes_by: bool = False,
    ) -> Tell:  # fmt: skip
        """Returns an event for the feed: `type` and `ts` first, and `seq` as soon as it has one."""
        whole = {"type": kind, "ts": ts or now_z(), **body}
        return Tell(self._feed_name(caller) if caller else self.name, kind, task, _encode(whole), passes_by)

    def said(self, event: Said) -> Tell:
        """Returns the event of a message for the owner's feed."""
        return Tell(self.name, "message", "", _encode(event))

    def keep(self, changes: Sequence[Change], heed: OnWritten | None = None) -> asyncio.Future[WriteResult]:
        """Queues changes at once, in the order of the calls. A waiting caller goes on after the readers of feeds were
        notified, for which a caller that does that itself calls `heed`."""
        return self._documents.write(changes, heed or self.heed)

    async def settle_in(self, number: int, state: str) -> None:
        """A message that came is in this state now."""
        await self.keep([Settle(self.box_in, [number], state)])

    def heed(self, changes: Sequence[Change], kept: WriteResult) -> None:
        """Notifies readers of kept changes, once for all that were kept together."""
        if not self._kept:
            asyncio.get_running_loop().call_soon(self._tell)  # before the waiting callers: they are woken after this
        self._kept.append((changes, kept))

    def _tell(self) -> None:
        """Notifies readers of all changes that were kept together, at once."""
        done, self._kept = self._kept, []
        told: dict[str, list[Heard]] = {self.name: []}
        for changes, kept in done:
            # Changes that were not applied have no numbers.
            for change, number in zip(changes, kept.numbers, strict=False):
                if type(change) is Tell:
                    assert number is not None
                    heard = Heard(number, change.kind, change.topic, change.body)
                    if change.feed in told:
                        told[change.feed].append(heard)
                    else:
                        told[change.feed] = [heard]
        for name, events in told.items():
            if not events:
                continue
            feed = self._feeds.get(name)
            if feed is not None:
                feed.heard(events)

    # -- tasks --------------------------------------------------------------------------------------------

    def put_task(self, task: Task) -> Put:
        """Returns the change that stores the task as it is now, unless it was changed since it was read."""
        return Put(
            self.tasks_space,
            document_id(task.scope, task.id),
            msgspec.json.encode(task),
            state=task.status,
            topic=task.id,
            owner=task.scope,
            version=task.version,
        )

    async def task(self, scope: str, id_: str) -> Task | None:
        found = await self._documents.get(self.tasks_space, document_id(scope, id_))
        return None if found is None else self.read_task(found)

    async def task_anywhere(self, id_: str) -> Task | None:
        """Returns a task of the owner or of a peer, but not of the door's callers."""
        own = await self.task("", id_)
        if own is not None:
            return own
        for found in await self._documents.search(self.tasks_space, topic=id_, limit=20):
            if found.owner.startswith("peer:"):
                return self.read_task(found)
        return None

    async def times_deleted(self, task: Task) -> int:
        """Returns how many tasks with this id were deleted."""
        found = await self._documents.get(self.deleted_space, document_id(task.scope, task.id))
        return 0 if found is None else found.version

    @staticmethod
    def read_task(document: Document) -> Task:
        task = decoder.decode(document.body)
        task.version = document.version
        return task

    async def change_task(
        self, task: Task, change: Callable[[Task], list[Change]], *, missing_ok: bool = True
    ) -> tuple[Task, WriteResult]:
        """Changes a task and reports it, also under concurrent changes. `change` may raise, and then nothing happens;
        it returns further changes to keep."""
        while True:
            also = change(task)
            kept = await self.keep([self.put_task(task), *also])
            if kept.stale is None:
                task.version += 1
                return task, kept
            if not isinstance(kept.stale, Put):
                return task, kept
            again = await self.task(task.scope, task.id)
            if again is None:
                raise LookupError(task.id)
            task = again

    # -- letters ------------------------------------------------------------------------------------------

    async def letter(self, box: str, key: str) -> Letter | None:
        return await self._documents.letter(box, key)
