"""The worker of this process: claims runs, enters and leaves them, and takes up what dead workers left.

A worker, not a run, holds the lease. It claims only runs of agents whose code it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..bus.base import WORK, Bus, RemoteBus
from ..model.errors import Conflict, ErrorInfo, InterlinguaError, NotFound
from ..model.events import Event, RunCreated
from ..model.status import Status
from ..store.base import (
    SUSPECT,
    CommitThread,
    DeleteRun,
    EventRow,
    Fenced,
    Found,
    InboxItem,
    PutCallback,
    PutInbox,
    PutQuestion,
    RunRow,
    Sealed,
    Store,
    Submitted,
    WorkerRow,
)
from . import runlog
from .agents import Agent, Registry
from .between import ANYBODY, Between
from .execution import Execution
from .gates import Gate, Gates
from .ids import new_id, now
from .listening import Listeners
from .log import LiveLog
from .meters import Meters
from .offers import Offers
from .process import ProcessPool
from .replay import Replay
from .settings import Settings

if TYPE_CHECKING:
    from .engine import Engine

log_ = logging.getLogger("interlingua.engine")

T = TypeVar("T")

_CLAIM_AT_ONCE = 200
_ORPHANED = 10.0  # seconds
_WATCHED = 5.0  # seconds that a suspect has for bringing the process down
_PAGE = 2000


class Worker:
    def __init__(self, engine: Engine, store: Store, bus: Bus, registry: Registry, settings: Settings) -> None:
        self.engine = engine
        self.store = store
        self.bus = bus
        self.registry = registry
        self.settings = settings
        self.id = new_id()
        self.running = 0  # handlers that are entered
        self.reserved = 0  # slots for runs that are being claimed
        self.threads = 0  # plain functions that are running
        self.abandoned = 0  # handlers that would not stop
        self.gates = Gates(registry, settings.agents)
        self.listeners = Listeners(settings.max_listening)
        self.meters = Meters()
        self.processes = ProcessPool(settings.processes)
        self.others = Between(self, bus) if isinstance(bus, RemoteBus) else None
        self._executions: dict[str, Execution] = {}
        self._finished: OrderedDict[str, LiveLog] = OrderedDict()
        self._finished_bytes = 0
        self._ready = asyncio.Event()
        self._foreign = asyncio.Event()
        self.foreign: list[Callable[[], None]] = []  # called, too, when others wrote, or may have
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[Any]] = []
        self.idle = 0  # of the entered ones: those that only wait
        self.thread_slots = asyncio.Semaphore(settings.max_sync_threads)
        self._entering: set[str] = set()  # claimed, and on their way in
        self._on_the_way: dict[str, Found] = {}  # of those: what there was of them when they were claimed
        self._claims_under_way = 0
        self._unread: set[str] = set()  # runs that are not here, and had news while some were being claimed
        self.offers = Offers(self)
        self._expected: dict[str, bool] = {}  # being submitted here, and whether there is news for them
        self._orphans: dict[str, float] = {}  # owned on paper, and not here: since when
        self._stopping = False
        self._starved = False  # runs are waiting for a slot
        self._served: dict[str, int] = {}  # agents whose runs were claimed, by when that was: they take turns, too
        self._claims = 0
        self._suspect: Execution | None = None
        self._suspect_since = 0.0

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._enter_store()
        self._end_subscription = self.bus.subscribe(WORK, self._ready.set)
        await self._bury()
        self._ready.set()
        self._loops = [
            asyncio.create_task(self._claim_loop()),
            asyncio.create_task(self._sweep_loop()),
            asyncio.create_task(self._foreign_loop()),
        ]
        if self.others is not None:
            self.others.start()

    async def stop(self) -> None:
        """Finish what can be finished, and hand back the rest."""
        self._stopping = True
        if self.others is not None:
            self.others.stop()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._end_subscription()
        while self._entering and self._tasks:  # what is on its way in is let in, and handed back with the others
            await asyncio.wait(self._tasks, timeout=0.1)
        deadline = asyncio.get_running_loop().time() + self.settings.shutdown_grace
        while self._working() and (left := deadline - asyncio.get_running_loop().time()) > 0:
            tasks = [e.task for e in self._working() if e.task is not None]
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        # What was acknowledged is taken in before anything is handed back: a cancelled run ends here, as cancelled.
        await asyncio.gather(*(e.pull() for e in list(self._executions.values())), return_exceptions=True)
        for execution in list(self._executions.values()):
            execution.leave("hand_back")
        deadline = asyncio.get_running_loop().time() + self.settings.cancel_grace + 1
        while self._executions and asyncio.get_running_loop().time() < deadline:
            live = list(self._executions.values())
            tasks = [e.task for e in live if e.task is not None and not e.over]
            if tasks:
                await asyncio.wait(tasks, timeout=0.1)
            await asyncio.gather(*(e.log.flush() for e in live), return_exceptions=True)
            await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.processes.close()
        await self.store.leave(self.id)
        if self.others is not None:
            self.bus.publish(WORK)  # what was handed back waits for others

    def _working(self) -> list[Execution]:
        """Handlers that do something now: those that only wait are handed back at once."""
        return [
            e for e in self._executions.values()
            if not e.over and e.task is not None and not e.task.done() and not (e.blocked and not e.active)
        ]  # fmt: skip

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_.error("background work failed", exc_info=error)

    # -- what is here -------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.room > 0 and not self._stopping

    def may_start(self, agent: Agent[..., Any]) -> bool:
        """Whether a new run may start here without getting in line: nobody is waiting for the slot."""
        if self._starved or not self.has_room:
            return False
        gate = self.gates.of_agent(agent)
        return gate is None or (gate.room > 0 and not gate.lined)

    def may_claim(self, agent: str) -> bool:
        """Whether there is a slot for a run of this agent (NAME@VERSION)."""
        gate = self.gates.of(agent)
        return self.has_room and (gate is None or gate.room > 0)

    def reserve(self, agent: str) -> Callable[[], None]:
        """Keep a slot for a run that is being claimed, until what is given back is called."""
        gate = self.gates.of(agent)
        self.reserved += 1
        if gate is not None:
            gate.take()

        def let_go() -> None:
            self.reserved -= 1
            if gate is not None:
                gate.free()

        return let_go

    @property
    def room(self) -> int:
        """Slots that are free. Agents that only wait take none."""
        return self.settings.max_running - (self.running - self.idle) - self.reserved

    def execution(self, run: str) -> Execution | None:
        return self._executions.get(run)

    def log_of(self, run: str) -> LiveLog | None:
        """The log of a run that is here, or that finished here a moment ago."""
        execution = self._executions.get(run)
        return execution.log if execution is not None else self._finished.get(run)

    def _keep(self, run: str, log: LiveLog) -> None:
        """For readers that come soon. Bounded in number and in bytes: the store has them all."""
        self._finished[run] = log
        self._finished_bytes += log.bytes
        limits = self.settings
        while self._finished and (
            len(self._finished) > limits.keep_finished or self._finished_bytes > limits.keep_finished_bytes
        ):
            self.forget(next(iter(self._finished)))

    def forget(self, run: str) -> None:
        log = self._finished.pop(run, None)
        if log is not None:
            self._finished_bytes -= log.bytes

    def _forget_under(self, path: str) -> None:
        """The runs that a run has called: they are forgotten with it."""
        for run in [run for run, log in self._finished.items() if log.row.path.startswith(path)]:
            self.forget(run)

    @staticmethod
    def path_of(row: RunRow) -> str:
        return f"{row.path or '/'}{row.id}/"

    # -- entering -----------------------------------------------------------------------------------------

    def enter_fresh(self, execution: Execution) -> None:
        """A run that was just made here, and is in no store yet."""
        self._executions[execution.log.row.id] = execution
        self.running += 1
        execution.gate = self._gate(execution.log.row)
        execution.fresh = execution.submitted is None
        execution.start()

    def _gate(self, row: RunRow) -> Gate | None:
        """Where the runs of its agent are counted, with one more of them."""
        gate = self.gates.of(f"{row.agent}@{row.version}") if self.gates.any else None
        if gate is not None:
            gate.take()
        return gate

    def expect(self, run: str) -> None:
        """A run is being submitted that may start here at once: news for it is noted from now on."""
        self._expected[run] = False

    def unexpect(self, run: str) -> None:
        self._expected.pop(run, None)

    def enter_submitted(self, done: Submitted, created: RunCreated, first: EventRow, agent: Agent[..., Any]) -> None:
        """A run that was submitted and claimed in one transaction: all that is known of it is known here."""
        row = copy.copy(done.row)  # the log's own row runs ahead of what the submitter is told
        log = LiveLog(self.store, row, in_store=True)
        log.created = created
        log.recent.append(Event(row.id, first.seq, first.time, first.hash, created))
        log.committed_row = done.row
        replay = Replay()
        replay.created = created
        execution = Execution(self, agent, log, replay)
        execution.submitted = done
        self._executions[row.id] = execution
        self.running += 1
        execution.gate = self._gate(row)
        execution.start()
        if self._expected.pop(row.id, True):  # where nobody noted news any more, there may be some
            self.spawn(execution.pull())

    async def enter(self, row: RunRow, found: Found | None = None) -> Execution | None:
        """A run that this worker has just claimed. None where it could not be entered: it is handed back then."""
        self._entering.add(row.id)
        self.running += 1
        gate = self._gate(row)
        try:
            return await self._enter(row, gate, found)
        except BaseException as error:
            self.running -= 1
            if gate is not None:
                gate.free()
            self.hand_back_soon(row.id, error)
            if not isinstance(error, Exception):
                raise
            log_.error("run %s could not be entered: %s", row.id, error)
            return None
        finally:
            self._entering.discard(row.id)

    async def _enter(self, row: RunRow, gate: Gate | None, found: Found | None) -> Execution:
        events = found.events if found is not None else await self.all_events(row.id)
        log = LiveLog(self.store, row, in_store=True)
        log.recent.extend(events[-64:])
        log.committed_row = copy.copy(row)  # the log's own row runs ahead of what is committed
        replay = Replay.of(events)
        agent = self.registry.code(row.agent, row.version)
        execution = Execution(self, agent, log, replay)
        starts = row.created_at + int(execution.request.delay * 1e6)
        early = not replay.started and starts > now()
        if early and any(item.kind == "cancel" for item in await self.store.inbox(run=row.id)):
            early = False
        self._executions[row.id] = execution
        self._on_the_way.pop(row.id, None)  # news reaches it from now on
        execution.gate = gate
        if row.crashes:
            execution.taken_over_from = events[-1].time
        execution.nothing_came = found is not None and not found.news
        if early:
            execution._set_aside(starts)
        else:
            execution.start()
        return execution

    def hand_back_soon(self, run: str, error: BaseException) -> None:
        """Give up a run that could not be handled here. It counts as a crash: one that never works must end."""
        self._executions.pop(run, None)
        crashed = isinstance(error, Exception) and not isinstance(error, InterlinguaError)
        if not self._stopping:
            self.spawn(self.store.release(self.id, [run], crashed=crashed))

    async def all_events(self, run: str) -> list[Event]:
        events: list[Event] = []
        while True:
            page = await self.store.events(run, len(events), _PAGE)
            events.extend(page)
            if len(page) < _PAGE:
                return events

    def ended(self, execution: Execution) -> None:
        self.running -= 1
        self.listeners.left(execution)
        gate, execution.gate = execution.gate, None
        if gate is not None:
            gate.free()
        self.slot_free(gate)

    def slot_free(self, gate: Gate | None) -> None:
        """An agent has ended here, or begins to wait."""
        if self._starved or (gate is not None and gate.lined):
            self._ready.set()
        if self.others is not None:
            self.others.slot_free()

    def on_commit(self, log: LiveLog, sealed: Sealed | None) -> None:
        run = log.row.id
        execution = self._executions.get(run)
        if execution is not None and execution.log is not log:
            execution = None  # an owner from before: the run has been taken up again since
        if log.lost is not None and execution is not None:
            execution.after_refusal(log.lost)
        if execution is not None and execution.over and log.settled:
            del self._executions[run]
            log.wake_readers()
            if log.finished is not None:
                if execution.rollback or (sealed is not None and sealed.forgotten):
                    self._forget_under(self.path_of(log.row))
                else:
                    self._keep(run, log)
                caller = execution.request.caller
                self.meters.finished(log.row.agent, caller, log.finished.status, log.row.ran / 1e6)
            else:
                self._ready.set()  # something may have come in while it was being set aside
        if self.others is None:
            self.bus.publish(run)
        else:
            self.others.committed(run, sealed if log.lost is None else None)
        if sealed is not None and log.lost is None:
            runlog.committed(sealed)
        for change in sealed.changes if sealed is not None else ():
            if isinstance(change, PutInbox):
                self.told(change.run, change if log.lost is None else None)
            elif isinstance(change, CommitThread):
                if change.passed_on:
                    self._ready.set()
            elif isinstance(change, DeleteRun):
                self._ready.set()  # its thread went to the next in line with it
            elif isinstance(change, PutCallback):
                self.engine.callbacks.hint()
            elif isinstance(change, PutQuestion) and change.remind:
                self.engine.reminders.hint()

    def told(self, run: str, news: PutInbox | None = None, owner: str | None = ANYBODY) -> None:
        """Something was put into a run's inbox. `news`: what, where that is known; it need not be read then. `owner`:
        the worker that has the run, where that is known; None: no worker has it."""
        execution = self._executions.get(run)
        if execution is not None and not execution.over:
            if news is None or not news.id or not execution.take(InboxItem(news.id, run, news.kind, news.body)):
                execution.pull_soon()
        elif run in self._expected:
            self._expected[run] = True
        elif self.others is None:
            self.bus.publish(WORK)
        else:
            self.others.tell(run, owner)

    def heard(self, run: str) -> None:
        """As `told`, by another process."""
        execution = self._executions.get(run)
        if execution is not None and not execution.over:
            execution.pull_soon()
        elif run in self._expected:
            self._expected[run] = True
        else:
            self._note_unread(run)
            if run in self._entering:
                self._foreign.set()
            else:
                self._ready.set()  # it may have been handed back, or set aside, a moment ago

    def _note_unread(self, run: str) -> None:
        """There is news for a run that may be about to come in: what was found of it when it was claimed is not all."""
        if self._claims_under_way:
            self._unread.add(run)
        if (found := self._on_the_way.get(run)) is not None:
            found.news = True

    def look(self) -> None:
        """There may be runs to claim. Nobody else needs to know."""
        self._ready.set()

    def cancel_soon(self, run: str, reason: str) -> None:
        async def cancel() -> None:
            with contextlib.suppress(NotFound, Conflict):
                await self.engine.cancel(run, reason=reason, sealed=True)

        self.spawn(cancel())

    def fail_soon(self, run: str, error: ErrorInfo) -> None:
        """End a run whose own ending the store refused."""

        async def fail() -> None:
            self._executions.pop(run, None)
            row = await self.store.run(run)
            if row is not None and row.worker == self.id and not row.status.final:
                events = await self.all_events(run)
                log = LiveLog(self.store, row, in_store=True)
                log.recent.extend(events[-64:])
                log.committed_row = copy.copy(row)
                replay = Replay.of(events)
                execution = Execution(self, self.registry.code(row.agent, row.version), log, replay)
                execution._resume_waits()
                self._executions[run] = execution
                self.running += 1
                execution.gate = self._gate(row)
                execution._finish(Status.FAILED, error=error)

        self.spawn(fail())

    # -- loops --------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        while True:
            wait = self.settings.sweep_every
            try:
                wait = min(wait, await self._claim_some())  # hints may get lost: look anyway
            except Exception as error:
                log_.error("could not claim runs: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):  # not wait_for: on 3.11 that can swallow a cancellation
                    await self._ready.wait()
            self._ready.clear()

    async def _claim_some(self) -> float:
        """Claim what is due, and say how long there is nothing to do."""
        if not self.settings.max_running:
            return 60.0  # nothing is ever run here
        while True:
            agents = sorted(self.registry.keys(), key=lambda agent: self._served.get(agent, 0))
            if not agents:
                return 60.0
            agents = self.gates.open(agents)  # those that are full are looked at when a place gets free
            due = await self.store.next_wake(agents)  # a read: most of the time there is nothing to claim
            if due is None or due > now():
                self._starved = False
                self.gates.nobody_waits(agents)
                return 60.0 if due is None else min(60.0, (due - now()) / 1e6)
            self._starved = not self.has_room
            if self._starved:
                return 60.0
            room = min(self.room, _CLAIM_AT_ONCE)
            at_most = self.gates.at_most(agents)
            slots = [self.reserve(some[0]) for some, places in at_most for _ in range(min(places, room))]
            beside = max(0, room - len(slots))
            self.reserved += beside
            try:
                rows, found = await self.claim(agents, room, at_most)
            finally:
                self.reserved -= beside
                for let_go in slots:
                    let_go()
            mine = self.claimed(rows)
            if len(mine) < len(rows):
                self._foreign.set()  # whom they told to stop may be here
            await self.enter_all(mine, found)
            if not rows:
                return 0.05  # only suspects are left, and one is being watched

    async def claim(
        self, agents: list[str], room: int, at_most: Sequence[tuple[Sequence[str], int]] = ()
    ) -> tuple[list[RunRow], dict[str, Found]]:
        """Take what is due, and what is known of it with that. Who calls this has kept places, and lets it enter."""
        found, suspects = dict[str, Found](), not self._suspect_at_large()
        self._claims_under_way += 1
        try:
            rows = await self.store.claim(self.id, agents, now(), room, suspects=suspects, at_most=at_most, found=found)
            self._entering |= {row.id for row in rows if row.worker is not None}
            self._on_the_way |= found
        finally:
            self._claims_under_way -= 1
        for run in self._unread.intersection(found):
            found[run].news = True
        if not self._claims_under_way:
            self._unread.clear()
        return rows, found

    def claimed(self, rows: list[RunRow]) -> list[RunRow]:
        """Those of them that are to be entered here."""
        mine = [row for row in rows if row.worker is not None]
        self._claims += 1
        self._served.update({f"{row.agent}@{row.version}": self._claims for row in mine})
        return mine

    async def enter_all(self, rows: list[RunRow], found: dict[str, Found]) -> None:
        waiting = {row.id: self.reserve(f"{row.agent}@{row.version}") for row in rows}
        self._entering |= waiting.keys()
        try:
            for row in rows:
                waiting.pop(row.id)()
                execution = await self.enter(row, found.get(row.id))
                if row.crashes >= SUSPECT and execution is not None:
                    self._suspect, self._suspect_since = execution, asyncio.get_running_loop().time()
        finally:
            for let_go in waiting.values():
                let_go()
            self._entering.difference_update(row.id for row in rows)
            for row in rows:
                self._on_the_way.pop(row.id, None)

    def _suspect_at_large(self) -> bool:
        """Whether a run that was there at several crashes has yet to show that it did not cause them.

        Suspects are entered one at a time: the one that brings the process down dies of it, and not its neighbours.
        """
        suspect = self._suspect
        if suspect is None or suspect.over or suspect.log.row.crashes < SUSPECT:
            return False
        return asyncio.get_running_loop().time() - self._suspect_since < _WATCHED

    async def claim_and_enter(self, run: str) -> None:
        """Take a run that nobody owns, to end it. Its agent's code is not needed for that."""
        row = await self.store.claim_one(self.id, run)
        if row is not None:
            await asyncio.shield(self.spawn(self.enter(row)))

    def foreign_change(self) -> None:
        """Another process wrote to the store, or may have while the bus was away."""
        self._foreign.set()
        self.engine.callbacks.hint()
        self.engine.elsewhere.hint()
        self.bus.publish_all()
        for tell in list(self.foreign):
            tell()

    async def _foreign_loop(self) -> None:
        while True:
            await self._foreign.wait()
            self._foreign.clear()
            try:
                for run in {item.run for item in await self.store.inbox(worker=self.id)}:
                    execution = self._executions.get(run)
                    if execution is not None and not execution.over:
                        await execution.pull()
                    elif run in self._expected:
                        self._expected[run] = True
                    else:
                        self._note_unread(run)
            except Exception as error:
                log_.error("could not read inboxes: %s", error)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_every)
            for duty in (self._bury, self._find_orphans, self._expire):
                try:
                    await duty()
                except Exception as error:
                    log_.error("sweeping failed: %s", error)
            self._foreign.set()  # hints may get lost: look into the inboxes anyway

    async def _bury(self) -> None:
        if dead := await self.store.bury():
            log_.warning("gone without a word: worker %s; what it ran goes on elsewhere", ", ".join(dead))
            self.bus.publish(WORK)  # whoever has the agents of those runs may be elsewhere, and has not noticed
            self.engine.elsewhere.hint()

    def lost(self, worker: str) -> None:
        """This process was silent for so long that it was taken for dead, and its runs were handed back. What is still
        entered here is dropped without a word: it could write none. Then it goes on as a worker that has just come."""
        if worker != self.id or self._stopping:
            return
        log_.error("this process gave no sign for too long, and lost its %d runs; it goes on", len(self._executions))
        for execution in list(self._executions.values()):
            execution.log.refused(None, Fenced("this process was taken for dead"))
        self.spawn(self._enter_again())

    async def _enter_again(self) -> None:
        while not self._stopping:
            try:
                await self._enter_store()
            except InterlinguaError as error:
                log_.error("could not enter again: %s", error)
                await asyncio.sleep(self.settings.sweep_every)
            else:
                self._ready.set()
                return

    async def _enter_store(self) -> None:
        await self.store.enter(WorkerRow(self.id, socket.gethostname(), os.getpid(), now(), self.registry.keys()))

    async def _find_orphans(self) -> None:
        """Hand back runs that this worker owns on paper and knows nothing of: the store refused something once."""
        owned = await self.store.owned(self.id)
        time = asyncio.get_running_loop().time()
        here = {*self._executions, *self._entering}
        self._orphans = {run: self._orphans.get(run, time) for run in owned if run not in here}
        lost = [run for run, since in self._orphans.items() if time - since > _ORPHANED]
        if lost:
            await self.store.release(self.id, lost)
            self.bus.publish(WORK)

    async def _expire(self) -> None:
        runs, threads = self.settings.ttl_runs, self.settings.ttl_threads
        if runs is None and threads is None:
            return
        time = now()
        gone = await self.store.expire(
            runs_before=None if runs is None else time - int(runs * 1e6),
            threads_before=None if threads is None else time - int(threads * 1e6),
            now=time,
            limit=500,
        )
        for run in gone:
            self.forget(run)
