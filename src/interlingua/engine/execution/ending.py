"""The end of a run: what it leaves behind, and everything that is written with it in one transaction."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from ...model import json_values
from ...model.delta import ABSENT
from ...model.errors import (
    AgentError,
    ChildFailed,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidOutput,
    RunCancelled,
    RunTimedOut,
    TooLarge,
)
from ...model.events import CancelRequested, Recorded, RunBlocked, RunFinished, RunStarted, Warned
from ...model.status import Status
from ...model.whole_text import whole
from ...store.changes import BlockRun, Change, ChildNews, CommitThread, DeleteRun, PutInbox
from ..agents.mount_path import is_mounted
from ..error_text import describe
from ..handler import process_exits
from ..handler.calls import Calls
from ..handler.child_runs import ChildRuns
from ..handler.mailbox import Mailbox
from ..handler.mounted_run import LeftRun, OnCancel
from ..handler.output import Output
from ..handler.questions import Questions
from ..handler.run_data import RunData
from ..handler.suspension import Leaving
from ..handler.thread_state import ThreadState
from ..handler.waits import Waits
from ..ids import new_id
from ..log.replay import LATE, STATE
from ..log.run_log import encode
from ..observe import run_logging
from .run_clock import RunClock

log_ = logging.getLogger("interlingua.engine")

ITSELF = ErrorInfo("agent_crashed", "the agent cancelled itself")
FOR_GOOD: dict[Leaving, str] = {
    "cancel": "the run was cancelled", "timeout": "the run timed out", "full": "the log of the run is full",
}  # fmt: skip
"""Ways to leave a run that end it, and why nobody need answer its questions then."""
_OVER = {
    Status.CANCELLED: "the run was cancelled", Status.TIMED_OUT: "the run timed out", Status.FAILED: "the run failed",
    Status.SUCCEEDED: "the run succeeded",
}  # fmt: skip
REASON_HAS = 1000  # characters


class Ending:
    __slots__ = (
        "_calls",
        "_children",
        "_clock",
        "_data",
        "_mailbox",
        "_output",
        "_questions",
        "_thread",
        "_waits",
        "_worker",
    )

    def __init__(
        self, data: RunData, waits: Waits, calls: Calls, output: Output, questions: Questions, mailbox: Mailbox,
        children: ChildRuns, thread: ThreadState, clock: RunClock, worker: str,
    ) -> None:  # fmt: skip
        self._data = data
        self._waits = waits
        self._mailbox = mailbox
        self._calls = calls
        self._output = output
        self._questions = questions
        self._children = children
        self._thread = thread
        self._clock = clock
        self._worker = worker

    # -- results ------------------------------------------------------------------------------------------

    def result_of(self, output: Any) -> tuple[Any, Any]:
        """Check what a handler leaves behind that is done. Returns output and state."""
        data, agent = self._data, self._data.agent
        assert agent is not None
        self._output.end_pieces()
        self._calls.check_used()
        self._output.finish()
        if output is None:
            joined = data.replay.emissions.output.value
            output = {} if joined is ABSENT else joined
        if data.team is not None:
            output = data.team.with_checked_attachments(output)
        output = json_values.clean(output, InvalidOutput, what="output")
        agent.check_output.check(output, InvalidOutput, checked=True)
        return output, self._thread.final()

    def outcome(self, how: Leaving | None, error: BaseException | None) -> tuple[Status, ErrorInfo]:
        """The status and the error of a run that is left for good: why it was left, or what its handler raised."""
        data = self._data
        if data.cancelling or how == "cancel":
            return Status.CANCELLED, RunCancelled("the run was cancelled").info()
        if how == "timeout":
            return Status.TIMED_OUT, RunTimedOut(self._why_late()).info()
        if how == "full":
            most = data.host.settings.max_log_bytes
            return Status.FAILED, TooLarge(
                f"the log of the run has more than {most} bytes (limits.max_log_bytes)"
            ).info()
        if error is None:
            return Status.FAILED, ITSELF
        info = self.describe(error)
        if self._task_is_over and (isinstance(error, ChildFailed) or info.code == RunTimedOut.code):
            # The agents that it called heard of that a moment earlier than itself.
            return Status.TIMED_OUT, RunTimedOut(self._why_late()).info()
        if info.code == RunCancelled.code and data.agent is not None and is_mounted(data.agent.card):
            # Somebody cancelled it where it really runs: then it is cancelled here too.
            data.log.append(CancelRequested(reason=info.message))
            return Status.CANCELLED, info
        return Status.FAILED, info

    def fell_short(self, error: BaseException | None, *, bound: bool) -> bool:
        """Tells whether the code failed before it came as far as the run had come: that is no end of the run. `bound`:
        the input has become the arguments of the handler."""
        replay, agent = self._data.replay, self._data.agent
        if not replay.started or agent is None or is_mounted(agent.card):
            return False
        # Mail that it has yet to come to is what it waited for, and what woke it.
        unread = self._mailbox.has_mail and not self._waits.waited
        # How far the first code had come is not known, where neither that nor this one, which is another, left a trace.
        no_trace = not (replay.has_calls or self._calls.called) and agent.code != replay.first_code
        short = not bound or not replay.caught_up or unread or no_trace
        return short and (error is None or is_unexpected(error))

    @property
    def _task_is_over(self) -> bool:
        authority = self._data.authority
        return authority is not None and authority.deadline is not None and authority.deadline <= self._data.clock.now()

    def _why_late(self) -> str:
        timeout = self._clock.timeout
        if timeout is None or self._task_is_over:
            return "the time of its task is over"
        return f"the run took longer than {timeout:g} s"

    def describe(self, error: BaseException) -> ErrorInfo:
        """An error of the handler, as it is written."""
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            return self.describe(error.exceptions[0])
        info, row = describe(error), self._data.row
        if info.code == "agent_crashed" and not isinstance(error, AgentError):
            log_.warning("agent %s failed (run %s)", row.agent, row.id, exc_info=error)
        try:
            return ErrorInfo(info.code, whole(info.message), info.transient, json_values.clean(info.details))
        except Invalid:
            return ErrorInfo(info.code, whole(info.message), info.transient)

    # -- writing ------------------------------------------------------------------------------------------

    def finish(
        self, status: Status, *, output: Any = None, error: ErrorInfo | None = None, state: Any = msgspec.UNSET
    ) -> None:
        """Write the end of the run, and all that goes with it."""
        data, log, row = self._data, self._data.log, self._data.row
        assignment = data.request.assignment
        if status is Status.SUCCEEDED and assignment is not None and assignment.lent:
            log.append(Recorded(STATE, state))
        self._output.put_pieces()
        if status is Status.CANCELLED and log.status is not Status.CANCELLING:
            log.append(CancelRequested())
        self._questions.withdraw_all(self._why_over(status, error))
        self._questions.withdraw_relayed()
        if log.status is Status.PENDING and status is not Status.FAILED and status is not Status.CANCELLED:
            log.append(RunStarted(self._worker, row.epoch))
        changes = self._cancels(status)
        checkpoint = None
        if row.thread is not None:
            checkpoint = new_id() if state is not msgspec.UNSET else None
            messages = self._thread.messages_of(output) if checkpoint else []
            failed, by = status in (Status.FAILED, Status.TIMED_OUT), f"{row.agent}@{row.version}"
            changes.append(
                CommitThread(row.thread, row.id, self._thread.version, state, checkpoint, messages, failed, by)
            )
        if row.parent is not None:
            changes.append(self._news(row.parent, status, output, error))
        if data.rollback:
            changes.append(DeleteRun(row.id))
        row.worker, row.wake_at, row.queued = None, None, None
        self._clock.stop()
        log.append(RunFinished(status, output, error, self._output.usage, checkpoint), *changes)

    def _cancels(self, status: Status) -> list[Change]:
        """Cancels of the children that have not ended."""
        children = self._children.running
        if not children:
            return []
        reason = f"its parent {status.value.replace('_', ' ')}"
        why = json_values.encode({"by": self._data.row.caller, "reason": reason})
        return [PutInbox(child, "cancel", why) for child in children]

    def _news(self, parent: str, status: Status, output: Any, error: ErrorInfo | None) -> ChildNews:
        assignment = self._data.request.assignment
        if assignment is not None and assignment.sealed:
            # Others may read the log of the caller, and must not see this. The caller reads the log of this run.
            return ChildNews(parent, status, None, None)
        return ChildNews(parent, status, output, error)

    def _why_over(self, status: Status, error: ErrorInfo | None) -> str:
        """Why nobody need answer any more. What is wrong with a run that nobody may read stays there."""
        if status is Status.FAILED and error is not None and not self._data.row.sealed:
            return f"the run failed: {error.message}"[:REASON_HAS]
        return _OVER[status]

    def block(self, body: RunBlocked) -> None:
        """Write that the run is blocked until other code comes."""
        data, row = self._data, self._data.row
        body.code = data.agent.code if data.agent is not None else ""
        reason = json_values.encode({"reason": body.reason, "message": body.message, "details": body.details}).decode()
        row.crashes, row.blocked_reason = 0, reason
        run_logging.blocked(row, body)
        changes: list[Change] = [BlockRun(row.id, body.code, reason)]
        if row.parent is not None and not row.sealed:
            message = f"agent {row.agent} (run {row.id}) is blocked: {body.message}"
            warning = Warned(
                message, {"blocked": body.reason, "run": row.id}, f"{LATE}blocked"
            )  # no handler repeats it
            changes.append(PutInbox(row.parent, "relay", encode(warning)))
        data.log.append(body, *changes)


def is_unexpected(error: BaseException) -> bool:
    """Tells errors of code that does not fit from those of work that failed.

    Errors of our own tree end a run; but a value that the code does not take says the same as any other exception.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(is_unexpected(one) for one in error.exceptions)
    if isinstance(error, InterlinguaError):
        return isinstance(error, Invalid) and not isinstance(error, TooLarge)
    return not isinstance(error, asyncio.CancelledError)


async def tell_remote_side(hook: OnCancel, left: LeftRun, seconds: float) -> None:
    """Call the hook. Any error of it is logged, and keeps no run from ending."""
    try:
        async with asyncio.timeout(seconds):
            await hook(left)
    except TimeoutError:
        log_.warning("run %s ends here; its remote side could not be told within %g s", left.id, seconds)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if process_exits.is_signal(error):
            raise
        log_.warning("run %s ends here; its remote side could not be told: %s", left.id, error, exc_info=error)
