"""The link to other processes: tells them of this worker's runs over a remote bus, and applies what they tell.

Nothing depends on it: the store has everything, and a process that hears nothing looks there.
"""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ...bus.port import QUESTIONS, WORK, ClusterBus, CommittedEvents, Presence
from ...model.events import Event, RunCreated
from ...store.changes import CloseQuestion, PutQuestion, Sealed
from ...store.rows import EventRow, RunRow
from ..observe import tracing
from ..observe.run_metrics import RunLabels
from .remote_log import RemoteLog
from .work_offers import WorkOffers

if TYPE_CHECKING:
    from ..log.run_log import RunLog
    from ..runs.worker import Worker

_rows_out = msgspec.msgpack.Encoder()


class ClusterLink:
    """Publishes this worker's committed events on the bus, and applies those of others."""

    def __init__(self, worker: Worker, bus: ClusterBus) -> None:
        self._worker = worker
        self._bus = bus
        self._started_at = worker.clock.now()
        self._remote_logs: dict[str, RemoteLog] = {}
        self._slot = asyncio.Event()
        self.offers = WorkOffers(worker)

    @property
    def worker(self) -> str:
        return self._worker.id

    def start(self) -> None:
        self._bus.attach(self)
        self.agents_changed()

    def stop(self) -> None:
        self._bus.detach()
        for remote in list(self._remote_logs.values()):
            remote.release()

    def handed_back(self) -> None:
        self._bus.publish(WORK)  # other workers may claim the returned runs

    def agents_changed(self) -> None:
        self._bus.serve(self._worker.registry.queues())

    def presence(self) -> Presence:
        worker = self._worker
        return Presence(
            worker.id, socket.gethostname(), os.getpid(), worker.registry.queues(), worker.running,
            max(0, worker.limits.room), self._started_at,
        )  # fmt: skip

    # -- events -------------------------------------------------------------------------------------------

    def committed(self, run: str, sealed: Sealed | None) -> None:
        if (remote := self._remote_logs.get(run)) is not None:
            remote.wake()  # the run was elsewhere when a reader of this process began
        if sealed is not None and any(isinstance(change, PutQuestion | CloseQuestion) for change in sealed.changes):
            self.questions_changed()
        if sealed is None or not sealed.events or not self._bus.has_readers(run):
            self._bus.publish(run)
            return
        events = sealed.events
        self._bus.publish_events(run, events[0].seq, events[-1].seq, _rows_out.encode(events))

    def reader_joined(self, run: str) -> None:
        log = self._worker.log_of(run)
        if log is not None:
            self._tell_head(log)

    def _tell_head(self, log: RunLog) -> None:
        """Publishes the length of a log to a new reader, which reads earlier events from the store."""
        self._bus.publish_events(log.row.id, 0, log.committed_seq, b"")

    async def remote_log(self, run: str, about: RunLabels | None = None) -> RemoteLog:
        known = self._remote_logs.get(run)
        if known is not None:
            about = known.about
        elif about is None:
            first = await self._worker.store.runs.events(run, 0, 1)
            about = RunLabels.of(first[0]) if first else RunLabels()
        return self._open(run, about)

    def _open(self, run: str, about: RunLabels) -> RemoteLog:
        remote = self._remote_logs.get(run)
        if remote is None:
            remote = RemoteLog(run, about, self._worker.clock, self._worker.settings.sweep_every, self._close)
            self._remote_logs[run] = remote
            remote.end = self._bus.follow(run, partial(self._receive, remote))
        remote.readers += 1
        return remote

    def follow_new(self, row: RunRow, created: RunCreated, first: EventRow) -> RemoteLog:
        """Opens a remote log for a new run. It closes by itself if no reader comes."""
        remote = self._open(row.id, RunLabels.asked(created.request))
        size = len(first.body) if first.body is not None else 0
        remote.begin(Event(row.id, first.seq, first.time, first.hash, created, first.seq, size))
        remote.submitted, remote.held = (row, created), True
        return remote

    def followed(self, run: str) -> RemoteLog | None:
        remote = self._remote_logs.get(run)
        return remote if remote is not None and remote.submitted is not None else None

    def _receive(self, remote: RemoteLog, news: CommittedEvents) -> None:
        if news.rows:  # clocks may differ: a message from the future counts as immediate
            late = max(0, self._worker.clock.now() - news.sent) / 1e6
            self._worker.meters.delivered(remote.about.agent, remote.about.caller, late)
            if remote.lag is not None:
                remote.lag.add(late)
        remote.receive(news)

    def _close(self, remote: RemoteLog) -> None:
        remote.end()
        del self._remote_logs[remote.run]
        if remote.lag is not None:
            tracing.followed(remote.run, remote.about, remote.lag)

    def questions_changed(self) -> None:
        self._bus.publish(QUESTIONS)

    # -- inboxes ------------------------------------------------------------------------------------------

    def tell_owner(self, run: str, owner: str | None) -> None:
        if owner is not None and owner != self._worker.id:
            self._bus.notify_owner(owner or None, run)
        if not owner or owner == self._worker.id:
            self._bus.publish(WORK)

    def inbox_changed(self, run: str) -> None:
        self._worker.notify_from_bus(run)

    def missed(self) -> None:
        self._worker.store_changed()

    # -- work ---------------------------------------------------------------------------------------------

    def offer(self, row: RunRow) -> None:
        due = row.worker is None and row.queued is None and row.wake_at == 0
        if due and self._bus.offer(row.queue, row.id, row.epoch):
            self._worker.claims.wake()
        else:
            self._bus.publish(WORK)

    async def wait_for_slot(self, queue: str) -> None:
        while not self._worker.limits.may_claim(queue):
            self._slot.clear()
            # Slots also become free without a signal, when agents start to wait.
            try:
                async with asyncio.timeout(self._worker.settings.sweep_every):
                    await self._slot.wait()
            except TimeoutError:
                pass

    def slot_free(self) -> None:
        self._slot.set()

    async def offered(self, queue: str, run: str, *, again: bool) -> bool:
        if again:  # another worker may own it: this check costs less than a claim
            row = await self._worker.store.runs.get(run)
            if row is None or row.worker is not None or row.status.final:
                return True
        return await self.offers.take(queue)
