"""Retention: finished runs and unused threads are deleted when they have been kept for long enough."""

from __future__ import annotations

from collections.abc import Callable

from ...store.ports import Store
from ..settings import Settings

_AT_ONCE = 500


class Retention:
    def __init__(self, store: Store, settings: Settings, forget: Callable[[str], None]) -> None:
        """`forget`: called for each run that was deleted."""
        self._store = store
        self._runs = settings.ttl_runs
        self._threads = settings.ttl_threads
        self._forget = forget

    async def expire(self) -> None:
        if self._runs is None and self._threads is None:
            return
        time = self._store.clock.now()
        deleted = await self._store.runs.expire(
            runs_before=None if self._runs is None else time - int(self._runs * 1e6),
            threads_before=None if self._threads is None else time - int(self._threads * 1e6),
            now=time,
            limit=_AT_ONCE,
        )
        for run in deleted:
            self._forget(run)
