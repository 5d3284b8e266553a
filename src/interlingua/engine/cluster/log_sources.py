"""The sources from which logs are read in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...bus.port import Bus
from ...model.errors import RunNotFound
from ...model.events import Event
from ...store.ports import Store
from ..log.log_source import BlockedReader, LogSource, StoredSource
from ..log.run_log import RunLog
from ..observe.run_metrics import RunLabels, RunMetrics
from .remote_log import RemoteLog, RemoteSource


class RemoteLogs(Protocol):
    """The cluster, as far as it reads logs of other processes."""

    def followed(self, run: str) -> RemoteLog | None: ...

    async def remote_log(self, run: str, about: RunLabels | None = None) -> RemoteLog | None: ...


class BlockedWatch(Protocol):
    """Reports to readers which runs no process serves."""

    def watch(self, run: str, reader: BlockedReader) -> None: ...

    def unwatch(self, run: str, reader: BlockedReader) -> None: ...


class Sources:
    """Picks a source for a reader: the log of a run that is here, a remote log, or the store."""

    def __init__(
        self, store: Store, bus: Bus, cluster: RemoteLogs, meters: RunMetrics, blocked: BlockedWatch,
        live: Callable[[str], RunLog | None], look_every: float,
    ) -> None:  # fmt: skip
        self.store = store
        self.live = live
        self.watch = blocked.watch
        self.unwatch = blocked.unwatch
        self._bus = bus
        self._cluster = cluster
        self._meters = meters
        self._look_every = look_every

    def followed(self, run: str, after: int) -> LogSource | None:
        remote = self._cluster.followed(run)
        if remote is None or remote.submitted is None or self.live(run) is not None:
            return None
        row, _ = remote.submitted
        if row.sealed or remote.last is None or after > remote.last.seq:
            return None  # the store says what is wrong
        remote.readers += 1
        return RemoteSource(remote, self._meters, complete=True)

    async def distant(self, run: str, first: Event | None) -> LogSource:
        remote = await self._cluster.remote_log(run, RunLabels.of(first) if first is not None else None)
        if remote is None:
            return StoredSource(self._bus, self.store.clock, run, self._look_every)
        return RemoteSource(remote, self._meters)

    async def check_open(self, run: str) -> None:
        log = self.live(run)
        row = log.row if log is not None else await self.store.runs.get(run)
        if row is not None and row.sealed:
            raise RunNotFound(f"there is no run {run}")
