"""The life of one run in this process, from entering the handler to leaving it.

An execution ends in one of five ways: the handler is done (succeeded or failed), it was cancelled, it ran out of time,
it is parked (it waits, and waiting needs no memory), or it is handed back (the process stops). In the last two the run
goes on later, maybe elsewhere, from its log. The parts of a run know each other as far as they must; only an execution
knows them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ...model.errors import (
    ErrorInfo,
    InterlinguaError,
    RunLost,
    StoreError,
    ThreadConflict,
)
from ...model.events import BlockReason, RunBlocked
from ...model.run import RunRequest
from ...model.status import Status
from ...runtime.clock import Timer
from ...store.changes import Fenced
from ...store.rows import InboxItem
from ..agents.mount_path import is_mounted
from ..agents.process_pool import ProcessDied, ProcessPool
from ..handler import branches, handler_call, process_exits
from ..handler.branches import Branch, Branches, Watched, no_branch
from ..handler.calls import Calls
from ..handler.child_runs import ChildRuns
from ..handler.context import Context
from ..handler.context_use import ContextUse
from ..handler.mailbox import Mailbox
from ..handler.mounted_run import LeftRun
from ..handler.output import Output
from ..handler.questions import Questions
from ..handler.run_data import RunData
from ..handler.steps import Steps
from ..handler.suspension import Leaving, Suspended
from ..handler.thread_state import ThreadState
from ..handler.threads import HandlerThreads
from ..handler.waits import Waits
from ..handler.workspace import Editor
from ..log.replay import Replay
from ..log.run_log import RunLog
from ..observe import tracing
from ..teams.member_run import MemberRun
from ..teams.ports import TeamPorts
from .ending import FOR_GOOD, ITSELF, REASON_HAS, Ending, tell_remote_side
from .entrance import Entrance
from .host import ExecutionHost
from .inbox import Inbox
from .parking import Activity, Parking
from .run_clock import RunClock

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from .entry import Entry

log_ = logging.getLogger("interlingua.engine")

_A_TURN = 0.05  # seconds that a handler has to stop before its questions are withdrawn


class Execution:
    __slots__ = (
        "__weakref__", "_grace", "_member", "_news_at_leave", "activity", "agent", "blocked_by", "bound", "calls",
        "children", "clock", "data", "ending", "entrance", "entry", "exited", "inbox", "log", "loop", "mailbox",
        "output", "parking", "questions", "replay", "steps", "taken_over_from", "task", "thread", "threads", "use",
        "waits", "worker",
    )  # fmt: skip

    def __init__(self, worker: ExecutionHost, agent: Agent[..., Any] | None, log: RunLog, replay: Replay) -> None:
        self.worker = worker
        self.agent = agent
        self.log = log
        self.replay = replay
        self.loop = asyncio.get_running_loop()
        data = self.data = RunData(worker, agent, log, replay)
        waits = self.waits = Waits(data, Branches(self._branch_ended), self, self.loop)
        self.output = Output(data, waits)
        calls = self.calls = Calls(data, waits, self.output)
        self.threads = HandlerThreads(data, waits)
        self.use = ContextUse(waits, self.threads)
        self.steps = Steps(data, waits, calls, self.output, self.threads)
        self.questions = Questions(data, waits, calls)
        self.mailbox = Mailbox(data, waits, calls)
        self.children = ChildRuns(data, waits, calls, worker.engine.runs, worker.engine.agents)
        self.inbox = Inbox(data, waits, self.questions, self.mailbox, self.children)
        self.thread = ThreadState(data)
        self.clock = RunClock(data, waits)
        self.entrance = Entrance(data, waits, self.output, self.thread, worker)
        self.parking = Parking(data, waits, self.clock, worker.listeners, self.questions.open)
        self.activity = waits.activity = Activity(data, waits, self.clock, self.parking, worker)
        self.ending = Ending(
            data, waits, calls, self.output, self.questions, self.mailbox, self.children, self.thread, self.clock,
            worker.id,
        )  # fmt: skip
        self._member: MemberRun | None = None
        self.entry: Entry | None = None  # what was known of the run when it came in, until the handler begins
        self.taken_over_from: int | None = None  # the time of its last event, where the worker died that had it
        self.task: asyncio.Task[None] | None = None
        self.bound = False
        self.blocked_by: RunBlocked | None = None  # why the code cannot go on, where it cannot
        self.exited: ErrorInfo | None = None  # a task of the handler tried to end the process
        self._news_at_leave = 0
        self._grace: Timer | None = None
        log.bound(worker.settings, self._log_is_full)
        replay.bound(worker.settings.keep_live_bytes)
        log.callback = data.request.callback
        if data.authority is not None:
            data.team = self.member.conversation

    # -- how it stands ------------------------------------------------------------------------------------

    @property
    def request(self) -> RunRequest:
        return self.data.request

    @property
    def leaving(self) -> Leaving | None:
        return self.waits.leaving

    @property
    def over(self) -> bool:
        """True when anything the handler still does is discarded."""
        return self.waits.over

    @property
    def member(self) -> MemberRun:
        """The run in its team. It is made on first use: most runs have none."""
        if self._member is None:
            engine = self.worker.engine
            self._member = MemberRun(
                self.data, self.waits, self.calls, self.output, self.steps, self.questions, self.mailbox,
                self.children, self.thread, TeamPorts(engine.gate, engine.gate, engine.gate, self.worker),
            )  # fmt: skip
        return self._member

    async def is_member(self, agent: str) -> bool:
        return self.data.authority is not None or await self.worker.engine.gate.is_member(agent)

    @property
    def processes(self) -> ProcessPool:
        return self.worker.processes

    @property
    def engine(self) -> Any:
        return self.worker.engine.facade

    @property
    def editor(self) -> Editor | None:
        workspaces, path = self.worker.engine.workspaces, self.data.row.path
        editor = workspaces.find(self.thread.id)
        if editor is None and path:  # that of the run that all this began with, where it is here too
            log = self.worker.log_of(path.split("/")[1])
            editor = workspaces.find(log.row.thread if log is not None else None)
        return editor

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        # Its own context: it may be started by the handler of another run, which calls it.
        context = no_branch()
        context.run(process_exits.contain, None)
        root = self.waits.branches.root
        root.work = Watched(self._main())
        self.task = root.task = self.loop.create_task(root.work, context=context)

    async def _main(self) -> None:
        try:
            await self._live()
        except process_exits.EXITS as error:  # of the agent's code still, for instance where its own error is printed
            if process_exits.is_signal(error):
                self.drop()
                raise
            if not self.over:
                self._leave_now(error)
        except Exception as error:
            # Nothing of the engine may fail here; if it does, the run is handed back instead of hanging.
            log_.exception("run %s could not be ended in good order", self.data.row.id)
            if not self.over:
                self._end()
            self.worker.hand_back_soon(self.data.row.id, error)
        finally:
            # The parts hold on to this, and so to the log with all its events. Now all go as soon as nobody needs
            # them, and not only when the collector comes, which is rare.
            self.thread.context = None
            self.waits.branches.close()
            self._let_go()

    def _let_go(self) -> None:
        """Drops the references of the parts to this object."""
        self.waits.close()
        self.data.team = None

    async def _live(self) -> None:
        waits = self.waits
        try:
            output = await self._enter()
        except BaseException as error:
            if process_exits.is_signal(error):
                self.drop()
                raise  # it is for the process
            if waits.process_ends:
                self.drop()
            else:
                await self._left_by(error)
        else:
            if waits.process_ends:
                self.drop()
            elif not waits.over:
                if waits.leaving is not None:
                    self._leave_now(None)
                else:
                    self._succeed(output)

    async def _left_by(self, error: BaseException) -> None:
        """Ends the execution after an error of the handler, or before the handler was entered."""
        waits = self.waits
        if isinstance(error, StoreError):
            if not waits.over:
                if not waits.entered:
                    waits.leaving = waits.leaving or "hand_back"  # the store failed, not the agent
                self._leave_now(error)
        elif isinstance(error, Suspended):
            if not waits.over:
                self._leave_now(None)
        elif isinstance(error, ProcessDied) and waits.leaving is None and not waits.over:
            self._crashed(error)
        else:
            await self._leave_unless_over(None if isinstance(error, asyncio.CancelledError) else error)

    def _crashed(self, error: ProcessDied) -> None:
        """Resumes the run after the agent's worker process died, as often as after a crash of this process."""
        agent, row = self.agent, self.data.row
        assert agent is not None
        row.crashes += 1
        log_.warning("agent %s: %s (run %s)", row.agent, error.message, row.id)
        if row.crashes >= agent.retries:
            self.fail(error.final(agent.retries or 1).info())
        else:
            self.suspend(0)

    async def _leave_unless_over(self, error: BaseException | None) -> None:
        if not self.over and not self.waits.entered:
            try:
                await self._end_without_handler(error)
            except asyncio.CancelledError:  # cancelled while it notifies the remote side: it is ending anyway
                if self.worker.is_ending:
                    self.drop()
        if not self.over:
            self._leave_now(error)

    def drop(self) -> None:
        """Writes nothing more: the run is resumed from its log, as after `kill -9`."""
        if not self.over:
            self.log.refused(None, Fenced("the process ends"))

    def exit(self, error: BaseException) -> None:
        """Fails the run, because a task of the handler tried to end the process."""
        if not self.over and self.leaving is None:
            self.exited = self.ending.describe(error)
            self.leave("exit")

    async def _end_without_handler(self, error: BaseException | None) -> None:
        """Notifies the remote side of a run that ends while its handler is not in memory.

        That is before the end is written: where the process dies meanwhile, the next one does it again.
        """
        agent, row, replay, cancelling = self.agent, self.data.row, self.replay, self.data.cancelling
        lost = isinstance(error, RunLost)
        if not replay.started or not (lost or cancelling):
            return
        if agent is None:
            stored = await self.worker.store.cards.get(row.agent, row.version, row.origin)
            if not replay.cancelled and is_mounted(stored.card if stored is not None else None):
                # Only a process with the agent's code can tell the remote side. A second cancel ends the run anyway.
                self.suspend(0)
            return
        if agent.on_cancel is None:
            return
        if cancelling:
            self.waits.leaving = "cancel"  # nothing may come between
        self.questions.withdraw_all(FOR_GOOD["cancel"] if cancelling else f"the run failed: {error}"[:REASON_HAS])
        if self._grace is not None:
            self._grace.cancel()
        with contextlib.suppress(InterlinguaError):  # what the store refuses ends this execution: it is over then
            await self.log.flush()  # readers see that it is stopping
        if self.over:
            return
        left = LeftRun(row.id, row.thread, self.request, "cancelled" if cancelling else "lost", replay.records)
        await self.worker.spawn(tell_remote_side(agent.on_cancel, left, self.worker.settings.cancel_grace))

    # -- entering -----------------------------------------------------------------------------------------

    async def _enter(self) -> Any:
        """Calls the handler from the top; replay returns its recorded results."""
        row, agent = self.data.row, self.agent
        self._resume()
        entry, self.entry = self.entry, None
        await self.entrance.load(entry)
        if self.data.cancelling:
            raise asyncio.CancelledError
        assert agent is not None
        before = await self.entrance.write(agent, self.taken_over_from)
        self.entrance.take_assignment()
        if agent.ctx_param is not None:
            make = agent.ctx_type or Context
            self.thread.context = make(self, self.thread.decoded(), self.entrance.decoded_config(agent))
        self.activity.tick()
        self.waits.entered = True
        process_exits.contain(self)
        branches.enter(self.waits.branches.root)
        if not tracing.enabled():
            return await handler_call.invoke(self)
        with tracing.invoke_agent(row, self.request.trace, before, remote=is_mounted(agent.card)):
            return await handler_call.invoke(self)

    def _resume(self) -> None:
        """Reopens the questions, children and mail that were open when the run was left."""
        self.questions.resume()
        self.children.resume()
        self.mailbox.resume()

    # -- leaving ------------------------------------------------------------------------------------------

    def leave(self, how: Leaving) -> None:
        """Asks the handler to stop; after a grace period, goes on without it."""
        waits = self.waits
        if waits.over or waits.leaving in FOR_GOOD or waits.leaving == how:
            return
        waits.leaving = how
        if how in FOR_GOOD:
            # The handler gets no more answers. Most handlers stop at once, and their end withdraws their questions.
            clock = self.worker.clock
            clock.call_at(clock.monotonic() + _A_TURN, self.questions.withdraw_all, FOR_GOOD[how])
        self._news_at_leave = self.inbox.news
        self.threads.release()
        if self.task is None:
            self._leave_now(None)
            return
        self._interrupt()

    def _interrupt(self) -> None:
        assert self.task is not None
        if self.waits.suspending:
            self.waits.suspend()
        elif not self.data.in_thread:
            self.waits.branches.resume()
            self.task.cancel()
        clock = self.worker.clock
        self._grace = clock.call_at(clock.monotonic() + self.worker.settings.cancel_grace, self._abandon)

    def block_run(self, reason: BlockReason, message: str, details: Any = None) -> NoReturn:
        """Blocks the run, because this code cannot continue it. Other code of its origin may."""
        self.blocked_by = self.blocked_by or RunBlocked(reason, message, details)
        if self.leaving is None:
            self.waits.leaving = "block"
            self.threads.release()
            if self.task is not None and asyncio.current_task() is not self.task:
                self._interrupt()  # the handler may do something else meanwhile, or wait for ever
        raise Suspended

    def _branch_ended(self, branch: Branch, task: asyncio.Task[Any]) -> None:
        """Blocks the run if a task of the handler ended before it reached all of its records."""
        waits = self.waits
        if waits.suspending and not task.cancelled():
            task.exception()  # nobody may be left who looks at it
        if waits.blocked:
            self.activity.tick()  # those that wait may be all that is left
        if waits.over or waits.leaving is not None or task.cancelled() or self.replay.caught_up:
            return
        if task.exception() is None:
            with contextlib.suppress(Suspended):
                self.calls.check_used(branch)

    def _abandon(self) -> None:
        if not self.over:
            log_.warning(
                "agent %s did not stop within %g s (run %s); it is abandoned",
                self.data.row.agent, self.worker.settings.cancel_grace, self.data.row.id,
            )  # fmt: skip
            self.worker.abandoned += 1
            if self.task is not None:
                self.task.cancel()
            self._leave_now(None)

    def _leave_now(self, error: BaseException | None) -> None:
        how = self.leaving
        if self.log.lost is not None:
            self._end()
        elif self.data.cancelling or how in FOR_GOOD:
            self._finish(*self.ending.outcome(how, error))
        elif how == "park":
            # Items that came while the handler was leaving are in the log, and the handler has not seen them.
            self.suspend(0 if self.inbox.news != self._news_at_leave else self.waits.next_deadline())
        elif how == "hand_back":
            self.suspend(0)
        elif how == "block":
            assert self.blocked_by is not None
            self.ending.block(self.blocked_by)
            self.suspend(None)
        elif self.ending.fell_short(error, bound=self.bound):
            info = self.exited or (ITSELF if error is None else self.ending.describe(error))
            why = f"the code failed before it came as far as the run had come: {info.message}"
            self.ending.block(RunBlocked("failed_on_resume", why, {"error": msgspec.to_builtins(info)}))
            self.suspend(None)
        elif self.exited is not None:
            self.fail(self.exited)
        else:
            self._finish(*self.ending.outcome(how, error))

    def _succeed(self, output: Any) -> None:
        """Checks the output and state of a handler that returned, and finishes the run."""
        try:
            output, state = self.ending.result_of(output)
        except Suspended:
            self._leave_now(None)
        except Exception as error:
            self.fail(self.ending.describe(error))
        else:
            self.ending.finish(Status.SUCCEEDED, output=output, state=state)
            self._end()

    def _finish(self, status: Status, error: ErrorInfo) -> None:
        self.ending.finish(status, error=error)
        self._end()

    def fail(self, error: ErrorInfo) -> None:
        self._finish(Status.FAILED, error)

    def fail_unentered(self, error: ErrorInfo) -> None:
        """Ends a run without calling its handler, after the store refused its own end."""
        self._resume()
        self.fail(error)

    def suspend(self, wake_at: int | None) -> None:
        """Suspends the run: it leaves memory, and is resumed from its log."""
        row = self.data.row
        self.clock.stop()
        row.worker, row.wake_at, row.ran = None, wake_at, self.clock.ran
        self.log.touch(close=True)
        self._end()

    def _end(self) -> None:
        self.waits.over = True
        self.log.on_full = None  # the log outlives this object
        self.activity.end()
        for handle in (self._grace, self.entrance.last_call):
            if handle is not None:
                handle.cancel()
        self.threads.release()
        for future in list(self.waits.awaited):  # of tasks that the handler has abandoned
            future.cancel()
        if self.task is None:
            self._let_go()
        self.worker.ended(self)

    def after_refusal(self, error: BaseException) -> None:
        """Ends the execution after the store refused a write."""
        if isinstance(error, ThreadConflict):
            self.worker.fail_soon(self.data.row.id, error.info())
        elif not self.over:
            self.waits.leaving = self.waits.leaving or "hand_back"
            if self.task is not None and not self.task.done():
                self.task.cancel()
            self._end()

    def _log_is_full(self) -> None:
        if not self.over and self.task is not None:
            self.leave("full")

    # -- the inbox ----------------------------------------------------------------------------------------

    async def pull_inbox(self) -> None:
        """Moves the items of the inbox into the log."""
        if not self.over:
            await self.inbox.pull()

    def pull_soon(self) -> None:
        self.inbox.pull_soon()

    def take(self, item: InboxItem) -> bool:
        """Moves a new item of the inbox into the log. Returns False if the inbox must be read."""
        return self.inbox.take(item)
