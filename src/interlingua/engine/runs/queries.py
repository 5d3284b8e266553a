"""Reading runs: as they are now, their logs, and which runs there are. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from ...bus.port import Bus
from ...model import json_values
from ...model.errors import RunNotFound
from ...model.events import Event, RunCreated, RunFinished
from ...model.filters import RunFilter
from ...model.run import Question, Run
from ...model.status import Status
from ...store import integrity
from ...store.ports import Store
from ...store.rows import PAGE_BYTES, EventRow, QueueCount, RunRow, Tombstone
from ..kept_output import kept_output
from ..log.log_reader import LogReader
from ..log.log_source import LogSources, next_hint
from ..log.replay import Replay
from ..log.run_log import RunLog
from ..settings import Settings
from .blocked_report import BlockedReport
from .blocked_runs import read_reason
from .cluster_port import ClusterPort

_ALL = 1_000_000  # runs of one tree


class LocalWaits(Protocol):
    """The waits of a run that executes in this process."""

    @property
    def at_rest(self) -> bool: ...


class LocalExecution(Protocol):
    """A run that executes in this process."""

    @property
    def replay(self) -> Replay: ...

    @property
    def waits(self) -> LocalWaits: ...


class LocalRuns(Protocol):
    """The runs that execute in this process, or ended here a moment ago, and the sources of all logs."""

    @property
    def cluster(self) -> ClusterPort: ...

    @property
    def sources(self) -> LogSources: ...

    def log_of(self, run: str) -> RunLog | None: ...

    def execution(self, run: str) -> LocalExecution | None: ...


class NoLocalRuns:
    """A process that executes nothing."""

    def __init__(self, cluster: ClusterPort, sources: LogSources) -> None:
        self.cluster = cluster
        self.sources = sources

    def log_of(self, run: str) -> RunLog | None:
        return None

    def execution(self, run: str) -> LocalExecution | None:
        return None


class OpenQuestions(Protocol):
    """Finds the open questions of a run."""

    async def open(self, *, run: str | None = None) -> list[Question]: ...


class RunQueries:
    """Finds runs, and reads their logs. `sealed`, on all methods, is for the owner: also runs of overseen agents."""

    def __init__(
        self, store: Store, bus: Bus, settings: Settings, questions: OpenQuestions, blocked: BlockedReport,
        local: LocalRuns,
    ) -> None:  # fmt: skip
        self.store = store
        self.settings = settings
        self.blocked_report = blocked
        self.worker = local  # from the start of the engine on: its worker
        self._bus = bus
        self._questions = questions

    # -- one run ------------------------------------------------------------------------------------------

    def ended_here(self, run: str) -> bool:
        """Returns whether a run has ended in this process, a moment ago."""
        log = self.worker.log_of(run)
        return log is not None and log.finished is not None

    async def exists(self, run: str) -> bool:
        return self.worker.log_of(run) is not None or await self.store.runs.get(run) is not None

    async def check_open(self, run: str) -> None:
        """Raises RunNotFound for a run that is sealed: only the owner may read it."""
        await self.worker.sources.check_open(run)

    async def get(self, run: str, *, sealed: bool = False) -> Run:
        """Returns a run as it is now."""
        log = self.worker.log_of(run)
        if log is not None and log.row.sealed and not sealed:
            raise RunNotFound(f"there is no run {run}")
        if log is not None and log.committed_row is not None:
            execution = self.worker.execution(run)
            if execution is not None or log.created is not None:
                created = execution.replay.created if execution is not None else log.created
                view = _live_view(log, created)
                if view.status is not Status.WAITING:
                    return view
        return await self.full_view(await self.row(run, sealed=sealed))

    async def find_row(self, run: str) -> RunRow | None:
        """Returns the row of a run, sealed or not; None where there is none."""
        return await self.store.runs.get(run)

    async def row(self, run: str, *, sealed: bool = False) -> RunRow:
        row = await self.store.runs.get(run)
        if row is None or (row.sealed and not sealed):
            raise RunNotFound(f"there is no run {run}")
        return row

    async def is_idle(self, run: str) -> bool:
        """Returns whether a run, and every run that it has called, waits for others. False once the run has ended: its
        end may still have to be told.

        A run that was suspended until it gets news has no owner and no time to wake at; one that another process
        executes goes on there.
        """
        rows = await self.store.runs.search(RunFilter(root=run, sealed=True, limit=_ALL))
        left = [row for row in rows if not row.status.final]
        if all(row.id != run for row in left):
            return False
        if any([await self.store.runs.has_news(row.id) for row in left]):
            return False
        for row in left:  # nothing is awaited from here on, so nothing changes
            here = self.worker.execution(row.id)
            owned = row.status is Status.PENDING or row.worker is not None or row.wake_at is not None
            if owned if here is None else not here.waits.at_rest:
                return False
        return True

    async def verify(self, run: str, *, sealed: bool = False) -> int | None:
        """Checks the hash chain of a run's log. Returns the seq of the first event that does not fit, or None."""
        if not sealed:
            await self.check_open(run)
        return await integrity.verify(self.store.runs, run)

    # -- many runs ----------------------------------------------------------------------------------------

    async def search(self, where: RunFilter) -> list[Run]:
        """Returns the runs that fit, the newest first."""
        if where.blocked:
            return [await self.full_view(row) for row in await self.blocked_report.rows(where)]
        return [self.view(row) for row in await self.store.runs.search(where)]

    async def rows(self, where: RunFilter) -> list[RunRow]:
        """Returns the rows of the runs that fit, the newest first."""
        return await self.store.runs.search(where)

    async def ends_of(self, runs: Sequence[str]) -> dict[str, tuple[RunCreated | None, RunFinished | None]]:
        """Returns the first event of each of these runs, and the last one of those that have ended, in one read."""
        ends: dict[str, tuple[RunCreated | None, RunFinished | None]] = {}
        for event in await self.store.runs.ends_of(runs):
            created, finished = ends.get(event.run, (None, None))
            match event.body:
                case RunCreated():
                    created = event.body
                case RunFinished():
                    finished = event.body
            ends[event.run] = created, finished
        return ends

    async def open_queues(self) -> list[QueueCount]:
        """Returns the queues with unfinished runs."""
        return await self.store.claims.open_queues()

    async def open_runs(self, queue: str) -> list[str]:
        """Returns the ids of the unfinished runs of a queue."""
        return await self.store.claims.open_runs(queue)

    # -- logs ---------------------------------------------------------------------------------------------

    def committed_events(self, run: str) -> list[Event] | None:
        """Returns all events of a run that is here, or was followed here from its beginning to its end; None where
        they must be read."""
        log = self.worker.log_of(run) or self.worker.cluster.followed(run)
        return log.since(0) if log is not None else None

    async def page(self, run: str, after: int = 0, limit: int = 500, most_bytes: int = PAGE_BYTES) -> list[Event]:
        """Returns the committed events after `after`, at most `limit`, as the store has them: nothing is composed."""
        return await self.store.runs.events(run, after, limit, most_bytes)

    async def event_rows(self, run: str, after: int, limit: int, most_bytes: int = PAGE_BYTES) -> list[EventRow]:
        """Returns events as they were written, with their hashes; erased bodies are None."""
        return await self.store.runs.event_rows(run, after, limit, most_bytes)

    async def tombstone(self, run: str) -> Tombstone | None:
        """Returns the last hash of a run that was deleted; None where there was none."""
        return await self.store.runs.tombstone(run)

    async def kept_output(self, restarted: Event) -> Any:
        """Returns the output as it is behind a `RunRestarted`; ABSENT where nothing is left."""
        return await kept_output(self.store.runs, restarted)

    async def events(
        self, run: str, *, after: int = 0, follow: bool = True, sealed: bool = False
    ) -> AsyncIterator[Event]:
        """Yields the log of a run after event `after`, and on as it grows, to its end.

        A reader that falls behind loses nothing: it gets neighbouring output deltas composed into one event, whose
        `first` is the seq that the event begins with.
        """
        reader = self.reader(run, after, sealed=sealed)
        try:
            while not reader.over:
                batch = await reader.read(follow=follow)
                if not batch:
                    return
                for event in batch:
                    yield event
        finally:
            reader.close()

    def reader(self, run: str, after: int = 0, *, sealed: bool = False) -> LogReader:
        """Returns a reader of a run's log: as `events`, read piece by piece, and with a time to wait."""
        return LogReader(self.worker.sources, run, after, sealed=sealed)

    def next_hint(self, topic: str) -> asyncio.Future[None]:
        """Returns a future that is done at the next news of a run (or of "questions"), or when it is time to look."""
        return next_hint(self._bus, self.store.clock, topic, self.settings.sweep_every)

    # -- views --------------------------------------------------------------------------------------------

    async def full_view(self, row: RunRow) -> Run:
        """Returns a run with what its first and last event, its questions and its standing in line tell."""
        ends = await self.store.runs.ends(row.id)
        created = ends[0].body if ends and isinstance(ends[0].body, RunCreated) else None
        view = self.view(row, created)
        view.blocked = await self.blocked_report.reason(row)
        if row.status.final:
            if ends and isinstance(last := ends[-1].body, RunFinished):
                view.output, view.error, view.usage = last.output, last.error, last.usage
        elif row.status is Status.WAITING:
            view.questions = await self._questions.open(run=row.id)
            if not view.questions:
                view.status = Status.RUNNING  # the answer is accepted, and on its way into the log
        return view

    @staticmethod
    def view(row: RunRow, created: RunCreated | None = None) -> Run:
        """Returns a run, as far as its row and its first event tell."""
        return Run(
            row.id, row.agent, row.version, row.status, row.created_at, row.updated_at, row.caller, row.next_seq - 1,
            row.head.hex(), row.thread, row.parent, row.path.split("/")[1] if row.path else row.id,
            json_values.decode(row.metadata), created.request if created is not None else None,
            origin=row.origin, blocked=read_reason(row.blocked_reason) if row.blocked_reason is not None else None,
        )  # fmt: skip


def _live_view(log: RunLog, created: RunCreated | None) -> Run:
    """Returns a run as far as the log in memory tells, which is all but its questions."""
    row = log.committed_row
    assert row is not None
    log.created = created
    view = RunQueries.view(row, created)
    if log.finished is not None:
        view.output, view.error, view.usage = log.finished.output, log.finished.error, log.finished.usage
    return view
