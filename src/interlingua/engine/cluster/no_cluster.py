"""The cluster of a process without a bus to others: news stays here, and logs are read from the store."""

from __future__ import annotations

from ...bus.port import WORK, Bus
from ...model.events import RunCreated
from ...store.changes import Sealed
from ...store.rows import EventRow, RunRow
from ..observe.run_metrics import RunLabels
from .remote_log import RemoteLog


class NoCluster:
    def __init__(self, worker: str, bus: Bus) -> None:
        self._worker = worker
        self._bus = bus

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def committed(self, run: str, sealed: Sealed | None) -> None:
        self._bus.publish(run)

    def offer(self, row: RunRow) -> None:
        self._bus.publish(WORK)

    def tell_owner(self, run: str, owner: str | None) -> None:
        if not owner or owner == self._worker:  # another process sees the change of the store
            self._bus.publish(WORK)

    def handed_back(self) -> None:
        pass

    def slot_free(self) -> None:
        pass

    def agents_changed(self) -> None:
        pass

    def questions_changed(self) -> None:
        pass

    def follow_new(self, row: RunRow, created: RunCreated, first: EventRow) -> RemoteLog | None:
        return None

    def followed(self, run: str) -> RemoteLog | None:
        return None

    async def remote_log(self, run: str, about: RunLabels | None = None) -> RemoteLog | None:
        return None
