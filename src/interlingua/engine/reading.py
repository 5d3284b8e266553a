"""An engine for looking: it reads a store, and executes and changes nothing.

No worker enters, no lock is held and the store's content stays as it is. A store in a read-only folder can be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..bus.local import LocalBus
from ..store.open import open_store
from ..store.ports import Store
from .agents.catalog import AgentCatalog
from .cluster.log_sources import Sources
from .cluster.no_cluster import NoCluster
from .cluster.remote_agents import is_served
from .engine import Engine
from .log.log_source import next_hint
from .observe.run_metrics import RunMetrics
from .runs.blocked_report import BlockedReport
from .runs.queries import NoLocalRuns, RunQueries
from .services import store_owner
from .services.callbacks import CallbackQueries
from .services.questions import QuestionQueries
from .services.team_tasks import TeamQueries
from .services.threads import ThreadQueries
from .settings import Settings
from .teams.team_gate import TeamGate


class ReadOnlyEngine:
    """The half of an engine that finds and reads."""

    def __init__(self, store: Store) -> None:
        settings, bus = Settings(), LocalBus()
        self.agents = AgentCatalog(store)
        self.questions = QuestionQueries(store)
        blocked = BlockedReport(store, self.agents, self._is_served, store.claims.dead)
        cluster = NoCluster("", bus)
        sources = Sources(store, bus, cluster, RunMetrics(), blocked, lambda run: None, settings.sweep_every)
        local = NoLocalRuns(cluster, sources)
        self.runs = RunQueries(store, bus, settings, self.questions, blocked, local)
        self.threads = ThreadQueries(store, self.agents)
        self.callbacks = CallbackQueries(store)
        hint = partial(next_hint, bus, store.clock, look_every=settings.sweep_every)
        self.teams = TeamQueries(store, TeamGate(store, self.agents, hint), self.runs)
        self.documents = store.documents
        self.keys = store.keys
        self._store = store
        store.on_change = bus.publish_all

    async def _is_served(self, queue: str) -> bool:
        return await is_served(self._store, queue, await self._store.claims.dead())


AnyEngine: TypeAlias = Engine | ReadOnlyEngine
"""An engine that is read from."""


@contextlib.asynccontextmanager
async def open_for_reading(store: Path | str, project: str = "") -> AsyncIterator[ReadOnlyEngine]:
    """Opens a store for reading. Raises OtherProject if it belongs to another project than `project`."""
    opened = open_store(store)
    await opened.open(read_only=True)
    try:
        await store_owner.check(opened, project)
        yield ReadOnlyEngine(opened)
    finally:
        await opened.close()
