"""A bus of subjects, whatever carries them: what is said to other processes, and what is made of what they say.

Knows no network: what is to be said waits in a queue that a carrier empties (`nats` does), and what comes in is given
to the handler of its subject. Listeners in this process are served as by the local bus, at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import uuid4

import msgspec

from ..local import LocalBus
from ..port import ANYTHING, WORK, Ear, Health, News, Presence
from .address import Subjects, is_token
from .send_queue import Item, Outgoing
from .subscriptions import SAID_EVERY, Elsewhere, Here, Watch
from .work_queue import WorkQueue

log = logging.getLogger("interlingua.bus")

_MAX_ITEMS, _MAX_BYTES = 20_000, 16 * 1024 * 1024  # that wait to be sent
_AROUND = 64  # bytes of a message around what it holds
_HEARTBEAT = 3.0
_PRESENT = 10.0  # seconds for which somebody is there without saying so again
_AT_ONCE = 1000  # runs in one message
_WORK, _MISSED = b"w", b"m"

_out = msgspec.msgpack.Encoder()
_news = msgspec.msgpack.Decoder(News)
_watch = msgspec.msgpack.Decoder(Watch)
_presence = msgspec.json.Decoder(Presence)

Handler = Callable[[bytes, str], None]
"""Takes what was said, and on which subject."""


class SubjectBus(LocalBus):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.subjects = Subjects(prefix)
        self.health = Health()
        self.outgoing = Outgoing(_MAX_ITEMS, _MAX_BYTES)
        self.max_payload = 1024 * 1024
        self.handlers: dict[str, Handler] = {
            self.subjects.changed: self._on_changed,
            self.subjects.inbox: self._on_inbox,
            self.subjects.watch: self._on_watch,
            self.subjects.presence: self._on_presence,
        }
        self._name = uuid4().hex  # for who has something to say of what is read here
        self.handlers[self.subjects.all_read(self._name)] = self._on_told
        self.work = WorkQueue(self.subjects, self.health)
        self._ear: Ear | None = None
        self._here, self._elsewhere = Here(), Elsewhere()
        self._fresh: list[str] = []  # runs that are read here from now on, to be said
        self._followers: dict[str, dict[object, Callable[[News], None]]] = {}
        self._present: dict[str, tuple[Presence, float]] = {}
        self._missed_by_others = False
        self._said = self._beaten = 0.0
        self._warned: set[str] = set()

    # -- for the carrier ----------------------------------------------------------------------------------

    def connected(self) -> None:
        """Every subject with a handler is listened to, and what is said is heard, from now on."""
        self.health.connected = True
        self.health.connects += 1
        self._fresh = self._here.all()
        self._announce()
        self._beat(asks=True)

    def disconnected(self) -> None:
        self.health.connected = False
        self.health.dropped += self.outgoing.clear()
        self._missed_by_others = True

    def tick(self) -> None:
        """Called about once a second."""
        now = asyncio.get_running_loop().time()
        self._elsewhere.forget(now)
        self._here.left(now)
        if not self.health.connected:
            return
        if self._missed_by_others:
            self._missed_by_others = not self._say(self.subjects.changed, _MISSED)
        if now - self._said > SAID_EVERY:
            self._said = now
            runs = self._here.all()
            for at in range(0, len(runs), _AT_ONCE):
                self._say(self.subjects.watch, _out.encode(Watch(self._name, [], runs[at : at + _AT_ONCE])))
        if now - self._beaten > _HEARTBEAT:
            self._beat()

    def missed(self) -> None:
        """Anything may have happened: readers and the worker look for themselves."""
        for run in list(self._followers):
            self._spread(run, ANYTHING)
        if self._ear is not None:
            self._ear.missed()
        else:
            self.publish_all()

    def overflowed(self, subject: str) -> None:
        """Something that came in on a subject could not be kept."""
        self.health.overflowed += 1
        about, _, run = subject.rpartition(".")
        if run in self._here:
            self._spread(run, ANYTHING)
        elif f"{about}.*" not in self.handlers:  # else it is about a run that nobody reads here any more
            self.missed()

    def warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning("%s", text)

    # -- saying -------------------------------------------------------------------------------------------

    def _say(self, subject: str, payload: bytes, *, id_: str | None = None, once: bool = False) -> bool:
        if self.health.connected and self.outgoing.put(Item("say", subject, payload, id_), once=once):
            return True
        self.health.dropped += 1
        self._missed_by_others = True
        return False

    def _listen(self, subject: str, handler: Handler) -> None:
        self.handlers[subject] = handler
        if self.health.connected:
            self.outgoing.put(Item("listen", subject))

    def _ignore(self, subject: str) -> None:
        self.handlers.pop(subject, None)
        if self.health.connected:
            self.outgoing.put(Item("ignore", subject))

    def publish(self, topic: str) -> None:
        super().publish(topic)
        if topic == WORK:
            self._say(self.subjects.changed, _WORK, once=True)
        elif topic in self._elsewhere:
            self._tell_readers(topic, News(_now(), 0, -1))

    def publish_all(self) -> None:
        for topic in list(self._listeners):
            LocalBus.publish(self, topic)  # others find out for themselves

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        end = super().subscribe(topic, callback)
        if topic == WORK or not is_token(topic):
            return end
        self._begin(topic)

        def finish() -> None:
            end()
            self._end(topic)

        return _once(finish)

    def wanted(self, run: str) -> bool:
        return run in self._elsewhere

    def publish_events(self, run: str, first: int, last: int, rows: bytes) -> None:
        super().publish(run)
        if len(rows) > self.max_payload - _AROUND:
            rows = b""
        self._tell_readers(run, News(_now(), first, last, rows))

    def _tell_readers(self, run: str, news: News) -> None:
        """Each run has a subject, below that of the process that reads it: who listens to that one need not begin and
        end with every run."""
        message = _out.encode(news)
        for reader in self._elsewhere.readers(run):
            self._say(self.subjects.read(reader, run), message)

    def follow(self, run: str, callback: Callable[[News], None]) -> Callable[[], None]:
        mark = object()
        self._followers.setdefault(run, {})[mark] = callback
        self._begin(run)

        def finish() -> None:
            followers = self._followers[run]
            del followers[mark]
            if not followers:
                del self._followers[run]
            self._end(run)

        return _once(finish)

    def _begin(self, run: str) -> None:
        if self._here.add(run):
            if not self._fresh:  # said once for all that begin now
                asyncio.get_running_loop().call_soon(self._announce)
            self._fresh.append(run)

    def _end(self, run: str) -> None:
        self._here.remove(run, asyncio.get_running_loop().time())

    def _announce(self) -> None:
        fresh, self._fresh = self._fresh, []
        for at in range(0, len(fresh), _AT_ONCE):
            self._say(self.subjects.watch, _out.encode(Watch(self._name, fresh[at : at + _AT_ONCE])))

    def tell(self, worker: str | None, run: str) -> None:
        self._say(self.subjects.inbox if worker is None else self.subjects.worker(worker), run.encode())

    def hand_out(self, queue: str, run: str, entry: int) -> bool:
        if not self.work.ready:
            return False
        return self._say(self.subjects.work(queue), self.work.offer(run, _now()), id_=f"{run}:{entry}")

    def take(self, queues: list[str]) -> None:
        self.work.take(queues)

    # -- serving ------------------------------------------------------------------------------------------

    def attach(self, ear: Ear) -> None:
        self._ear = self.work.ear = ear
        self._listen(self.subjects.worker(ear.worker), self._on_inbox)
        self._beat(asks=True)

    def detach(self) -> None:
        ear, self._ear = self._ear, None
        if ear is None:
            return
        self.work.take([])
        self.work.ear = None
        self._ignore(self.subjects.worker(ear.worker))
        if self.health.connected:
            about = ear.presence()
            about.leaves = True
            self._say(self.subjects.presence, msgspec.json.encode(about))

    def _beat(self, *, asks: bool = False) -> None:
        if not self.health.connected:
            return
        self._beaten = asyncio.get_running_loop().time()
        # Who only looks has nothing to say of itself, but asks.
        about = self._ear.presence() if self._ear is not None else Presence("", "", 0, [])
        about.sent, about.asks = _now(), asks
        if asks or about.worker:
            self._say(self.subjects.presence, msgspec.json.encode(about))

    def present(self) -> list[Presence]:
        oldest = asyncio.get_running_loop().time() - _PRESENT
        for worker in [worker for worker, (_, seen) in self._present.items() if seen < oldest]:
            del self._present[worker]
        return [about for about, _ in self._present.values()]

    # -- hearing ------------------------------------------------------------------------------------------

    def _on_changed(self, data: bytes, _: str) -> None:
        if data == _WORK:
            LocalBus.publish(self, WORK)
        else:
            self.missed()

    def _on_inbox(self, data: bytes, _: str) -> None:
        if self._ear is not None:
            self._ear.told(data.decode())

    def _on_watch(self, data: bytes, _: str) -> None:
        watch = _watch.decode(data)
        if not is_token(watch.reader):
            return  # none of ours
        self._elsewhere.add(watch.reader, [*watch.fresh, *watch.still], asyncio.get_running_loop().time())
        if self._ear is not None:
            for run in watch.fresh:
                self._ear.watched(run)

    def _on_presence(self, data: bytes, _: str) -> None:
        about = _presence.decode(data)
        if about.leaves:
            self._present.pop(about.worker, None)
        elif about.worker:
            self._present[about.worker] = about, asyncio.get_running_loop().time()
        if about.asks:
            self._fresh = self._here.all()  # who has just come knows of no readers
            self._announce()
            if self._ear is not None:
                self._beat()

    def _on_told(self, data: bytes, subject: str) -> None:
        if (run := subject.rpartition(".")[2]) in self._here:
            self._on_news(run, data)

    def _on_news(self, run: str, data: bytes) -> None:
        news = _news.decode(data)
        self.health.received += 1
        # Two clocks may differ: what seems to come from the future came at once.
        self.health.lag += 0.1 * (max(0, _now() - news.sent) / 1e6 - self.health.lag)
        self._spread(run, news)

    def _spread(self, run: str, news: News) -> None:
        for callback in list(self._followers.get(run, {}).values()):
            callback(news)
        LocalBus.publish(self, run)


def _once(finish: Callable[[], None]) -> Callable[[], None]:
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            ended = True
            finish()

    return end


def _now() -> int:
    return time.time_ns() // 1000
