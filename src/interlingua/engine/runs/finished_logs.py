"""Logs of runs that finished here a moment ago, kept for readers that come soon."""

from __future__ import annotations

from collections import OrderedDict

from ..log.run_log import RunLog
from ..settings import Settings


class FinishedLogs:
    """Bounded in number and in bytes: the store has all logs."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.keep_finished
        self._most_bytes = settings.keep_finished_bytes
        self._bytes = 0
        self._logs: OrderedDict[str, RunLog] = OrderedDict()

    def get(self, run: str) -> RunLog | None:
        return self._logs.get(run)

    def keep(self, log: RunLog) -> None:
        self._logs[log.row.id] = log
        self._bytes += log.recent.bytes
        while self._logs and (len(self._logs) > self._most or self._bytes > self._most_bytes):
            self.forget(next(iter(self._logs)))

    def forget(self, run: str) -> None:
        log = self._logs.pop(run, None)
        if log is not None:
            self._bytes -= log.recent.bytes
            log.leave_memory()

    def forget_below(self, path: str) -> None:
        """Forget the runs that a run has called, and those below them. `path`: of its children."""
        for run in [run for run, log in self._logs.items() if log.row.path.startswith(path)]:
            self.forget(run)
