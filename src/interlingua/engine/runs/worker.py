"""The worker of this process: lets runs in, keeps their executions, and leaves them in good order.

A worker, not a run, holds the lease. It claims only runs whose queue it serves: code of the same origin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...bus.port import WORK, Bus
from ...model.errors import ErrorInfo, InterlinguaError
from ...model.events import Event
from ...runtime.clock import sleep
from ...runtime.closing import close_all
from ...runtime.job_group import JobGroup
from ...store.changes import (
    BlockRun,
    CommitThread,
    DeleteRun,
    Fenced,
    PutInbox,
    Sealed,
    Submitted,
)
from ...store.ports import Store
from ...store.rows import SUSPECT, RunRow
from ..agents.agent import Agent, Registry
from ..agents.process_pool import ProcessPool
from ..alarm_clock import AlarmClock
from ..execution.agent_limit import AgentLimit
from ..execution.entry import Entry
from ..execution.execution import Execution
from ..execution.host import ExecutionEngine
from ..execution.parking import Listeners
from ..handler import process_exits
from ..handler.branches import no_branch
from ..ids import new_id
from ..log import stored_log
from ..log.log_source import LogSources
from ..log.run_log import RunLog, TransactionParticipant
from ..observe.run_metrics import RunMetrics
from ..settings import Settings
from .claims import Claims, is_cleared
from .cluster_port import ANYBODY, ClusterPort
from .commit_fanout import CommitFanout
from .concurrency_limits import ConcurrencyLimits
from .execution_factory import ExecutionFactory
from .finished_logs import FinishedLogs
from .inbox_router import InboxRouter
from .lease import Lease
from .sweep import Sweep

log_ = logging.getLogger("interlingua.engine")

T = TypeVar("T")


Connect = Callable[["Worker"], tuple[ClusterPort, LogSources]]
"""Makes a worker's port to other processes, and the sources of the logs that are read here."""


