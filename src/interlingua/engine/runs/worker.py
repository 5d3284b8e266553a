"""The worker of this process: claims runs, enters and leaves them, and takes up what dead workers left.

A worker, not a run, holds the lease. It claims only runs whose queue it serves: code of the same origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...bus.port import WORK, Bus, RemoteBus
from ...model.errors import Conflict, ErrorInfo, InterlinguaError, NotFound
from ...model.events import Event, RunCreated
from ...model.status import Status
from ...store.changes import (
    BlockRun,
    CommitThread,
    DeleteRun,
    Fenced,
    PutCallback,
    PutInbox,
    PutQuestion,
    Sealed,
    Submitted,
)
from ...store.ports import Store
from ...store.rows import SUSPECT, BlockedLine, Found, InboxItem, RunRow, WorkerRow, is_last_page
from ..agents.agent import Agent, Registry
from ..agents.process_pool import ProcessPool
from ..clock import WallClock
from ..closing import close_all
from ..cluster.link import ANYBODY, Between
from ..cluster.work_offers import Offers
from ..handler import process_exits
from ..handler.branches import no_branch
from ..ids import new_id, now
from ..log.replay import Replay
from ..log.run_log import LiveLog, Witness
from ..observe import run_logging
from ..observe.run_metrics import Meters
from ..settings import Settings
from .blocked_runs import BlockedRuns
from .concurrency_limits import Gate, Gates
from .execution import Execution
from .parking import Listeners

if TYPE_CHECKING:
    from ..assembly import Core

log_ = logging.getLogger("interlingua.engine")

T = TypeVar("T")

_CLAIM_AT_ONCE = 200
_ORPHANED = 10.0  # seconds
_PAGE = 2000


class Worker:
    def __init__(self, engine: Core, store: Store, bus: Bus, registry: Registry, settings: Settings) -> None:
        self.engine = engine
        self.store = store
        self.bus = bus
        self.registry = registry
        self.settings = settings
        self.id = new_id()
        self._started_at = now()
        self.running = 0  # handlers that are entered
        self.reserved = 0  # slots for runs that are being claimed
        self.threads = 0  # plain functions that are running
        self.abandoned = 0  # handlers that would not stop
        self.gates = Gates(registry, settings.agents)
        self.listeners = Listeners(settings.max_listening)
        self.meters = Meters()
        self.clock = WallClock()
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
        self._end_subscription: Callable[[], None] = lambda: None
        self.idle = 0  # of the entered ones: those that only wait
        self.thread_slots = asyncio.Semaphore(settings.max_sync_threads)
        self._entering: set[str] = set()  # claimed, and on their way in
        self._on_the_way: dict[str, Found] = {}  # of those: what there was of them when they were claimed
        self._claims_under_way = 0
        self._unread: set[str] = set()  # runs that are not here, and had news while some were being claimed
        self.offers = Offers(self)
        self._expected: dict[str, bool] = {}  # being submitted here, and whether there is news for them
        self.blocked_runs = BlockedRuns(self)
        self._orphans: dict[str, float] = {}  # owned on paper, and not here: since when
        self._stopping = False
        self._trouble: str | None = None  # of the store, when it was looked at last
        self._starved = False  # runs are waiting for a slot
        self._served: dict[str, int] = {}  # queues of which runs were claimed, by when that was: they take turns, too
        self._claims = 0
        self._suspects: set[str] = set()  # that are here; others may be claimed when it is none any more

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._enter_store()
        self._end_subscription = self.bus.subscribe(WORK, self._ready.set)
        process_exits.install(asyncio.get_running_loop())
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
        await close_all(
            [self._stop_looking, self._leave_runs, self._end_tasks, self.processes.close, self._leave_store]
        )

    async def _stop_looking(self) -> None:
        if self.others is not None:
            self.others.stop()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._end_subscription()

    async def _leave_runs(self) -> None:
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

    async def _end_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _leave_store(self) -> None:
        await self.store.claims.leave(self.id)
        if self.others is not None:
            self.bus.publish(WORK)  # what was handed back waits for others

    async def abandon(self) -> None:
        """Drop what is entered here, and hand it back. Nobody is blamed for that."""
        self._stopping = True
        for loop in self._loops:
            loop.cancel()
        for execution in list(self._executions.values()):
            execution.drop()
        await self.store.claims.leave(self.id)

    @property
    def is_ending(self) -> bool:
        """Whether a run that is cut short here ends with the process: the engine stops, or our own tasks are cancelled,
        as when the event loop ends."""
        return self._stopping or any(loop.cancelling() for loop in self._loops)

    def _working(self) -> list[Execution]:
        """Handlers that do something now: those that only wait are handed back at once."""
        return [
            e for e in self._executions.values()
            if not e.over and e.task is not None and not e.task.done() and not (e.blocked and not e.active)
        ]  # fmt: skip

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, context=no_branch())
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

    def may_claim(self, queue: str) -> bool:
        """Whether there is a slot for a run of this queue."""
        gate = self.gates.of(queue)
        return self.has_room and (gate is None or gate.room > 0)

    def reserve(self, queue: str) -> Callable[[], None]:
        """Keep a slot for a run that is being claimed, until what is given back is called."""
        gate = self.gates.of(queue)
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
        self._finished_bytes += log.recent.bytes
        limits = self.settings
        while self._finished and (
            len(self._finished) > limits.keep_finished or self._finished_bytes > limits.keep_finished_bytes
        ):
            self.forget(next(iter(self._finished)))

    def forget(self, run: str) -> None:
        log = self._finished.pop(run, None)
        if log is not None:
            self._finished_bytes -= log.recent.bytes

    def _forget_under(self, path: str) -> None:
        """The runs that a run has called: they are forgotten with it."""
        for run in [run for run, log in self._finished.items() if log.row.path.startswith(path)]:
            self.forget(run)

    @staticmethod
    def path_of(row: RunRow) -> str:
        return f"{row.path or '/'}{row.id}/"

    # -- entering -----------------------------------------------------------------------------------------

    def _gate(self, row: RunRow) -> Gate | None:
        """Where the runs of its agent are counted, with one more of them."""
        gate = self.gates.of(row.queue) if self.gates.any else None
        if gate is not None:
            gate.take()
        return gate

    def expect(self, row: RunRow, *, reserve: bool) -> Callable[[asyncio.Future[Submitted]], None]:
        """A run is being written down: news for it is noted from now on, and a slot is kept for it where it may start
        here, until the returned function is called with what came of that."""
        let_go = self.reserve(f"{row.agent}@{row.version}") if reserve else None
        self._expected[row.id] = False

        def written(writing: asyncio.Future[Submitted]) -> None:
            self._expected.pop(row.id, None)
            if let_go is not None:
                let_go()
            if not writing.cancelled():
                writing.exception()  # the submitter is told, if there still is one

        return written

    def enter_submitted(self, done: Submitted, first: Event, agent: Agent[..., Any], witness: Witness | None) -> None:
        """A run that was submitted and claimed in one transaction: all that is known of it is known here."""
        row = copy.copy(done.row)  # the log's own row runs ahead of what the submitter is told
        log = LiveLog(self.store, row)
        assert isinstance(first.body, RunCreated)
        log.created, log.witness = first.body, witness
        log.found([first])
        log.committed_row = done.row
        execution = Execution(self, agent, log, Replay.of([first]))
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
        log, replay = await self._restored(row, found.events if found is not None else None)
        agent = self.registry.serving(row.queue)
        execution = Execution(self, agent, log, replay)
        starts = row.created_at + int(execution.request.delay * 1e6)
        early = not replay.started and starts > now()
        if early and await self.store.runs.has_news(row.id, "cancel"):
            early = False
        self._executions[row.id] = execution
        self._on_the_way.pop(row.id, None)  # news reaches it from now on
        execution.gate = gate
        if row.crashes:
            assert log.recent.last is not None
            execution.taken_over_from = log.recent.last.time
        execution.nothing_came = found is not None and not found.news
        if early:
            execution._set_aside(starts)
        elif replay.started and agent is not None and agent.retries and _next_is_last(row.crashes, agent.retries):
            # The next crash would be the last: it executes as a suspect, which is blamed for no other run's.
            execution.log.row.crashes = SUSPECT
            execution._set_aside(0)
        else:
            execution.start()
        return execution

    def announce(self, row: RunRow) -> None:
        """A run that nobody owns has changed, and may be due for somebody."""
        if self.others is None:
            self.bus.publish(row.id)
        else:
            self.others.committed(row.id, None)
        self.submitted(row)

    def hand_back_soon(self, run: str, error: BaseException) -> None:
        """Give up a run that could not be handled here. It counts as a crash: one that never works must end."""
        self._executions.pop(run, None)
        self._suspects.discard(run)
        crashed = isinstance(error, Exception) and not isinstance(error, InterlinguaError)
        if not self._stopping:
            self.spawn(self.store.claims.release(self.id, [run], crashed=crashed))

    async def _restored(self, row: RunRow, events: list[Event] | None) -> tuple[LiveLog, Replay]:
        """The log and the history of a run that was claimed. `events`: all of them, where they are known."""
        log, replay = LiveLog(self.store, row), Replay()
        log.recent.most_bytes = self.settings.keep_live_bytes
        replay.bound(self.settings.keep_live_bytes)
        log.committed_row = copy.copy(row)  # the log's own row runs ahead of what is committed
        if events is not None:
            log.found(events)
            replay.read(events)
        else:
            async for page in self._pages(row.id):
                log.found(page)
                replay.read(page)
        replay.close_history()
        return log, replay

    async def _pages(self, run: str) -> AsyncIterator[list[Event]]:
        """The log of a run as it is in the store. Never more of it at once than a page."""
        after, last = 0, False
        while not last:
            page = await self.store.runs.events(run, after, _PAGE)
            last = is_last_page([event.size for event in page], _PAGE)
            if page:
                after = page[-1].seq
                yield page

    async def all_events(self, run: str) -> list[Event]:
        return [event async for page in self._pages(run) for event in page]

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
        if run in self._suspects and (log.lost is not None or sealed is None or _is_cleared(sealed.row)):
            self._suspects.discard(run)
            self._ready.set()  # the next suspect may be claimed
        if self.others is None:
            self.bus.publish(run)
        else:
            self.others.committed(run, sealed if log.lost is None else None)
        if sealed is not None and log.lost is None:
            run_logging.committed(sealed)
        for change in sealed.changes if sealed is not None else ():
            if isinstance(change, PutInbox):
                self.told(change.run, change if log.lost is None else None)
            elif isinstance(change, CommitThread):
                if change.passed_on:
                    self._ready.set()
            elif isinstance(change, DeleteRun):
                self._ready.set()  # its thread went to the next in line with it
            elif isinstance(change, BlockRun):
                self.blocked_runs.hint()
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

    def submitted(self, row: RunRow) -> None:
        """A run is due, and is not entered here at once."""
        if self.others is None:
            self.bus.publish(WORK)
        else:
            self.others.submitted(row)

    def look(self) -> None:
        """There may be runs to claim. Nobody else needs to know."""
        self._ready.set()

    def cancel_soon(self, run: str, reason: str) -> None:
        async def cancel() -> None:
            with contextlib.suppress(NotFound, Conflict):
                await self.engine.runs.cancel(run, reason=reason, sealed=True)

        self.spawn(cancel())

    def fail_soon(self, run: str, error: ErrorInfo) -> None:
        """End a run whose own ending the store refused."""

        async def fail() -> None:
            self._executions.pop(run, None)
            row = await self.store.runs.get(run)
            if row is not None and row.worker == self.id and not row.status.final:
                log, replay = await self._restored(row, None)
                execution = Execution(self, self.registry.serving(row.queue), log, replay)
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
                wait = min(wait, await self._claim_some(), await self.blocked_runs.claim_some())  # hints may get lost
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
            queues = sorted(self.registry.queues(), key=lambda queue: self._served.get(queue, 0))
            if not queues:
                return 60.0
            queues = self.gates.open(queues)  # those that are full are looked at when a place gets free
            due = await self.store.claims.next_wake(queues)  # a read: most of the time there is nothing to claim
            if due is None or due > now():
                self._starved = False
                self.gates.nobody_waits(queues)
                return 60.0 if due is None else min(60.0, (due - now()) / 1e6)
            self._starved = not self.has_room
            if self._starved:
                return 60.0
            room = min(self.room, _CLAIM_AT_ONCE)
            at_most = self.gates.at_most(queues)
            slots = [self.reserve(some[0]) for some, places in at_most for _ in range(min(places, room))]
            beside = max(0, room - len(slots))
            self.reserved += beside
            try:
                rows, found = await self.claim(queues, room, at_most)
            finally:
                self.reserved -= beside
                for let_go in slots:
                    let_go()
            mine = self.claimed(rows)
            if len(mine) < len(rows):
                self._foreign.set()  # whom they told to stop may be here
            await self.enter_all(mine, found)
            if not rows:
                # Only suspects are left, and one executes; or others are about to take what was due.
                return self.settings.sweep_every if self._suspects else 0.05

    async def claim(
        self, queues: list[str], room: int, at_most: Sequence[tuple[Sequence[str], int]] = ()
    ) -> tuple[list[RunRow], dict[str, Found]]:
        """Take what is due, and what is known of it with that. Who calls this has kept places, and lets it enter."""
        found = dict[str, Found]()
        self._claims_under_way += 1
        try:
            rows = await self.store.claims.claim(self.id, queues, now(), room, at_most=at_most, found=found)
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
        self._served.update({row.queue: self._claims for row in mine})
        self._suspects |= {row.id for row in mine if row.crashes >= SUSPECT}
        return mine

    async def enter_all(self, rows: list[RunRow], found: dict[str, Found]) -> None:
        waiting = {row.id: self.reserve(row.queue) for row in rows}
        self._entering |= waiting.keys()
        try:
            for row in rows:
                waiting.pop(row.id)()
                await self.enter(row, found.get(row.id))
        finally:
            for let_go in waiting.values():
                let_go()
            self._entering.difference_update(row.id for row in rows)
            for row in rows:
                self._on_the_way.pop(row.id, None)

    async def claim_blocked(self, line: BlockedLine, most: int, *, due: bool) -> int:
        """Take runs that other code could not go on with, and let them enter. Returns how many those are."""
        gate = self.gates.of(line.queue)
        room = min(self.room, most, gate.room if gate is not None else most) if self.has_room else 0
        if room <= 0:
            return 0
        slots = [self.reserve(line.queue) for _ in range(room)]
        try:
            rows = await self.store.claims.claim_blocked(self.id, line, now(), room, due=due)
            self._entering |= {row.id for row in rows}
        finally:
            for let_go in slots:
                let_go()
        await self.enter_all(self.claimed(rows), {})
        return len(rows)

    async def claim_and_enter(self, run: str) -> None:
        """Take a run that nobody owns, to end it. Its agent's code is not needed for that."""
        row = await self.store.claims.claim_one(self.id, run)
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
                for run in await self.store.claims.owned_with_news(self.id):
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
            self._look_at_store()
            self.clock.look()
            for duty in (self._bury, self._find_orphans, self._expire, self.engine.blocked_report.tell_readers):
                try:
                    await duty()
                except Exception as error:
                    log_.error("sweeping failed: %s", error)
            self._foreign.set()  # hints may get lost: look into the inboxes anyway

    def _look_at_store(self) -> None:
        trouble, before = self.store.trouble(), self._trouble
        self._trouble = trouble
        if trouble is not None and before is None:
            log_.error("%s", trouble)
        elif before is not None and trouble is None:
            log_.warning("the store file is there again")
            self._ready.set()

    async def _bury(self) -> None:
        if dead := await self.store.claims.bury():
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
        await self.store.claims.enter(
            WorkerRow(self.id, socket.gethostname(), os.getpid(), self._started_at, self.registry.queues())
        )

    def serve_soon(self) -> None:
        """There are other agents than before: this worker's row in the store names the queues that it serves."""

        async def serve() -> None:
            with contextlib.suppress(InterlinguaError):
                await self.store.claims.serve(self.id, self.registry.queues())

        self.spawn(serve())

    async def _find_orphans(self) -> None:
        """Hand back runs that this worker owns on paper and knows nothing of: the store refused something once."""
        owned = await self.store.claims.owned(self.id)
        time = asyncio.get_running_loop().time()
        here = {*self._executions, *self._entering}
        self._orphans = {run: self._orphans.get(run, time) for run in owned if run not in here}
        lost = [run for run, since in self._orphans.items() if time - since > _ORPHANED]
        if lost:
            await self.store.claims.release(self.id, lost)
            self.bus.publish(WORK)

    async def _expire(self) -> None:
        runs, threads = self.settings.ttl_runs, self.settings.ttl_threads
        if runs is None and threads is None:
            return
        time = now()
        gone = await self.store.runs.expire(
            runs_before=None if runs is None else time - int(runs * 1e6),
            threads_before=None if threads is None else time - int(threads * 1e6),
            now=time,
            limit=500,
        )
        for run in gone:
            self.forget(run)


def _is_cleared(row: RunRow) -> bool:
    """Whether a suspect has not ended its process: it made a record, waits, or has ended itself."""
    return row.crashes < SUSPECT or row.worker is None


def _next_is_last(crashes: int, retries: int) -> bool:
    """Whether a run that is no suspect yet ends at its next crash. The first crash ends none."""
    return max(1, retries - 1) <= crashes < SUSPECT
