"""Between processes: what this worker tells others through a remote bus, and what it makes of what they tell.

Nothing here is needed for anything to happen: the store has it all, and whoever hears nothing looks there.
"""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ...bus.port import QUESTIONS, WORK, News, Presence, RemoteBus
from ...model.events import Event, RunCreated
from ...store.changes import CloseQuestion, PutQuestion, Sealed
from ...store.rows import EventRow, RunRow
from ..ids import now
from ..observe import tracing
from ..observe.run_metrics import Why
from .remote_log import About, Mirror

if TYPE_CHECKING:
    from ..log.run_log import LiveLog
    from ..runs.worker import Worker

ANYBODY = ""
"""Who owns a run is not known."""

_rows_out = msgspec.msgpack.Encoder()


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
        for mirror in list(self._mirrors.values()):
            mirror.let_go()

    def agents_changed(self) -> None:
        self._bus.take(self._worker.registry.queues())

    def presence(self) -> Presence:
        worker = self._worker
        return Presence(
            worker.id, socket.gethostname(), os.getpid(), worker.registry.queues(), worker.running, max(0, worker.room),
            self._started_at,
        )  # fmt: skip

    # -- events -------------------------------------------------------------------------------------------

    def committed(self, run: str, sealed: Sealed | None) -> None:
        """Something of a run that is here is on disk, or was refused."""
        if (mirror := self._mirrors.get(run)) is not None:
            mirror.wake()  # it was elsewhere when somebody began to read it
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

    def mirror(self, run: str, about: About) -> Mirror:
        """For a reader of a run that is elsewhere, who leaves it in the end."""
        mirror = self._mirrors.get(run)
        if mirror is None:
            mirror = self._mirrors[run] = Mirror(run, about, self._worker.settings.sweep_every, self._close)
            mirror.end = self._bus.follow(run, partial(self._heard, mirror))
        mirror.readers += 1
        return mirror

    def expect(self, row: RunRow, created: RunCreated, first: EventRow) -> Mirror:
        """A run is being submitted here that will run elsewhere, and be read here from its beginning: it is listened
        to before anybody can take it, so that nothing of it need be looked for. Ends by itself after a while."""
        mirror = self.mirror(row.id, About.asked(created.request))
        size = len(first.body) if first.body is not None else 0
        mirror.begin(Event(row.id, first.seq, first.time, first.hash, created, first.seq, size))
        mirror.submitted, mirror.held = (row, created), True
        return mirror

    def expected(self, run: str) -> Mirror | None:
        """Of a run that was submitted so, a moment ago."""
        mirror = self._mirrors.get(run)
        return mirror if mirror is not None and mirror.submitted is not None else None

    def at_hand(self, run: str) -> list[Event] | None:
        """All events of such a run, where all were told."""
        mirror = self.expected(run)
        return mirror.since(0) if mirror is not None else None

    def _heard(self, mirror: Mirror, news: News) -> None:
        if news.rows:  # two clocks may differ: what seems to come from the future came at once
            late = max(0, now() - news.sent) / 1e6
            self._worker.meters.told(mirror.about.agent, mirror.about.caller, late)
            if mirror.lag is not None:
                mirror.lag.add(late)
        mirror.hear(news)

    def found_in_store(self, mirror: Mirror, why: Why) -> None:
        """A reader found events there that the owner of the run should have told."""
        self._worker.meters.found_in_store(mirror.about.agent, mirror.about.caller, why)
        if mirror.lag is not None:
            mirror.lag.from_store += 1

    def _close(self, mirror: Mirror) -> None:
        mirror.end()
        del self._mirrors[mirror.run]
        if mirror.lag is not None:
            tracing.followed(mirror.run, mirror.about, mirror.lag)

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
        if due and self._bus.hand_out(row.queue, row.id, row.epoch):
            self._worker.look()
        else:
            self._bus.publish(WORK)

    async def room(self, queue: str) -> None:
        while not self._worker.may_claim(queue):
            self._slot.clear()
            # Slots also become free where nobody says so: agents that begin to wait.
            try:
                async with asyncio.timeout(self._worker.settings.sweep_every):
                    await self._slot.wait()
            except TimeoutError:
                pass

    def slot_free(self) -> None:
        self._slot.set()

    async def offered(self, queue: str, run: str, *, again: bool) -> bool:
        if again:  # somebody may have taken it: that is seen at less cost than a claim
            row = await self._worker.store.runs.get(run)
            if row is None or row.worker is not None or row.status.final:
                return True
        return await self._worker.offers.take(queue)
