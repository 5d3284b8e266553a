"""Runs agents without doors: an engine and the mounts on it, from start to graceful end.

A server has one of these, and doors in front of it; a worker of a cluster is nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..bus.nats import address
from ..bus.port import BusSettings
from ..engine.agents.agent import Agent
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..runtime.closing import close_all
from ..security.auth import Authenticator
from .auth.stored_keys import StoredKeys, close_when_keyed
from .config.settings import Mounting
from .health import Probes, probed
from .mounts.entry import MountEntry
from .mounts.supervisor import Mounts
from .stores import shown


class WorkSettings(msgspec.Struct, kw_only=True, frozen=True):
    metrics: str | None = None
    """[HOST:]PORT that shows metrics and health without a key."""
    mounting: Mounting = Mounting()
    bus: BusSettings = BusSettings()
    engine: Settings = Settings()


class Workplace:
    """The engine and the mounts of a process that runs agents, while it is up."""

    def __init__(
        self, engine: Engine, mounts: Mounts | None = None, store: str = "", bus: str = "", metrics: str | None = None
    ) -> None:
        self.engine = engine
        self.metrics = metrics  # the address that shows them without a key, if any
        self.store = store  # both as they may be seen
        self.bus = bus
        self.mounts = mounts if mounts is not None else Mounts(engine)


@contextlib.asynccontextmanager
async def working(
    store: Path | str,
    agents: Iterable[Agent[..., Any]],
    settings: WorkSettings | None = None,
    mounts: Iterable[MountEntry] = (),
    *,
    project: str = "",
    root: Path | None = None,
) -> AsyncIterator[Workplace]:
    """Runs due work until the context ends; then running agents are finished or handed back."""
    settings = settings or WorkSettings()
    engine = Engine(store, agents=agents, bus=settings.bus, settings=settings.engine, project=project, root=root)
    await engine.start()
    kept = Mounts(engine, settings.mounting)
    probes = Probes(engine)
    probes.mounts = kept.views
    keys = StoredKeys(engine.keys)
    auth = Authenticator(keys.remembered(), open_to_all=not await keys.any())
    closing = asyncio.get_running_loop().create_task(close_when_keyed(engine, keys, auth))
    try:
        await kept.change(mounts)
        await engine.cluster.remote_agents.start(looks=False)
        await engine.runs.blocked_report.announce()
        bus = address.parse(settings.bus).shown if settings.bus.url else ""
        async with probed(settings.metrics, probes, auth) as metrics:
            yield Workplace(engine, kept, shown(store), bus, metrics)
    finally:
        closing.cancel()
        await close_all([engine.cluster.remote_agents.stop, kept.close, engine.stop])
