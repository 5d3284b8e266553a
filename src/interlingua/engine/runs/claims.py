"""Claims: this worker takes runs that are due, and hands back what dead workers and lost answers left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ...bus.port import WORK, Bus
from ...runtime.clock import Clock
from ...store.ports import Store
from ...store.rows import SUSPECT, BlockedLine, Found, RunRow
from ..agents.agent import Registry
from ..execution.entry import Entry
from ..settings import Settings
from .blocked_runs import BlockedRuns
from .concurrency_limits import ConcurrencyLimits
from .inbox_router import InboxRouter

log = logging.getLogger("interlingua.engine")

_CLAIM_AT_ONCE = 200
_ORPHANED = 10.0  # seconds
_NOTHING_DUE = 60.0  # seconds until the next look


class Claimer(Protocol):
    """The worker that claims runs."""

    @property
    def id(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def bus(self) -> Bus: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def limits(self) -> ConcurrencyLimits: ...

    @property
    def inbox(self) -> InboxRouter: ...

    async def enter(self, entry: Entry) -> None:
        """Starts the execution of a claimed run, or hands the run back."""

    def is_here(self, run: str) -> bool: ...

    @property
    def on_workers_died(self) -> Callable[[], None]:
        """Called when dead workers were found."""


class Claims:
    def __init__(self, worker: Claimer) -> None:
        self._worker = worker
        self.blocked = BlockedRuns(self, worker.store, worker.registry, worker.settings)
        self._ready = asyncio.Event()
        self._orphans: dict[str, float] = {}  # owned in the store, not executed here: since when
        self._turns: dict[str, int] = {}  # number of the last claim from each queue: queues take turns
        self._turn = 0
        self._suspects: set[str] = set()  # suspected runs that are here; the next one is claimed when they are gone

    def wake(self) -> None:
        """Looks for due runs soon, in this process only."""
        self._ready.set()

    def no_suspect(self, run: str) -> None:
        """Notes that a run is no longer suspected of ending its process, or has left this worker."""
        if run in self._suspects:
            self._suspects.discard(run)
            self._ready.set()  # the next suspect may be claimed

    async def follow(self) -> None:
        """Claims due runs whenever there may be some."""
        while True:
            wait = self._worker.settings.sweep_every  # hints may get lost
            try:
                wait = min(wait, await self.claim_due(), await self.blocked.claim_some())
            except Exception as error:
                log.error("could not claim runs: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):  # not wait_for: on 3.11 that can swallow a cancellation
                    await self._ready.wait()
            self._ready.clear()

    async def claim_due(self) -> float:
        """Claims due runs. Returns the seconds until the next look."""
        worker = self._worker
        if not worker.settings.max_running:
            return _NOTHING_DUE  # this process executes no runs
        while True:
            queues = sorted(worker.registry.queues(), key=lambda queue: self._turns.get(queue, 0))
            if not queues:
                return _NOTHING_DUE
            limits = worker.limits
            queues = limits.with_room(queues)  # full ones are looked at when a slot gets free
            due = await worker.store.claims.next_wake(queues)  # a read: most of the time there is nothing to claim
            time = worker.clock.now()
            if due is None or due > time:
                limits.line_is_empty(queues)
                return _NOTHING_DUE if due is None else min(_NOTHING_DUE, (due - time) / 1e6)
            limits.starved = not limits.has_room
            if limits.starved:
                return _NOTHING_DUE
            if not await self._claim_and_enter(queues):
                # Only suspects are left, and one executes; or others are about to take what was due.
                return worker.settings.sweep_every if self._suspects else 0.05

    async def _claim_and_enter(self, queues: list[str]) -> int:
        """Claims as many runs as there are slots, and enters them. Returns their number."""
        limits = self._worker.limits
        room = min(limits.room, _CLAIM_AT_ONCE)
        at_most = limits.rooms(queues)
        slots = [limits.reserve(some[0]) for some, places in at_most for _ in range(min(places, room))]
        beside = max(0, room - len(slots))
        limits.reserved += beside
        try:
            rows, entries = await self._claim(queues, room, at_most)
        finally:
            limits.reserved -= beside
            for free in slots:
                free()
        if len(entries) < len(rows):
            self._worker.inbox.store_changed()  # the runs that have to give way may be here
        await self.enter(entries)
        return len(rows)

    async def claim_for(self, queue: str, most: int) -> list[Entry]:
        """Claims runs of one queue. The caller has reserved slots for them, and enters them."""
        _, entries = await self._claim([queue], most)
        return entries

    async def _claim(
        self, queues: list[str], room: int, at_most: Sequence[tuple[Sequence[str], int]] = ()
    ) -> tuple[list[RunRow], list[Entry]]:
        """Claims due runs. Returns all rows that changed, also of runs that were not claimed."""
        worker, found = self._worker, dict[str, Found]()
        with worker.inbox.claiming() as entries:
            rows = await worker.store.claims.claim(
                worker.id, queues, worker.clock.now(), room, at_most=at_most, found=found
            )
            for row in rows:
                if row.worker is not None:
                    known = found.get(row.id)
                    entry = Entry(row) if known is None else Entry(row, known.events, inbox_empty=not known.news)
                    entries.append(entry)
        self._count_turns(entries)
        return rows, entries

    def _count_turns(self, entries: list[Entry]) -> None:
        self._turn += 1
        for entry in entries:
            self._turns[entry.row.queue] = self._turn
            if entry.row.crashes >= SUSPECT:
                self._suspects.add(entry.row.id)

    async def enter(self, entries: list[Entry]) -> None:
        """Enters claimed runs, one after the other, and keeps slots for the rest."""
        worker = self._worker
        slots: dict[str, Callable[[], None]] = {
            entry.row.id: worker.limits.reserve(entry.row.queue) for entry in entries
        }
        try:
            for entry in entries:
                slots.pop(entry.row.id)()
                await worker.enter(entry)
        finally:
            for free in slots.values():
                free()
            for entry in entries:
                worker.inbox.coming.pop(entry.row.id, None)

    async def claim_blocked(self, line: BlockedLine, most: int, *, due: bool) -> int:
        """Claims runs that other code could not continue, and enters them. Returns their number."""
        worker, limits = self._worker, self._worker.limits
        limit = limits.of_queue(line.queue)
        room = min(limits.room, most, limit.room if limit is not None else most) if limits.has_room else 0
        if room <= 0:
            return 0
        slots = [limits.reserve(line.queue) for _ in range(room)]
        try:
            with worker.inbox.claiming() as entries:
                rows = await worker.store.claims.claim_blocked(worker.id, line, worker.clock.now(), room, due=due)
                entries.extend(Entry(row) for row in rows if row.worker is not None)
        finally:
            for free in slots:
                free()
        self._count_turns(entries)
        await self.enter(entries)
        return len(rows)

    async def claim_one(self, run: str) -> None:
        """Claims a run without an owner, to end it. That needs no code of its agent."""
        worker = self._worker
        with worker.inbox.claiming() as entries:
            row = await worker.store.claims.claim_one(worker.id, run)
            if row is not None:
                entries.append(Entry(row))
        for entry in entries:
            await worker.enter(entry)

    async def bury_dead(self) -> None:
        """Hands back the runs of workers that died."""
        if dead := await self._worker.store.claims.bury():
            log.warning("worker %s died; its runs are resumed by others", ", ".join(dead))
            self._worker.bus.publish(WORK)  # a process with the agents of those runs may not have noticed
            self._worker.on_workers_died()

    async def find_orphans(self) -> None:
        """Hands back runs that this worker owns in the store but does not execute, as after a refused write."""
        worker = self._worker
        owned = await worker.store.claims.owned(worker.id)
        time = worker.clock.monotonic()
        self._orphans = {run: self._orphans.get(run, time) for run in owned if not worker.is_here(run)}
        lost = [run for run, since in self._orphans.items() if time - since > _ORPHANED]
        if lost:
            await worker.store.claims.release(worker.id, lost)
            worker.bus.publish(WORK)


def is_cleared(row: RunRow) -> bool:
    """Returns True if a suspect did not end its process: it made a record, waits, or has ended."""
    return row.crashes < SUSPECT or row.worker is None
