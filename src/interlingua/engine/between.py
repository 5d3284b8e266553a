"""Between processes: what this worker tells others through a remote bus, and what it makes of what they tell.

Nothing here is needed for anything to happen: the store has it all, and whoever hears nothing looks there.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ..bus.base import QUESTIONS, WORK, News, Presence, RemoteBus
from ..model.events import Event, body_decoder
from ..store.base import CloseQuestion, EventRow, PutQuestion, RunRow, Sealed
from .ids import now

if TYPE_CHECKING:
    from .log import LiveLog
    from .worker import Worker

_KEEP_EVENTS = 512  # that were heard of, per run that is read here
_KEEP_BYTES = 2 * 1024 * 1024

ANYBODY = ""
"""Who owns a run is not known."""

_rows_out = msgspec.msgpack.Encoder()
_rows_in = msgspec.msgpack.Decoder(list[EventRow])


class Mirror:
    """The newest events of a run that is elsewhere, as its owner told them: without gaps, and never more than that.

    What is not in here is in the store, and so is what is: an owner tells only what it has committed.
    """

    def __init__(self, run: str, sweep_every: float, closed: Callable[[Mirror], None]) -> None:
        self.run = run
        self.looks = 0  # raised when readers should look in the store
        self.hinted = 0  # what that was when somebody had said so
        self.readers = 0
        self.end: Callable[[], None] = lambda: None
        self._recent: deque[Event] = deque()
        self._bytes = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._sweep_every = sweep_every
        self._closed = closed
        self._timer = asyncio.get_running_loop().call_later(sweep_every, self._sweep)

    def hear(self, news: News) -> None:
        known = self._recent[-1].seq if self._recent else 0
        if news.rows:
            if news.last > known:
                self._extend(_rows_in.decode(news.rows), known)
                self._wake()
        elif news.last < 0 or news.last > known:
            self.looks += 1
            self.hinted = self.looks
            self._wake()

    def _extend(self, rows: list[EventRow], known: int) -> None:
        if rows[0].seq > known + 1:
            self._recent.clear()  # something is missing before these: who has not read it finds it in the store
            self._bytes = 0
        for row in rows:
            if row.seq > known and row.body is not None:
                body = body_decoder.decode(row.body)
                self._recent.append(Event(row.run, row.seq, row.time, row.hash, body, row.seq, len(row.body)))
                self._bytes += len(row.body)
        while len(self._recent) > 1 and (len(self._recent) > _KEEP_EVENTS or self._bytes > _KEEP_BYTES):
            self._bytes -= self._recent.popleft().size

    def since(self, seq: int) -> list[Event] | None:
        """What was told after `seq`; None where something before that was not."""
        recent = self._recent
        if not recent or recent[-1].seq <= seq:
            return []
        if recent[0].seq > seq + 1:
            return None
        skip = seq + 1 - recent[0].seq
        return [recent[place] for place in range(skip, len(recent))] if skip else list(recent)

    def changed(self) -> asyncio.Future[None]:
        """Done when there is news, or when it is time to look anyway."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        future.add_done_callback(self._waiters.discard)
        return future

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _sweep(self) -> None:
        self.looks += 1  # hints may get lost: look anyway
        self._wake()
        self._timer = asyncio.get_running_loop().call_later(self._sweep_every, self._sweep)

    def leave(self) -> None:
        """One reader less."""
        self.readers -= 1
        if not self.readers:
            self._timer.cancel()
            self._closed(self)


class Between:
    """The ear of this process, and its voice."""

    def __init__(self, worker: Worker, bus: RemoteBus) -> None:
        self._worker = worker
        self._bus = bus
        self._started_at = now()
        self._mirrors: dict[str, Mirror] = {}
        self._slot = asyncio.Event()

    @property
    def worker(self) -> str:
        return self._worker.id

    def start(self) -> None:
        self._bus.attach(self)
        self.agents_changed()

    def stop(self) -> None:
        self._bus.detach()

    def agents_changed(self) -> None:
        self._bus.take(self._worker.registry.keys())

    def presence(self) -> Presence:
        worker = self._worker
        return Presence(
            worker.id, socket.gethostname(), os.getpid(), worker.registry.keys(), worker.running, max(0, worker.room),
            self._started_at,
        )  # fmt: skip

    # -- events -------------------------------------------------------------------------------------------

    def committed(self, run: str, sealed: Sealed | None) -> None:
        """Something of a run that is here is on disk, or was refused."""
        if sealed is not None and any(isinstance(change, PutQuestion | CloseQuestion) for change in sealed.changes):
            self.questions_changed()
        if sealed is None or not sealed.events or not self._bus.wanted(run):
            self._bus.publish(run)
            return
        events = sealed.events
        self._bus.publish_events(run, events[0].seq, events[-1].seq, _rows_out.encode(events))

    def watched(self, run: str) -> None:
        log = self._worker.log_of(run)
        if log is not None:
            self._tell_head(log)

    def _tell_head(self, log: LiveLog) -> None:
        """What was committed before anybody there listened is not told again: they look, if that is more than they
        have."""
        self._bus.publish_events(log.row.id, 0, log.committed_seq, b"")

    def mirror(self, run: str) -> Mirror:
        """For a reader of a run that is elsewhere, who leaves it in the end."""
        mirror = self._mirrors.get(run)
        if mirror is None:
            mirror = self._mirrors[run] = Mirror(run, self._worker.settings.sweep_every, self._close)
            mirror.end = self._bus.follow(run, partial(self._heard, mirror))
        mirror.readers += 1
        return mirror

    def _heard(self, mirror: Mirror, news: News) -> None:
        if news.rows:  # two clocks may differ: what seems to come from the future came at once
            self._worker.meters.told.add(max(0, now() - news.sent) / 1e6)
        mirror.hear(news)

    def _close(self, mirror: Mirror) -> None:
        mirror.end()
        del self._mirrors[mirror.run]

    def questions_changed(self) -> None:
        self._bus.publish(QUESTIONS)

    # -- inboxes ------------------------------------------------------------------------------------------

    def tell(self, run: str, owner: str | None) -> None:
        """Something is in the inbox of a run that is not here."""
        if owner is not None and owner != self._worker.id:
            self._bus.tell(owner or None, run)
        if not owner or owner == self._worker.id:
            self._bus.publish(WORK)

    def told(self, run: str) -> None:
        self._worker.heard(run)

    def missed(self) -> None:
        self._worker.foreign_change()

    # -- work ---------------------------------------------------------------------------------------------

    def submitted(self, row: RunRow) -> None:
        """A run was accepted here, and does not run here."""
        due = row.worker is None and row.queued is None and row.wake_at == 0
        if due and self._bus.hand_out(f"{row.agent}@{row.version}", row.id, row.epoch):
            self._worker.look()
        else:
            self._bus.publish(WORK)

    async def room(self, agent: str) -> None:
        while not self._worker.may_claim(agent):
            self._slot.clear()
            # Slots also become free where nobody says so: agents that begin to wait.
            try:
                async with asyncio.timeout(self._worker.settings.sweep_every):
                    await self._slot.wait()
            except TimeoutError:
                pass

    def slot_free(self) -> None:
        self._slot.set()

    async def offered(self, agent: str, run: str, *, again: bool) -> bool:
        if again:  # somebody may have taken it: that is seen at less cost than a claim
            row = await self._worker.store.run(run)
            if row is None or row.worker is not None or row.status.final:
                return True
        return await self._worker.claim_for(agent)
