"""The bus on subjects, independent of the network: encodes messages to other processes and handles theirs.

Outgoing messages wait in a queue that the carrier empties (see `nats_bus`); incoming ones go to the handler of their
subject. Subscribers in this process are called at once, as by the local bus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import uuid4

import msgspec

from ...runtime.clock import Clock
from ..local import LocalBus
from ..port import ANYTHING, WORK, BusListener, CommittedEvents, Health, Presence
from .address import Subjects, is_token
from .send_queue import Item, SendQueue
from .subscriptions import ANNOUNCE_EVERY, LocalReaders, RemoteReaders, Watch
from .work_queue import WorkQueue

log = logging.getLogger("interlingua.bus")

_MAX_ITEMS, _MAX_BYTES = 20_000, 16 * 1024 * 1024  # of messages that wait to be sent
_OVERHEAD = 64  # bytes of a message around its rows
_HEARTBEAT = 3.0
_PRESENT = 10.0  # seconds after its last heartbeat for which a worker counts as present
_MAX_RUNS = 1000  # in one message
_WORK, _MISSED = b"w", b"m"

_encoder = msgspec.msgpack.Encoder()
_news_decoder = msgspec.msgpack.Decoder(CommittedEvents)
_watch_decoder = msgspec.msgpack.Decoder(Watch)
_presence_decoder = msgspec.json.Decoder(Presence)

Handler = Callable[[bytes, str], None]
"""Receives a message and its subject."""


class SubjectBus(LocalBus):
    def __init__(self, prefix: str, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.subjects = Subjects(prefix)
        self.health = Health()
        self.send_queue = SendQueue(_MAX_ITEMS, _MAX_BYTES)
        self.max_payload = 1024 * 1024
        self.handlers: dict[str, Handler] = {
            self.subjects.changed: self._on_changed,
            self.subjects.inbox: self._on_inbox,
            self.subjects.watch: self._on_watch,
            self.subjects.presence: self._on_presence,
        }
        self._reader_id = uuid4().hex  # names this process as a reader
        self.handlers[self.subjects.all_read(self._reader_id)] = self._on_events
        self.work = WorkQueue(self.subjects, self.health, clock)
        self._listener: BusListener | None = None
        self._read_here, self._read_elsewhere = LocalReaders(), RemoteReaders()
        self._new_runs: list[str] = []  # runs that are newly read here, to be announced
        self._followers: dict[str, dict[object, Callable[[CommittedEvents], None]]] = {}
        self._present: dict[str, tuple[Presence, float]] = {}
        self._others_missed = False
        self._announced_at = self._heartbeat_at = 0.0
        self._warned: set[str] = set()

    # -- for the carrier ----------------------------------------------------------------------------------

    def connected(self) -> None:
        """Called when all subjects with a handler are subscribed and messages arrive."""
        self.health.connected = True
        self.health.connects += 1
        self._new_runs = self._read_here.all()
        self._announce()
        self._send_heartbeat(asks=True)

    def disconnected(self) -> None:
        self.health.connected = False
        self.health.dropped += self.send_queue.clear()
        self._others_missed = True

    def tick(self) -> None:
        """Called about once a second."""
        now = self.clock.monotonic()
        self._read_elsewhere.drop_expired(now)
        self._read_here.drop_idle(now)
        if not self.health.connected:
            return
        if self._others_missed:
            self._others_missed = not self._send(self.subjects.changed, _MISSED)
        if now - self._announced_at > ANNOUNCE_EVERY:
            self._announced_at = now
            runs = self._read_here.all()
            for at in range(0, len(runs), _MAX_RUNS):
                self._send(self.subjects.watch, _encoder.encode(Watch(self._reader_id, [], runs[at : at + _MAX_RUNS])))
        if now - self._heartbeat_at > _HEARTBEAT:
            self._send_heartbeat()

    def missed(self) -> None:
        """Makes readers and the worker read the store, because messages were lost."""
        for run in list(self._followers):
            self._notify_readers(run, ANYTHING)
        if self._listener is not None:
            self._listener.missed()
        else:
            self.publish_all()

    def overflowed(self, subject: str) -> None:
        """Called when messages of a subject were dropped because they were read too slowly."""
        self.health.overflowed += 1
        about, _, run = subject.rpartition(".")
        if run in self._read_here:
            self._notify_readers(run, ANYTHING)
        elif f"{about}.*" not in self.handlers:  # else no one reads that run here any more
            self.missed()

    def subscribe_to(self, subject: str, handler: Handler) -> None:
        """Subscribes to a subject, now or when the bus is connected."""
        self.handlers[subject] = handler
        if self.health.connected:
            self.send_queue.put(Item("subscribe", subject))

    def warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning("%s", text)

    def may_warn_again(self, key: str) -> bool:
        """Lets `warn_once` warn again. Returns False if it has not warned."""
        warned = key in self._warned
        self._warned.discard(key)
        return warned

    # -- sending ------------------------------------------------------------------------------------------

    def _send(self, subject: str, payload: bytes, *, id_: str | None = None, once: bool = False) -> bool:
        if self.health.connected and self.send_queue.put(Item("publish", subject, payload, id_), once=once):
            return True
        self.health.dropped += 1
        self._others_missed = True
        return False

    def _unsubscribe_from(self, subject: str) -> None:
        self.handlers.pop(subject, None)
        if self.health.connected:
            self.send_queue.put(Item("unsubscribe", subject))

    def publish(self, topic: str) -> None:
        super().publish(topic)
        if topic == WORK:
            self._send(self.subjects.changed, _WORK, once=True)
        elif topic in self._read_elsewhere:
            self._send_to_readers(topic, CommittedEvents(self.clock.now(), 0, -1))

    def publish_all(self) -> None:
        for topic in list(self._listeners):
            LocalBus.publish(self, topic)  # other processes notice by themselves

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        end = super().subscribe(topic, callback)
        if topic == WORK or not is_token(topic):
            return end
        self._start_reading(topic)

        def finish() -> None:
            end()
            self._stop_reading(topic)

        return _once(finish)

    def has_readers(self, run: str) -> bool:
        return run in self._read_elsewhere

    def publish_events(self, run: str, first: int, last: int, rows: bytes) -> None:
        super().publish(run)
        if len(rows) > self.max_payload - _OVERHEAD:
            rows = b""
        self._send_to_readers(run, CommittedEvents(self.clock.now(), first, last, rows))

    def _send_to_readers(self, run: str, events: CommittedEvents) -> None:
        """Sends events of a run to the processes that read it.

        A process subscribes to all runs below its own subject, so it need not subscribe to each run.
        """
        message = _encoder.encode(events)
        for reader in self._read_elsewhere.readers(run):
            self._send(self.subjects.read(reader, run), message)

    def follow(self, run: str, callback: Callable[[CommittedEvents], None]) -> Callable[[], None]:
        mark = object()
        self._followers.setdefault(run, {})[mark] = callback
        self._start_reading(run)

        def finish() -> None:
            followers = self._followers[run]
            del followers[mark]
            if not followers:
                del self._followers[run]
            self._stop_reading(run)

        return _once(finish)

    def _start_reading(self, run: str) -> None:
        if self._read_here.add(run):
            if not self._new_runs:  # one announcement for all runs of this turn
                asyncio.get_running_loop().call_soon(self._announce)
            self._new_runs.append(run)

    def _stop_reading(self, run: str) -> None:
        self._read_here.remove(run, self.clock.monotonic())

    def _announce(self) -> None:
        fresh, self._new_runs = self._new_runs, []
        for at in range(0, len(fresh), _MAX_RUNS):
            self._send(self.subjects.watch, _encoder.encode(Watch(self._reader_id, fresh[at : at + _MAX_RUNS])))

    def notify_owner(self, worker: str | None, run: str) -> None:
        self._send(self.subjects.inbox if worker is None else self.subjects.worker(worker), run.encode())

    def offer(self, queue: str, run: str, entry: int) -> bool:
        if not self.work.ready:
            return False
        return self._send(
            self.subjects.work(queue), self.work.encode_offer(run, self.clock.now()), id_=f"{run}:{entry}"
        )

    def serve(self, queues: list[str]) -> None:
        self.work.serve(queues)

    # -- serving ------------------------------------------------------------------------------------------

    def attach(self, listener: BusListener) -> None:
        self._listener = self.work.listener = listener
        self.subscribe_to(self.subjects.worker(listener.worker), self._on_inbox)
        self._send_heartbeat(asks=True)

    def detach(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self.work.serve([])
        self.work.listener = None
        self._unsubscribe_from(self.subjects.worker(listener.worker))
        if self.health.connected:
            about = listener.presence()
            about.leaves = True
            self._send(self.subjects.presence, msgspec.json.encode(about))

    def _send_heartbeat(self, *, asks: bool = False) -> None:
        if not self.health.connected:
            return
        self._heartbeat_at = self.clock.monotonic()
        # A process without a worker announces nothing, but asks.
        about = self._listener.presence() if self._listener is not None else Presence("", "", 0, [])
        about.sent, about.asks = self.clock.now(), asks
        if asks or about.worker:
            self._send(self.subjects.presence, msgspec.json.encode(about))

    def present(self) -> list[Presence]:
        oldest = self.clock.monotonic() - _PRESENT
        for worker in [worker for worker, (_, seen) in self._present.items() if seen < oldest]:
            del self._present[worker]
        return [about for about, _ in self._present.values()]

    # -- receiving ----------------------------------------------------------------------------------------

    def _on_changed(self, data: bytes, _: str) -> None:
        if data == _WORK:
            LocalBus.publish(self, WORK)
        else:
            self.missed()

    def _on_inbox(self, data: bytes, _: str) -> None:
        if self._listener is not None:
            self._listener.inbox_changed(data.decode())

    def _on_watch(self, data: bytes, _: str) -> None:
        watch = _watch_decoder.decode(data)
        if not is_token(watch.reader):
            return  # a foreign message
        self._read_elsewhere.add(watch.reader, [*watch.new, *watch.still], self.clock.monotonic())
        if self._listener is not None:
            for run in watch.new:
                self._listener.reader_joined(run)

    def _on_presence(self, data: bytes, _: str) -> None:
        about = _presence_decoder.decode(data)
        if about.leaves:
            self._present.pop(about.worker, None)
        elif about.worker:
            self._present[about.worker] = about, self.clock.monotonic()
        if about.asks:
            self._new_runs = self._read_here.all()  # a new process knows no readers yet
            self._announce()
            if self._listener is not None:
                self._send_heartbeat()

    def _on_events(self, data: bytes, subject: str) -> None:
        if (run := subject.rpartition(".")[2]) in self._read_here:
            self._receive(run, data)

    def _receive(self, run: str, data: bytes) -> None:
        events = _news_decoder.decode(data)
        self.health.received += 1
        # Clocks may differ: a message from the future counts as immediate.
        self.health.lag += 0.1 * (max(0, self.clock.now() - events.sent) / 1e6 - self.health.lag)
        self._notify_readers(run, events)

    def _notify_readers(self, run: str, events: CommittedEvents) -> None:
        for callback in list(self._followers.get(run, {}).values()):
            callback(events)
        LocalBus.publish(self, run)


def _once(finish: Callable[[], None]) -> Callable[[], None]:
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            ended = True
            finish()

    return end
