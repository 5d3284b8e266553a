"""The numbers of one engine, for whoever shows them: what runs here, what was counted, how store and bus are doing."""

from __future__ import annotations

from typing import Protocol

from ...bus.port import Bus, ClusterBus, Health
from ...store.ports import Store
from .run_metrics import RunMetrics


class WorkerNumbers(Protocol):
    """The numbers that a worker keeps."""

    threads: int
    abandoned: int
    meters: RunMetrics

    @property
    def running(self) -> int: ...


class EngineMetrics:
    """Reads the numbers of the worker, the store and the bus of this process."""

    def __init__(self, store: Store, bus: Bus) -> None:
        self.worker: WorkerNumbers | None = None  # from the start of the engine on
        self._store = store
        self._bus = bus

    @property
    def _worker(self) -> WorkerNumbers:
        assert self.worker is not None, "the engine has not been started"
        return self.worker

    @property
    def runs(self) -> RunMetrics:
        """The counters of runs, by agent and by caller."""
        return self._worker.meters

    @property
    def running(self) -> int:
        """Handlers that are entered."""
        return self._worker.running

    @property
    def abandoned(self) -> int:
        """Handlers that would not stop."""
        return self._worker.abandoned

    @property
    def threads(self) -> int:
        """Plain functions that are running."""
        return self._worker.threads

    @property
    def backlog(self) -> int:
        """Writes that wait for the disk."""
        return self._store.runs.backlog()

    @property
    def bus(self) -> Health | None:
        """The state of the bus to other processes; None where there is none."""
        return self._bus.health if isinstance(self._bus, ClusterBus) else None

    @property
    def workers_present(self) -> int:
        """The processes on the bus, with this one."""
        return len(self._bus.present()) + 1 if isinstance(self._bus, ClusterBus) else 1

    def store_trouble(self) -> str | None:
        """Returns why nothing can be written: the file that was opened is no longer at its path."""
        return self._store.trouble()
