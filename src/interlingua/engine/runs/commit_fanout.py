"""The fan-out of commits: passes each transaction of a local run to the objects that it concerns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...store.changes import Change, Sealed
from ..log.run_log import RunLog
from ..observe import run_logging
from .cluster_port import ClusterPort

C = TypeVar("C", bound=Change)

Settle = Callable[[RunLog, Sealed | None], None]
"""Applies what was committed, or refused, to the execution of the run."""


class CommitFanout:
    def __init__(self, settle: Settle, cluster: ClusterPort) -> None:
        self._settle = settle
        self._cluster = cluster
        self._listeners: dict[type[Any], list[Callable[[Any, bool], None]]] = {}

    def listen(self, change: type[C], listener: Callable[[C, bool], None]) -> None:
        """Calls `listener(change, committed)` for each change of a type; `committed` is False if it was refused."""
        self._listeners.setdefault(change, []).append(listener)

    def on_commit(self, log: RunLog, sealed: Sealed | None) -> None:
        self._settle(log, sealed)
        committed = log.lost is None
        self._cluster.committed(log.row.id, sealed if committed else None)
        if sealed is None:
            return
        if committed:
            run_logging.committed(sealed)
        for change in sealed.changes:
            for listener in self._listeners.get(type(change), ()):
                listener(change, committed)
