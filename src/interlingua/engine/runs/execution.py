"""One run in this process, from entering the handler to leaving it.

An execution ends in one of five ways: the handler is done (succeeded or failed), it was cancelled, it ran out of time,
it is parked (it waits, and waiting needs no memory), or it is handed back (the process stops). In the last two the run
goes on later, maybe elsewhere, from its log. What the handler may do is in `operations`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import msgspec

from ...model import json_values
from ...model.content import Message, TextPart
from ...model.delta import ABSENT, DeltaError
from ...model.errors import (
    AgentError,
    ChildFailed,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidOutput,
    InvalidRequest,
    InvalidState,
    RunCancelled,
    RunLost,
    RunTimedOut,
    StoreError,
    ThreadBusy,
    ThreadConflict,
    TooLarge,
)
from ...model.events import (
    BlockReason,
    CancelRequested,
    CodeChanged,
    Emission,
    MessageSent,
    OutputDelta,
    QuestionWithdrawn,
    Recorded,
    RunBlocked,
    RunFinished,
    RunRestarted,
    RunStarted,
    Warned,
)
from ...model.run import RunRequest
from ...model.status import Status
from ...model.whole_text import whole
from ...store.changes import (
    BlockRun,
    Change,
    ChildNews,
    CloseQuestion,
    CommitThread,
    DeleteRun,
    Fenced,
    PutInbox,
)
from ...store.rows import SUSPECT
from ..agents import mount_path
from ..agents.process_pool import ProcessDied
from ..clock import Alarm
from ..error_text import describe
from ..handler import branches, handler_call, mounted_run, process_exits
from ..handler.branches import Branch, Watched, engine_works, is_thread_of, no_branch
from ..handler.context import Context
from ..handler.operations import Operations
from ..handler.split_text import Pieces
from ..handler.suspension import Suspended
from ..ids import new_id, now
from ..log.replay import LATE, STATE, Replay
from ..log.run_log import LiveLog, encode
from ..observe import run_logging, tracing
from .blocked_runs import is_unexpected

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from .concurrency_limits import AgentLimit
    from .entry import Entry
    from .worker import Worker

log_ = logging.getLogger("interlingua.engine")

T = TypeVar("T")

_STILL_RUNNING = 1.0  # seconds of silence after which an agent with a waiting branch counts as waiting
_A_TURN = 0.05  # seconds that a branch of the handler has, when it goes on while another waits
_LONGEST_PAUSE = 1.0
_NOT_WORTH_PARKING = 50_000  # microseconds until something is due
ITSELF = ErrorInfo("agent_crashed", "the agent cancelled itself")
Leaving = Literal["cancel", "timeout", "park", "hand_back", "block", "exit", "full"]
_FOR_GOOD: dict[Leaving, str] = {
    "cancel": "the run was cancelled", "timeout": "the run timed out", "full": "the log of the run is full",
}  # fmt: skip
_OVER = {
    Status.CANCELLED: "the run was cancelled", Status.TIMED_OUT: "the run timed out", Status.FAILED: "the run failed",
    Status.SUCCEEDED: "the run succeeded",
}  # fmt: skip
_REASON_HAS = 1000  # characters


class Execution(Operations):
    # Most runs never set most of these. On the class they cost a run nothing; and Python keeps the members of an object
    # in little room only up to thirty of them.
    leaving: Leaving | None = None
    blocked_by: RunBlocked | None = None  # why the code cannot go on, where it cannot
    exited: ErrorInfo | None = None  # a task of the handler tried to end the process
    entry: Entry | None = None  # everything that was known of the run when it came in, until the handler begins
    over = False  # nothing that the handler does counts any more
    taken_over_from: int | None = None  # the time of its last event, where the worker died that had it
    task: asyncio.Task[None] | None = None
    ctx: Any = None
    limit: AgentLimit | None = None  # of its agent, where its runs are counted
    listens = 0  # how many branches of the handler would miss something if it were set aside
    _entered = False
    _counted_idle = False
    _active_at = 0.0
    _checkpoint: str | None = None
    _state: Any = None
    _thread_version = 0
    _news_at_leave = 0
    _usage: dict[str, Any] | None = None
    pieces: Pieces | None = None  # from the first half of a character on
    _grace: asyncio.TimerHandle | None = None
    _clock: asyncio.TimerHandle | None = None
    _clock_from: float | None = None
    _park: asyncio.Handle | None = None
    _park_pause = _A_TURN  # seconds until the next look whether all tasks of the handler wait
    bound = False  # the input has become the arguments of the handler
    _last_call: Alarm | None = None  # the deadline of the task that this run is part of

    def __init__(self, worker: Worker, agent: Agent[..., Any] | None, log: LiveLog, replay: Replay) -> None:
        super().__init__()
        assert replay.created is not None
        self.worker = worker
        self.agent = agent
        self.log = log
        self.replay = replay
        self.request: RunRequest = replay.created.request
        self.history: list[Message] = []
        self.cancelling = replay.cancelled
        self.rollback = replay.rollback
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._timeout = self.request.timeout or (agent.timeout if agent else None)
        log.bound(worker.settings, self._log_is_full)
        replay.bound(worker.settings.keep_live_bytes)
        log.callback = self.request.callback

    @property
    def thread(self) -> str | None:
        """Its own, or the one that its caller lent to it."""
        assignment = self.request.assignment
        return self.log.row.thread or (assignment.thread if assignment is not None else None)

    @property
    def on_thread(self) -> bool:
        assignment = self.request.assignment
        return self.log.row.thread is not None or (assignment is not None and assignment.lent)

    @property
    def state_before(self) -> Any:
        """Of the thread, as every entry of this run begins with it."""
        return self._state if isinstance(self._state, dict) else {}

    def current_state(self) -> Any:
        return self._final_state() if self.on_thread else None

    def root_thread(self) -> str | None:
        """The thread of the run that all this began with, where that is here too."""
        path = self.log.row.path
        log = self.worker.log_of(path.split("/")[1]) if path else None
        return log.row.thread if log is not None else None

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        # Its own context: it may be started by the handler of another run, which calls it.
        context = no_branch()
        context.run(process_exits.contain, None)
        root = self.branches.root
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
            # Nothing of ours may fail here; if it does, the run is handed back instead of hanging.
            log_.exception("run %s could not be ended in good order", self.log.row.id)
            if not self.over:
                self._end()
            self.worker.hand_back_soon(self.log.row.id, error)
        finally:
            # The context holds on to this, and so to the log with all that was said. Now both go as soon as nobody
            # needs them, and not only when the collector comes, which is rare.
            self.ctx = None
            self.branches.close()

    async def _live(self) -> None:
        try:
            output = await self._enter()
        except BaseException as error:
            if process_exits.is_signal(error):
                self.drop()
                raise  # it is for the process
            if self._process_ends:
                self.drop()
            else:
                await self._left_by(error)
        else:
            if self._process_ends:
                self.drop()
            elif not self.over:
                if self.leaving is not None:
                    self._leave_now(None)
                else:
                    self._succeed(output)

    async def _left_by(self, error: BaseException) -> None:
        """The handler raised something, or was not entered because of it."""
        if isinstance(error, StoreError):
            if not self.over:
                if not self._entered:
                    self.leaving = self.leaving or "hand_back"  # the store failed us, not the agent
                self._leave_now(error)
        elif isinstance(error, Suspended):
            if not self.over:
                self._leave_now(None)
        elif isinstance(error, ProcessDied) and self.leaving is None and not self.over:
            self._crashed(error)
        else:
            await self._leave_unless_over(None if isinstance(error, asyncio.CancelledError) else error)

    def _crashed(self, error: ProcessDied) -> None:
        """The worker process of the agent died: the run is entered again, as often as after a crash of this one."""
        agent, row = self.agent, self.log.row
        assert agent is not None
        row.crashes += 1
        log_.warning("agent %s: %s (run %s)", row.agent, error.message, row.id)
        if row.crashes >= agent.retries:
            self._fail(error.final(agent.retries or 1).info())
        else:
            self._set_aside(0)

    async def _leave_unless_over(self, error: BaseException | None) -> None:
        if not self.over and not self._entered:
            try:
                await self._end_without_handler(error)
            except asyncio.CancelledError:  # cancelled while it tells: it is ending anyway
                if self.worker.is_ending:
                    self.drop()
        if not self.over:
            self._leave_now(error)

    @property
    def _process_ends(self) -> bool:  # type: ignore[override]
        """Whether the task was cancelled with the process, or the event loop, and not by us or by the agent."""
        return self.leaving is None and self.task is not None and self.task.cancelling() > 0 and self.worker.is_ending

    def drop(self) -> None:
        """Write nothing more: the run goes on from its log, as after `kill -9`."""
        if not self.over:
            self.log.refused(None, Fenced("the process ends"))

    def exit(self, error: BaseException) -> None:
        """A task of the handler tried to end the process: the run fails."""
        if not self.over and self.leaving is None:
            self.exited = self._describe(error)
            self.leave("exit")

    async def _end_without_handler(self, error: BaseException | None) -> None:
        """See to what the handler has begun elsewhere, if the run ends now and the handler is not in memory for it.

        That is before the end is written: where the process dies meanwhile, the next one does it again.
        """
        agent, row, replay = self.agent, self.log.row, self.replay
        lost = isinstance(error, RunLost)
        if not replay.started or not (lost or self.cancelling):
            return
        if agent is None:
            stored = await self.worker.store.cards.get(row.agent, row.version, row.origin)
            if not replay.cancelled and mount_path.is_mounted(stored.card if stored is not None else None):
                # Only a process with the agent's code can tell the remote side. Whoever asks once more insists.
                self._set_aside(0)
            return
        if agent.on_cancel is None:
            return
        if self.cancelling:
            self.leaving = "cancel"  # nothing may come between
        self._withdraw_all(_FOR_GOOD["cancel"] if self.cancelling else f"the run failed: {error}"[:_REASON_HAS])
        if self._grace is not None:
            self._grace.cancel()
        with contextlib.suppress(InterlinguaError):  # what the store refuses ends this execution: it is over then
            await self.log.flush()  # everyone can see that it is stopping
        if self.over:
            return
        left = mounted_run.LeftRun(row.id, row.thread, self.request, "cancelled" if self.cancelling else "lost", replay)
        await self.worker.spawn(mounted_run.tell(agent.on_cancel, left, self.worker.settings.cancel_grace))

    async def _enter(self) -> Any:
        """Run the handler from the top, with its records given back."""
        log, replay, agent = self.log, self.replay, self.agent
        self._resume_waits()
        await self._prepare()
        if self.cancelling:
            raise asyncio.CancelledError
        assert agent is not None
        row = log.row
        entered = now()
        if self.taken_over_from is not None:
            stood_still = max(0, entered - self.taken_over_from) / 1e6
            self.worker.meters.entered_again(row.agent, self.request.caller, stood_still)
            run_logging.taken_over(row, stood_still)
        if replay.started and agent.retries == 0:
            raise RunLost("the process that ran it ended, and this agent must not be repeated", transient=True)
        if replay.started and row.crashes > SUSPECT and row.crashes >= agent.retries:  # the last one was its own doing
            times = max(SUSPECT, agent.retries)  # those with few retries are suspects after one crash
            raise RunLost(f"the process that ran it died {times} times without progress", transient=False)
        due = self._due()
        if not replay.started:
            self.worker.meters.started(row.agent, self.request.caller, max(0, entered - due) / 1e6)
            code = agent.code if agent.code != replay.code else ""
            log.append(RunStarted(self.worker.id, row.epoch, self._checkpoint, self._thread_version, code))
            if agent.retries == 0:
                await log.flush()  # the next process must know that this one may have called the handler
                if self.leaving is not None:
                    raise asyncio.CancelledError
        elif agent.code != replay.code:
            log.append(CodeChanged(replay.code, agent.code))
        self._take_assignment()
        if agent.ctx_param is not None:
            self.ctx = (agent.ctx_type or Context)(self, self._decode_state(), self._decode_config())
        self._tick()
        self._entered = True
        process_exits.contain(self)
        branches.enter(self.branches.root)
        if not tracing.wanted():
            return await handler_call.invoke(self)
        before = tracing.Before(entered, None if replay.started else due, self.taken_over_from)
        with tracing.invoke_agent(row, self.request.trace, before, remote=mount_path.is_mounted(agent.card)):
            return await handler_call.invoke(self)

    def _due(self) -> int:
        """When it could have started for the first time: it was there, its delay was over, and its thread was its own
        (which is the last thing that happens to the row of a run before it starts)."""
        row = self.log.row
        return max(row.created_at + int(self.request.delay * 1e6), row.updated_at)

    def _take_assignment(self) -> None:
        authority, assignment = self.request.authority, self.request.assignment
        if authority is not None and authority.deadline is not None:
            self._last_call = self.worker.clock.at(authority.deadline, partial(self.leave, "timeout"))
        if assignment is not None:
            self.given = [] if assignment.sealed else None
            if assignment.lent:
                self._state, self.history = assignment.state, assignment.history

    async def _prepare(self) -> None:
        store, row, replay = self.worker.store, self.log.row, self.replay
        entry, self.entry = self.entry, None
        taken_by = None
        if entry is not None and entry.thread is not None:
            taken = entry.thread
            self._checkpoint, self._thread_version, self._state = taken.checkpoint, taken.version, taken.values
            if self._checkpoint is not None and self.agent is not None and self.agent.reads_history:
                checkpoint = await store.threads.checkpoint(self._checkpoint)
                upto = checkpoint.messages if checkpoint is not None else 0
                self.history = await store.threads.messages(taken.id, upto=upto)
        elif row.thread is not None:
            if replay.started:
                self._checkpoint = replay.checkpoint
                self._thread_version = replay.thread_version
            else:
                thread = await store.threads.get(row.thread)
                if thread is not None:
                    self._checkpoint, self._thread_version = thread.checkpoint, thread.version
                    self._state = thread.values
                    taken_by = thread.active if thread.active != row.id else None
            if self._checkpoint is not None:
                checkpoint = await store.threads.checkpoint(self._checkpoint)
                if checkpoint is not None:
                    self._state = checkpoint.values
                    if self.agent is not None and self.agent.reads_history:
                        self.history = await store.threads.messages(row.thread, upto=checkpoint.messages)
        if entry is None or not entry.inbox_empty:
            await self._pull()
        if taken_by is not None and not self.cancelling:
            raise ThreadBusy(f"thread {row.thread} was busy with run {taken_by} when the time of this run had come")

    def _decode_state(self) -> Any:
        assert self.agent is not None
        state = json_values.copy(self._state) if isinstance(self._state, dict) else {}
        if self.agent.state is None:
            return state
        return self.agent.state.decode(state, InvalidState)

    def _decode_config(self) -> Any:
        assert self.agent is not None
        config = self.request.config if self.request.config is not None else {}
        if self.agent.config is None:
            return config
        return self.agent.config.decode(config, Invalid)

    # -- ending -------------------------------------------------------------------------------------------

    def leave(self, how: Leaving) -> None:
        """Ask the handler to stop; after a grace, go on without it."""
        if self.over or self.leaving in ("cancel", "timeout", "full") or self.leaving == how:
            return
        self.leaving = how
        if how in _FOR_GOOD:
            # The handler hears no answer any more. Most stop at once, and what they asked is withdrawn with their end.
            self.loop.call_later(_A_TURN, self._withdraw_all, _FOR_GOOD[how])
        self._news_at_leave = self.news
        self.release_waits()
        if self.task is None:
            self._leave_now(None)
            return
        self._interrupt()

    def _interrupt(self) -> None:
        assert self.task is not None
        if self.suspending:
            self._suspend()
        elif not self._in_thread:
            self.branches.resume()
            self.task.cancel()
        grace = self.worker.settings.cancel_grace
        self._grace = self.loop.call_later(grace, self._abandon)

    @property
    def _in_thread(self) -> bool:
        """Whether the handler is a plain function in a thread of this process."""
        agent = self.agent
        return agent is not None and agent.shape.startswith("sync") and not agent.process

    def _suspend(self) -> None:
        """Raise Suspended where the handler waits. Its tasks that do something else can only be cancelled."""
        here = asyncio.current_task()
        busy = []
        if not self._in_thread:
            busy = self.branches.busy(self._awaited)
            self.branches.suspend(busy)
        for future in list(self._awaited):
            if not future.done():
                future.set_exception(Suspended())
        for branch in busy:
            if branch.task is not None and branch.task is not here:
                branch.task.cancel()

    def block_run(self, reason: BlockReason, message: str, details: Any = None) -> NoReturn:
        """Stop here because the code cannot go on with this run. Other code of its origin may."""
        self.blocked_by = self.blocked_by or RunBlocked(reason, message, details)
        if self.leaving is None:
            self.leaving = "block"
            self.release_waits()
            if self.task is not None and asyncio.current_task() is not self.task:
                self._interrupt()  # the handler may do something else meanwhile, or wait for ever
        raise Suspended

    def _set_blocked(self, body: RunBlocked) -> None:
        """Set the run aside until other code comes."""
        row = self.log.row
        body.code = self.agent.code if self.agent is not None else ""
        reason = json_values.encode({"reason": body.reason, "message": body.message, "details": body.details}).decode()
        row.crashes, row.blocked_reason = 0, reason
        run_logging.blocked(row, body)
        changes: list[Change] = [BlockRun(row.id, body.code, reason)]
        if row.parent is not None and not row.sealed:
            said = f"agent {row.agent} (run {row.id}) is blocked: {body.message}"
            told = Warned(said, {"blocked": body.reason, "run": row.id}, f"{LATE}blocked")  # no handler gives it again
            changes.append(PutInbox(row.parent, "relay", encode(told)))
        self.log.append(body, *changes)
        self._set_aside(None)

    def _fell_short(self, error: BaseException | None) -> bool:
        """Whether the code failed before it came as far as the run had come: that is no end of the run."""
        replay, agent = self.replay, self.agent
        if not replay.started or agent is None or mount_path.is_mounted(agent.card):
            return False
        # Mail that it has yet to come to is what it waited for, and what woke it.
        unread = self.has_mail and not self.waited
        short = not self.bound or not replay.caught_up or unread or self._left_no_trace
        return short and (error is None or is_unexpected(error))

    @property
    def _left_no_trace(self) -> bool:
        """Whether neither the first code nor this one, which is another, came to a call: how far the first had come is
        not known."""
        replay, agent = self.replay, self.agent
        assert agent is not None
        return not (replay.has_calls or self.called) and agent.code != replay.first_code

    def _branch_ended(self, branch: Branch, task: asyncio.Task[Any]) -> None:
        """A task of the handler has ended. What its history has and it did not come to blocks the run."""
        if self.suspending and not task.cancelled():
            task.exception()  # nobody may be left who looks at it
        if self.blocked:
            self._tick()  # those that wait may be all that is left
        if self.over or self.leaving is not None or task.cancelled() or self.replay.caught_up:
            return
        if task.exception() is None:
            with contextlib.suppress(Suspended):
                self.check_used(branch)

    def _abandon(self) -> None:
        if not self.over:
            log_.warning(
                "agent %s did not stop within %g s (run %s); it is left behind",
                self.log.row.agent, self.worker.settings.cancel_grace, self.log.row.id,
            )  # fmt: skip
            self.worker.abandoned += 1
            if self.task is not None:
                self.task.cancel()
            self._leave_now(None)

    def _leave_now(self, error: BaseException | None) -> None:
        how = self.leaving
        if self.log.lost is not None:
            self._end()
        elif self.cancelling or how == "cancel":
            self._finish(Status.CANCELLED, error=RunCancelled("the run was cancelled").info())
        elif how == "timeout":
            self._finish(Status.TIMED_OUT, error=RunTimedOut(self._why_late()).info())
        elif how == "full":
            most = self.worker.settings.max_log_bytes
            self._fail(TooLarge(f"the log of the run has more than {most} bytes (limits.max_log_bytes)").info())
        elif how == "park":
            # What came in while the handler was leaving is in the log, and it has not seen it.
            self._set_aside(0 if self.news != self._news_at_leave else self.next_deadline())
        elif how == "hand_back":
            self._set_aside(0)
        elif how == "block":
            assert self.blocked_by is not None
            self._set_blocked(self.blocked_by)
        elif self._fell_short(error):
            info = self.exited or (ITSELF if error is None else self._describe(error))
            said = f"the code failed before it came as far as the run had come: {info.message}"
            self._set_blocked(RunBlocked("failed_on_resume", said, {"error": msgspec.to_builtins(info)}))
        elif self.exited is not None:
            self._fail(self.exited)
        elif error is None:
            self._fail(ITSELF)
        else:
            info = self._describe(error)
            if self._task_is_over and (isinstance(error, ChildFailed) or info.code == RunTimedOut.code):
                # Whom it called was told a moment earlier than itself.
                self._finish(Status.TIMED_OUT, error=RunTimedOut(self._why_late()).info())
            elif info.code == RunCancelled.code and self.agent is not None and mount_path.is_mounted(self.agent.card):
                # Somebody cancelled it where it really runs: then it is cancelled here too.
                self.log.append(CancelRequested(reason=info.message))
                self._finish(Status.CANCELLED, error=info)
            else:
                self._fail(info)

    @property
    def _task_is_over(self) -> bool:
        authority = self.request.authority
        return authority is not None and authority.deadline is not None and authority.deadline <= now()

    def _why_late(self) -> str:
        if self._timeout is None or self._task_is_over:
            return "the time of its task is over"
        return f"the run took longer than {self._timeout:g} s"

    def _describe(self, error: BaseException) -> ErrorInfo:
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            return self._describe(error.exceptions[0])
        info = describe(error)
        if info.code == "agent_crashed" and not isinstance(error, AgentError):
            log_.warning("agent %s failed (run %s)", self.log.row.agent, self.log.row.id, exc_info=error)
        try:
            return ErrorInfo(info.code, whole(info.message), info.transient, json_values.clean(info.details))
        except Invalid:
            return ErrorInfo(info.code, whole(info.message), info.transient)

    def _fail(self, error: ErrorInfo) -> None:
        self._finish(Status.FAILED, error=error)

    def _succeed(self, output: Any) -> None:
        """The handler is done: check what it leaves behind, and finish."""
        agent = self.agent
        assert agent is not None
        try:
            self.end_pieces()
            self.check_used()
            self._write_again(*self.replay.emissions.finish())
            if output is None:
                joined = self.replay.emissions.output.value
                output = {} if joined is ABSENT else joined
            output = json_values.clean(self.with_checked_attachments(output), InvalidOutput, what="output")
            agent.check_output.check(output, InvalidOutput, checked=True)
            state = self._final_state()
        except Suspended:
            self._leave_now(None)
            return
        except Exception as error:
            self._fail(self._describe(error))
            return
        if self.request.assignment is not None and self.request.assignment.lent:
            self.log.append(Recorded(STATE, state))
        self._finish(Status.SUCCEEDED, output=output, state=state)

    def _final_state(self) -> Any:
        agent = self.agent
        if not self.on_thread:
            return msgspec.UNSET
        if self.ctx is None:
            return self._state if self._state is not None else {}
        assert agent is not None
        try:
            state = agent.state.encode(self.ctx.state) if agent.state is not None else self.ctx.state
        except Invalid as error:
            raise InvalidState(error.message) from error
        if agent.check_state is not None:
            agent.check_state.check(state, InvalidState)
        else:
            json_values.check(state, InvalidState, what="state")
        return state

    def _finish(
        self,
        status: Status,
        *,
        output: Any = None,
        error: ErrorInfo | None = None,
        state: Any = msgspec.UNSET,
    ) -> None:
        log, row = self.log, self.log.row
        if self.pieces is not None:
            with contextlib.suppress(InterlinguaError):
                for half in self.pieces.end():
                    self.put(half)
        if status is Status.CANCELLED and log.status is not Status.CANCELLING:
            log.append(CancelRequested())
        self._withdraw_all(self._why_over(status, error))
        for question, run in list(self.replay.relayed.items()):
            del self.replay.relayed[question]
            body = QuestionWithdrawn(question, "the run that called for it is over", bool(self.replay.relayed), run)
            log.append(body, *self.relay(body))
        if log.status is Status.PENDING and status is not Status.FAILED and status is not Status.CANCELLED:
            log.append(RunStarted(self.worker.id, row.epoch))
        changes: list[Change] = []
        if children := self.running_children:
            why = json_values.encode({"by": row.caller, "reason": f"its parent {status.value.replace('_', ' ')}"})
            changes.extend(PutInbox(child, "cancel", why) for child in children)
        checkpoint = None
        if row.thread is not None:
            checkpoint = new_id() if state is not msgspec.UNSET else None
            changes.append(
                CommitThread(
                    row.thread, row.id, self._thread_version, state, checkpoint,
                    self._said(output) if checkpoint else [], status in (Status.FAILED, Status.TIMED_OUT),
                    f"{row.agent}@{row.version}",
                )
            )  # fmt: skip
        if row.parent is not None:
            assignment = self.request.assignment
            if assignment is not None and assignment.sealed:
                # Others may read the log of the run that called it. That run reads this one's.
                changes.append(ChildNews(row.parent, status, None, None))
            else:
                changes.append(ChildNews(row.parent, status, output, error))
        if self.rollback:
            changes.append(DeleteRun(row.id))
        row.worker, row.wake_at, row.queued = None, None, None
        self._stop_clock()
        row.ran = self.ran
        log.append(RunFinished(status, output, error, self._usage, checkpoint), *changes)
        self._end()

    def _withdraw_all(self, reason: str) -> None:
        if self.over:
            return
        for question in list(self.open_questions):
            self.withdraw(question, reason)

    def _why_over(self, status: Status, error: ErrorInfo | None) -> str:
        """Why nobody need answer any more. What is wrong with a run that nobody may read stays there."""
        if status is Status.FAILED and error is not None and not self.log.row.sealed:
            return f"the run failed: {error.message}"[:_REASON_HAS]
        return _OVER[status]

    def _said(self, output: Any) -> list[Message]:
        """What this run adds to the conversation of its thread."""
        said = list(self.request.messages)
        agent = self.agent
        card = agent.card if agent is not None else None
        if not said and card is not None and card.input_text and isinstance(self.request.input, dict):
            text = self.request.input.get(card.input_text)
            if isinstance(text, str):
                said.append(Message("user", [TextPart(text)]))
        said.extend(self.replay.emissions.sent)
        if card is not None and card.output_text and isinstance(output, dict):
            text = output.get(card.output_text)
            if isinstance(text, str) and text:
                said.append(Message("agent", [TextPart(text)]))
        return said

    def _set_aside(self, wake_at: int | None) -> None:
        row = self.log.row
        self._stop_clock()
        row.worker, row.wake_at, row.ran = None, wake_at, self.ran
        self.log.touch(close=True)
        self._end()

    def _end(self) -> None:
        self.over = True
        self.log.on_full = None  # the log outlives this object
        self._stop_clock()
        self._count_idle(False)
        for handle in (self._grace, self._park, self._last_call):
            if handle is not None:
                handle.cancel()
        self.release_waits()
        for future in list(self._awaited):  # of tasks that the handler has left behind
            future.cancel()
        self.worker.ended(self)

    def after_refusal(self, error: BaseException) -> None:
        """The store would not take what this run wrote."""
        if isinstance(error, ThreadConflict):
            self.worker.fail_soon(self.log.row.id, error.info())
        elif not self.over:
            self.leaving = self.leaving or "hand_back"
            if self.task is not None and not self.task.done():
                self.task.cancel()
            self._end()

    # -- time ---------------------------------------------------------------------------------------------

    def _tick(self, waits: asyncio.Task[Any] | None = None) -> None:
        """Run the clock while the handler runs; stop it, and think of parking, while it only waits. `waits`: the task
        that is about to wait."""
        if self.over:
            return
        waiting = self.blocked > 0 and self.active == 0
        self._count_idle(waiting)
        if waiting:
            self._stop_clock()
            if self.log.row.crashes and not self._executes_beside(waits):
                self.log.row.crashes = 0  # it came as far as it could: the crashes were not its doing
                self.log.touch()
            if self._park is None and self.leaving is None and self.agent is not None and self.agent.parkable:
                self._park = self.loop.call_later(self.worker.settings.park_after, self.park_if_idle)
        else:
            if self._park is not None:
                self._park.cancel()
                self._park = None
            if self._clock_from is None:
                self._run_clock()

    def _executes_beside(self, waits: asyncio.Task[Any] | None) -> bool:
        """Whether another branch executes while one waits: it may be what kills the process."""
        if self.engine_code or self._in_thread:
            return False
        return any(branch.task is not waits for branch in self.branches.busy(self._awaited))

    def _count_idle(self, idle: bool) -> None:
        """An agent that only waits takes no slot: others run, its own children for instance."""
        if idle is not self._counted_idle:
            self._counted_idle = idle
            self.worker.set_idle(self.limit, idle)

    def _stir(self) -> None:
        """The handler does something while one of its branches waits: that is running, and no time to park."""
        self._active_at = self.loop.time()
        if self._clock_from is None and not self.over:
            self._run_clock()
            self.loop.call_later(_STILL_RUNNING, self._quiet)

    def _quiet(self) -> None:
        if self.over or self.blocked == 0 or self.active > 0:
            return
        left = self._active_at + _STILL_RUNNING - self.loop.time()
        if left > 0:
            self.loop.call_later(left, self._quiet)
        else:
            self._stop_clock()

    def _run_clock(self) -> None:
        self._clock_from = self.loop.time()
        if self._timeout is not None:
            left = max(0.0, self._timeout - self.log.row.ran / 1e6)
            self._clock = self.loop.call_later(left, self.leave, "timeout")

    def _stop_clock(self) -> None:
        if self._clock_from is not None:
            self.log.row.ran = self.ran
            self._clock_from = None
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    @property
    def ran(self) -> int:
        extra = 0.0 if self._clock_from is None else self.loop.time() - self._clock_from
        return self.log.row.ran + int(extra * 1e6)

    @property
    def at_rest(self) -> bool:
        """Whether only somebody else can wake it: not time, and not what has come in already."""
        waits = self.blocked > 0 and self.active == 0 and not any(one.done() for one in self._awaited.values())
        return waits and self.next_deadline() is None

    def park_if_idle(self) -> None:
        """Set the run aside, where its handler does nothing but wait."""
        self._park = None
        if self.over or self.leaving is not None or not self.blocked or self.active:
            return
        left = self._active_at + max(self.worker.settings.park_after, _A_TURN) - self.loop.time()
        if left > 0:
            self._park = self.loop.call_later(left, self.park_if_idle)
            return
        deadline = self.next_deadline()
        if deadline is not None and deadline - now() < _NOT_WORTH_PARKING:
            return
        if any(one.done() for one in self._awaited.values()):
            self._tick()  # a branch is about to go on: parked now, nothing would wake it
            return
        if not self.engine_code and not self._in_thread and self.branches.busy(self._awaited):
            self._park_pause = min(2 * self._park_pause, _LONGEST_PAUSE)
            self._park = self.loop.call_later(self._park_pause, self.park_if_idle)
            return
        self._park_pause = _A_TURN
        if self.listens:
            asked_at = max((one.asked_at for one in self.open_questions.values()), default=0)
            if self.worker.listeners.stays(self, asked_at):
                return
        self.leave("park")

    # -- emitting -----------------------------------------------------------------------------------------

    def emit(self, body: Emission) -> None:
        if self.over or self.leaving is not None or self._process_ends:
            raise self.left()
        if self.blocked:
            self._stir()
        body.branch = self.emitting_branch()
        if self.pieces is not None:
            body = self.pieces.take(body)
        self._emit_whole(body)

    def _emit_whole(self, body: Emission) -> None:
        if self.given is not None:
            self.note(body)
        emissions = self.replay.emissions
        if emissions.idle:
            self.put(body)
            return
        taken, again, keep = emissions.match(body)
        self._write_again(again, keep)
        if not taken:
            self.put(body)

    def join_pieces(self) -> None:
        """What is emitted now holds half a character: from here on, pieces are joined before they are written."""
        self.pieces = self.pieces or Pieces(self.log.row.id)

    def end_pieces(self, step: str | None = None) -> None:
        """Emit the halves that stayed alone: of one step, or all."""
        if self.pieces is not None:
            for body in self.pieces.end(step):
                self._emit_whole(body)

    def put_last(self, body: Emission) -> None:
        """Write what comes after the run was told to end."""
        self.put(body if self.pieces is None else self.pieces.take(body))

    def put(self, body: Emission, *, again: bool = False) -> None:
        """Add to the log. `again`: it was voided together with something else."""
        if not again:
            self._attempts.note(body)
        if type(body) is OutputDelta:
            try:
                self.replay.emissions.output.add(body.delta)
            except DeltaError as error:
                raise InvalidOutput(f"the output cannot be extended by what was yielded: {error}") from error
        elif type(body) is MessageSent:
            self.replay.emissions.sent.append(body.message)
        self.log.append(body)

    def _log_is_full(self) -> None:
        if not self.over and self.task is not None:
            self.leave("full")

    def _write_again(self, bodies: list[Emission], keep: int | None) -> None:
        """Void what was emitted after an event, and write what of it stands."""
        if keep is not None:
            self.log.append(RunRestarted(keep, "the agent took another path than before"))
            emissions = self.replay.emissions
            self._attempts.restarted(keep, emissions.output.value, len(emissions.sent))
        for body in bodies:
            self.put(body)

    def add_usage(self, counts: dict[str, Any]) -> None:
        json_values.check(counts, Invalid, what="usage")
        usage = self._usage = self._usage or {}
        for name, count in counts.items():
            old = usage.get(name)
            both = isinstance(old, int | float) and isinstance(count, int | float)
            usage[name] = old + count if both else count

    # -- threads ------------------------------------------------------------------------------------------

    def block(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something of the event loop from an agent's own thread, and wait for it there."""
        if threading.get_ident() == self._thread_id:
            work.close()
            raise RuntimeError("a SyncContext was used on the event loop; use it in the agent's own thread")
        if not is_thread_of(self.branches):
            work.close()
            raise InvalidRequest(
                "the context of a run was used in a thread that its handler started itself; use it in the thread of "
                "the handler, and give the other thread what it needs"
            )
        if self.over or self.leaving is not None:
            work.close()
            raise self.left()
        with engine_works():  # the task that works is no branch
            future = asyncio.run_coroutine_threadsafe(_settled(work), self.loop)
        self.blocking.add(future)
        try:
            result, error = future.result()
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # there is one where there is no error
        except (asyncio.CancelledError, _cancelled_error()):
            raise self.left() from None
        finally:
            self.blocking.discard(future)

    def withdraw(self, question: str, reason: str) -> None:
        del self.open_questions[question]
        still_open = bool(self.open_questions or self.replay.relayed)
        body = QuestionWithdrawn(question, reason, still_open)
        self.log.append(body, CloseQuestion(question, "withdrawn", reason), *self.relay(body))


async def _settled(work: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What work gives, or how it tries to end the process: that is raised where it was called, and in no task."""
    try:
        return await work, None
    except process_exits.EXITS as error:
        if process_exits.is_signal(error):
            raise
        return None, error


def _cancelled_error() -> type[BaseException]:
    from concurrent.futures import CancelledError

    return CancelledError
