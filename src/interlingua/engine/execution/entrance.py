"""The entrance of a run: what is read before its handler is called, and what is written then."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from ...model.errors import Invalid, RunLost, ThreadBusy
from ...model.events import CodeChanged, RunStarted
from ...store.rows import SUSPECT
from ..alarm_clock import Alarm
from ..handler.output import Output
from ..handler.run_data import RunData
from ..handler.thread_state import ThreadState
from ..handler.waits import Waits
from ..observe import run_logging, tracing
from .host import ExecutionHost

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from .entry import Entry


class Entrance:
    __slots__ = ("_data", "_host", "_output", "_thread", "_waits", "last_call")

    def __init__(self, data: RunData, waits: Waits, output: Output, thread: ThreadState, host: ExecutionHost) -> None:
        self._data = data
        self._waits = waits
        self._output = output
        self._thread = thread
        self._host = host
        self.last_call: Alarm | None = None  # the deadline of the task that this run is part of

    async def load(self, entry: Entry | None) -> None:
        """Read the thread and the inbox of the run, as far as the entry does not have them."""
        taken_by, data = None, self._data
        if entry is not None and entry.thread is not None:
            await self._thread.take(entry.thread)
        else:
            taken_by = await self._thread.load()
        if entry is None or not entry.inbox_empty:
            await self._waits.pull_inbox()
        if taken_by is not None and not data.cancelling:
            thread = data.row.thread
            raise ThreadBusy(f"thread {thread} was busy with run {taken_by} when the time of this run had come")

    async def write(self, agent: Agent[..., Any], taken_over_from: int | None) -> tracing.EntryTimes:
        """Write that the run has started, or goes on with other code. Raises where the run must not be resumed.

        `taken_over_from`: the time of its last event, where the worker died that had it.
        """
        data, log, replay, host = self._data, self._data.log, self._data.replay, self._host
        row, caller = data.row, data.request.caller
        entered, due = host.clock.now(), self._due()
        if taken_over_from is not None:
            stood_still = max(0, entered - taken_over_from) / 1e6
            host.meters.resumed(row.agent, caller, stood_still)
            run_logging.taken_over(row, stood_still)
        self._check_crashes(agent)
        if not replay.started:
            host.meters.started(row.agent, caller, max(0, entered - due) / 1e6)
            code = agent.code if agent.code != replay.code else ""
            log.append(RunStarted(host.id, row.epoch, self._thread.checkpoint, self._thread.version, code))
            if agent.retries == 0:
                await log.flush()  # the next process must know that this one may have called the handler
                if self._waits.leaving is not None:
                    raise asyncio.CancelledError
        elif agent.code != replay.code:
            log.append(CodeChanged(replay.code, agent.code))
        return tracing.EntryTimes(entered, None if replay.started else due, taken_over_from)

    def _check_crashes(self, agent: Agent[..., Any]) -> None:
        row, replay = self._data.row, self._data.replay
        if replay.started and agent.retries == 0:
            raise RunLost("the process that ran it ended, and this agent must not be repeated", transient=True)
        if replay.started and row.crashes > SUSPECT and row.crashes >= agent.retries:  # the last one was its own doing
            times = max(SUSPECT, agent.retries)  # those with few retries are suspects after one crash
            raise RunLost(f"the process that ran it died {times} times without progress", transient=False)

    def _due(self) -> int:
        """When it could have started for the first time: it was there, its delay was over, and its thread was its own
        (which is the last thing that happens to the row of a run before it starts)."""
        row = self._data.row
        return max(row.created_at + int(self._data.request.delay * 1e6), row.updated_at)

    def take_assignment(self) -> None:
        """Take over the deadline of the task, and the thread of the caller where that is lent."""
        request = self._data.request
        authority, assignment = request.authority, request.assignment
        if authority is not None and authority.deadline is not None:
            self.last_call = self._host.clock.at(authority.deadline, partial(self._waits.leave, "timeout"))
        if assignment is not None:
            self._output.for_review = [] if assignment.sealed else None
            self._thread.borrow(assignment)

    def decoded_config(self, agent: Agent[..., Any]) -> Any:
        """The config as the handler gets it."""
        requested = self._data.request.config
        config = requested if requested is not None else {}
        return config if agent.config is None else agent.config.decode(config, Invalid)