class Worker:
    def __init__(
        self, engine: ExecutionEngine, store: Store, bus: Bus, registry: Registry, settings: Settings, connect: Connect
    ) -> None:
        self.engine = engine
        self.store = store
        self.bus = bus
        self.registry = registry
        self.settings = settings
        self.id = new_id()
        self.threads = 0  # plain functions that are running
        self.thread_slots = asyncio.Semaphore(settings.max_sync_threads)
        self.abandoned = 0  # handlers that would not stop
        self.listeners = Listeners(settings.max_listening)
        self.meters = RunMetrics()
        self.clock = AlarmClock(store.clock)
        self.processes = ProcessPool(settings.processes)
        self.limits = ConcurrencyLimits(registry, settings)
        self._executions: dict[str, Execution] = {}
        self._finished = FinishedLogs(settings)
        self.cluster, self.sources = connect(self)
        self.inbox = InboxRouter(self.id, store, self.cluster, self._executions)
        self.claims = Claims(self)
        self.commits = CommitFanout(self._settle, self.cluster)
        self.factory = ExecutionFactory(self)
        self.lease = Lease(self.id, store, registry, self.clock.now())
        self.sweep = Sweep(store, self.clock, settings, self.inbox.store_changed, self.claims.wake)
        self.sweep.duties += [self.claims.bury_dead, self.claims.find_orphans]
        self.foreign: list[Callable[[], None]] = []  # called when other processes wrote, or may have
        self.on_workers_died: Callable[[], None] = lambda: None
        self._jobs = JobGroup("worker")
        self._loops = JobGroup("worker")
        self._end_subscription: Callable[[], None] = lambda: None
        self._stopping = False
        self._listen_to_commits()

    def _listen_to_commits(self) -> None:
        def wake(change: object, committed: bool) -> None:
            self.claims.wake()

        def thread_committed(change: CommitThread, committed: bool) -> None:
            if change.passed_on:
                self.claims.wake()

        listen = self.commits.listen
        listen(PutInbox, lambda change, committed: self.notify_run(change.run, change if committed else None))
        listen(CommitThread, thread_committed)
        listen(DeleteRun, wake)  # its thread went to the next in line with it
        listen(BlockRun, lambda change, committed: self.claims.blocked.hint())

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.lease.enter()
        self._end_subscription = self.bus.subscribe(WORK, self.claims.wake)
        process_exits.install(asyncio.get_running_loop())
        await self.claims.bury_dead()
        self.claims.wake()
        for work in (self.claims.follow(), self.sweep.repeat(), self.inbox.follow_store()):
            self._loops.spawn(work)
        self.cluster.start()

    async def stop(self) -> None:
        """Finish what can be finished, and hand back the rest."""
        self._stopping = self.limits.closed = True
        await close_all(
            [self._stop_looking, self._leave_runs, self._jobs.close, self.processes.close, self._leave_store]
        )

    async def _stop_looking(self) -> None:
        await close_all([self.cluster.stop, self._loops.close, self._end_subscription])

    async def _leave_runs(self) -> None:
        while self.inbox.lets_in and self._jobs:  # what is on its way in is let in, and handed back with the others
            await self._jobs.wait(0.1)
        deadline = self.clock.monotonic() + self.settings.shutdown_grace
        while self._working() and (left := deadline - self.clock.monotonic()) > 0:
            tasks = [e.task for e in self._working() if e.task is not None]
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        # What was acknowledged is taken in before anything is handed back: a cancelled run ends here, as cancelled.
        await asyncio.gather(*(e.pull_inbox() for e in list(self._executions.values())), return_exceptions=True)
        for execution in list(self._executions.values()):
            execution.leave("hand_back")
        deadline = self.clock.monotonic() + self.settings.cancel_grace + 1
        while self._executions and self.clock.monotonic() < deadline:
            live = list(self._executions.values())
            tasks = [e.task for e in live if e.task is not None and not e.over]
            if tasks:
                await asyncio.wait(tasks, timeout=0.1)
            await asyncio.gather(*(e.log.flush() for e in live), return_exceptions=True)
            await asyncio.sleep(0)

    async def _leave_store(self) -> None:
        await self.store.claims.leave(self.id)
        self.cluster.handed_back()

    async def abandon(self) -> None:
        """Drop what is entered here, and hand it back. Nobody is blamed for that."""
        self._stopping = self.limits.closed = True
        for loop in self._loops:
            loop.cancel()
        for execution in list(self._executions.values()):
            execution.drop()
        await self.store.claims.leave(self.id)

    @property
    def is_ending(self) -> bool:
        """True if a run that is cut short ends with the process: the engine stops, or its own tasks are cancelled, as
        when the event loop ends."""
        return self._stopping or self._loops.was_cancelled

    def _working(self) -> list[Execution]:
        """Handlers that do something now: those that only wait are handed back at once."""
        return [
            e for e in self._executions.values()
            if not e.over and e.task is not None and not e.task.done() and not e.waits.only_waiting
        ]  # fmt: skip

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._jobs.spawn(work, context=no_branch())

    # -- what is here -------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Handlers that are entered."""
        return self.limits.running

    def execution(self, run: str) -> Execution | None:
        return self._executions.get(run)

    def is_here(self, run: str) -> bool:
        return run in self._executions or run in self.inbox.coming

    def log_of(self, run: str) -> RunLog | None:
        """The log of a run that is here, or that finished here a moment ago."""
        execution = self._executions.get(run)
        return execution.log if execution is not None else self._finished.get(run)

    def forget(self, run: str) -> None:
        self._finished.forget(run)

    async def all_events(self, run: str) -> list[Event]:
        return await stored_log.all_events(self.store, run)

    # -- entering -----------------------------------------------------------------------------------------

    def expect(self, row: RunRow, *, reserve: bool) -> Callable[[asyncio.Future[Submitted]], None]:
        """A run is being written: its news is noted from now on, and a slot is kept for it where it may start here.
        The function that is returned ends both; it is called with what came of writing."""
        free = self.limits.reserve(row.queue) if reserve else None
        self.inbox.coming[row.id] = Entry(row, inbox_empty=True)

        def written(writing: asyncio.Future[Submitted]) -> None:
            self.inbox.coming.pop(row.id, None)
            if free is not None:
                free()
            if not writing.cancelled():
                writing.exception()  # the submitter gets it, if there still is one

        return written

    def enter_submitted(
        self, done: Submitted, first: Event, agent: Agent[..., Any], participant: TransactionParticipant | None
    ) -> None:
        """Start a run that was written and claimed in one transaction: all that is known of it is known here."""
        coming = self.inbox.coming.get(done.row.id)
        empty = coming is not None and coming.inbox_empty  # where nobody noted news any more, there may be some
        entry = Entry(done.row, [first], done.thread, inbox_empty=empty, participant=participant)
        self._start_execution(self.factory.build(entry, agent), self.limits.enter(done.row.queue))

    async def enter(self, entry: Entry) -> None:
        """Start a run that this worker has claimed. One that cannot be started is handed back."""
        run = entry.row.id
        limit = self.limits.enter(entry.row.queue)
        try:
            execution = await self.factory.load(entry)
            starts = await self._starts_later(execution)
            self._start_execution(execution, limit, starts)
        except BaseException as error:
            self.limits.leave(limit)
            self.hand_back_soon(run, error)
            if not isinstance(error, Exception):
                raise
            log_.error("run %s could not be entered: %s", run, error)
        finally:
            self.inbox.coming.pop(run, None)

    async def _starts_later(self, execution: Execution) -> int | None:
        """When a delayed run starts that has only news; None: now. A cancel ends it at once."""
        row = execution.log.row
        starts = row.created_at + int(execution.request.delay * 1e6)
        if execution.replay.started or starts <= self.clock.now() or await self.store.runs.has_news(row.id, "cancel"):
            return None
        return starts

    def _start_execution(self, execution: Execution, limit: AgentLimit | None, starts: int | None = None) -> None:
        """Keep an execution, and start it; `starts`: or set it aside until then."""
        row, agent, replay = execution.log.row, execution.agent, execution.replay
        entry = execution.entry
        self._executions[row.id] = execution
        self.inbox.coming.pop(row.id, None)  # from now on, news reaches the execution
        execution.activity.limit = limit
        if entry is not None and entry.fail_with is not None:
            execution.fail_unentered(entry.fail_with)
        elif starts is not None:
            execution.suspend(starts)
        elif replay.started and agent is not None and agent.retries and _next_is_last(row.crashes, agent.retries):
            # The next crash would be the last: it executes as a suspect, which is blamed for no other run's.
            row.crashes = SUSPECT
            execution.suspend(0)
        else:
            execution.start()

    async def claim_and_enter(self, run: str) -> None:
        """Take a run that no worker owns, to end it. The code of its agent is not needed for that."""
        await asyncio.shield(self.spawn(self.claims.claim_one(run)))

    def hand_back_soon(self, run: str, error: BaseException) -> None:
        """Give up a run that could not be handled here. It counts as a crash: one that never works must end."""
        self._executions.pop(run, None)
        self.claims.no_suspect(run)
        crashed = isinstance(error, Exception) and not isinstance(error, InterlinguaError)
        if not self._stopping:
            self.spawn(self.store.claims.release(self.id, [run], crashed=crashed))

    def fail_soon(self, run: str, error: ErrorInfo) -> None:
        """End a run whose own ending the store refused."""

        async def fail() -> None:
            self._executions.pop(run, None)
            row = await self.store.runs.get(run)
            if row is not None and row.worker == self.id and not row.status.final:
                await self.enter(Entry(row, fail_with=error))

        self.spawn(fail())

    # -- leaving ------------------------------------------------------------------------------------------

    def ended(self, execution: Execution) -> None:
        limit, execution.activity.limit = execution.activity.limit, None
        self.limits.leave(limit)
        self._slot_free(limit)

    def set_idle(self, limit: AgentLimit | None, idle: bool) -> None:
        """A handler begins to wait, which takes no slot: others run, its own children for instance. Or it goes on."""
        self.limits.set_idle(limit, idle)
        if idle:
            self._slot_free(limit)

    def _slot_free(self, limit: AgentLimit | None) -> None:
        if self.limits.has_line(limit):
            self.claims.wake()
        self.cluster.slot_free()

    def _settle(self, log: RunLog, sealed: Sealed | None) -> None:
        """Something of a run was committed, or refused: let its execution go where it is over."""
        run = log.row.id
        execution = self._executions.get(run)
        if execution is not None and execution.log is not log:
            execution = None  # an owner from before: the run has been resumed since
        if log.lost is not None and execution is not None:
            execution.after_refusal(log.lost)
        if execution is not None and execution.over and log.settled:
            del self._executions[run]
            log.wake_readers()
            if log.finished is not None:
                if execution.data.rollback or (sealed is not None and sealed.forgotten):
                    self._finished.forget_below(log.row.path_below)
                else:
                    self._finished.keep(log)
                caller = execution.request.caller
                self.meters.finished(log.row.agent, caller, log.finished.status, log.row.ran / 1e6)
            else:
                self.claims.wake()  # something may have come in while it was being set aside
        if log.lost is not None or sealed is None or is_cleared(sealed.row):
            self.claims.no_suspect(run)

    # -- news ---------------------------------------------------------------------------------------------

    def notify_run(self, run: str, news: PutInbox | None = None, owner: str | None = ANYBODY) -> None:
        """Something was put into the inbox of a run. `news`: what, where that is known. `owner`: the worker that has
        the run, or None where no worker has it."""
        self.inbox.notify_run(run, news, owner)

    def notify_from_bus(self, run: str) -> None:
        """As `notify_run`, by another process."""
        if not self.inbox.notify_from_bus(run):
            self.claims.wake()  # it may have been handed back, or set aside, a moment ago

    def offer(self, row: RunRow) -> None:
        """A run is due, and is not entered here at once."""
        self.cluster.offer(row)

    def announce(self, row: RunRow) -> None:
        """A run that no worker owns has changed, and may be due."""
        self.cluster.committed(row.id, None)
        self.cluster.offer(row)

    def store_changed(self) -> None:
        """Another process wrote to the store, or may have while the bus was away."""
        self.inbox.store_changed()
        self.bus.publish_all()
        for tell in list(self.foreign):
            tell()

    # -- the lease ----------------------------------------------------------------------------------------

    def on_lease_lost(self, worker: str) -> None:
        """This process was silent for so long that it was taken for dead, and its runs were handed back. Executions
        that are still here are dropped: they could write nothing. Then it goes on as a worker that has just come."""
        if worker != self.id or self._stopping:
            return
        log_.error("this process gave no sign for too long, and lost its %d runs; it goes on", len(self._executions))
        for execution in list(self._executions.values()):
            execution.log.refused(None, Fenced("this process was taken for dead"))
        self.spawn(self._enter_again())

    async def _enter_again(self) -> None:
        while not self._stopping:
            try:
                await self.lease.enter()
            except InterlinguaError as error:
                log_.error("could not register again: %s", error)
                await sleep(self.clock, self.settings.sweep_every)
            else:
                self.claims.wake()
                return


def _next_is_last(crashes: int, retries: int) -> bool:
    """Returns True if a run that is no suspect yet ends at its next crash. The first crash ends no run."""
    return max(1, retries - 1) <= crashes < SUSPECT
