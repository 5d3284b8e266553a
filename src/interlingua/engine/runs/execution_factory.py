"""The factory of executions: the only place that puts log, replay and agent together."""

from __future__ import annotations

import copy
from typing import Any, Protocol

from ...store.rows import RunRow
from ..agents.agent import Agent, Registry
from ..execution.entry import Entry
from ..execution.execution import Execution
from ..execution.host import ExecutionHost
from ..log.replay import Replay
from ..log.run_log import RunLog
from ..log.stored_log import pages
from .commit_fanout import CommitFanout


class FactoryHost(ExecutionHost, Protocol):
    """The worker that executions are made for."""

    @property
    def registry(self) -> Registry: ...

    @property
    def commits(self) -> CommitFanout: ...


class ExecutionFactory:
    def __init__(self, worker: FactoryHost) -> None:
        self._worker = worker

    def build(self, entry: Entry, agent: Agent[..., Any] | None = None) -> Execution:
        """Make the execution of a run whose whole log is known. `agent`: the code that it was admitted with."""
        assert entry.events is not None
        log, replay = self._begin(entry.row)
        log.found(entry.events)
        replay.read(entry.events)
        return self._finish(entry, log, replay, agent)

    async def load(self, entry: Entry) -> Execution:
        """Make the execution of a run, and read its log from the store where that is not known."""
        if entry.events is not None:
            return self.build(entry)
        log, replay = self._begin(entry.row)
        async for page in pages(self._worker.store, entry.row.id):
            log.found(page)
            replay.read(page)
        return self._finish(entry, log, replay, None)

    def _begin(self, row: RunRow) -> tuple[RunLog, Replay]:
        worker = self._worker
        log = RunLog(worker.store, copy.copy(row))  # the log's own row runs ahead of what is committed
        log.committed_row = row
        replay = Replay()
        log.recent.most_bytes = worker.settings.keep_live_bytes
        replay.bound(worker.settings.keep_live_bytes)
        return log, replay

    def _finish(self, entry: Entry, log: RunLog, replay: Replay, agent: Agent[..., Any] | None) -> Execution:
        replay.close_history()
        log.created, log.participant = replay.created, entry.participant
        log.on_commit = self._worker.commits.on_commit
        execution = Execution(self._worker, agent or self._worker.registry.serving(entry.row.queue), log, replay)
        execution.entry = entry
        if entry.row.crashes:
            assert log.recent.last is not None
            execution.taken_over_from = log.recent.last.time
        return execution
