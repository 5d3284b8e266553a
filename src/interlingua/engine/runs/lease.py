"""The row of this worker in the store: as long as the store takes it for alive, its runs are its own."""

from __future__ import annotations

import contextlib
import os
import socket

from ...model.errors import InterlinguaError
from ...store.ports import Store
from ...store.rows import WorkerRow
from ..agents.agent import Registry


class Lease:
    def __init__(self, worker: str, store: Store, registry: Registry, started_at: int) -> None:
        self._worker = worker
        self._store = store
        self._registry = registry
        self._started_at = started_at

    async def enter(self) -> None:
        """Registers this worker, with the queues that it serves."""
        queues = self._registry.queues()
        row = WorkerRow(self._worker, socket.gethostname(), os.getpid(), self._started_at, queues)
        await self._store.claims.enter(row)

    async def serve(self) -> None:
        """Writes the queues that this worker serves now, after its agents changed."""
        with contextlib.suppress(InterlinguaError):
            await self._store.claims.serve(self._worker, self._registry.queues())
