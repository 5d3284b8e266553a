"""The engine's API: all that doors, mounts, the command line and tests may use. Nothing in it names a protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ..bus.open import open_bus
from ..bus.port import Bus, BusSettings
from ..store.open import open_store
from ..store.ports import Store
from .agents.agent import Agent
from .assembly import Core
from .settings import Settings

T = TypeVar("T")


class Engine:
    """Runs agents and remembers everything. Use it as `async with Engine(path, agents=[...]) as engine`."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        agents: Iterable[Agent[..., Any]] = (),
        bus: Bus | BusSettings | str | None = None,
        settings: Settings | None = None,
        project: str = "",
        root: Path | None = None,
        wait_for_store: bool = True,
    ) -> None:
        """`project`: the id of the project that the agents belong to; the store must belong to it, or to none yet.
        `root`: its folder, for a message that says which project a store belongs to.

        An engine without a project is for stores without one. Without agents, it opens any store. `wait_for_store`:
        where its database server is away, the start waits for it.
        """
        opened = open_store(store) if isinstance(store, str | Path) else store
        opened.waits_for_server = wait_for_store
        self.core = core = Core(
            self, opened, open_bus(bus) if bus is None or isinstance(bus, str | BusSettings) else bus,
            settings or Settings(), project, root,
        )  # fmt: skip
        self.settings = core.settings
        self.agents = core.agents
        self.runs = core.runs
        self.threads = core.threads
        self.questions = core.questions
        self.teams = core.teams
        self.instances = core.instances
        self.callbacks = core.callbacks
        self.reminders = core.reminders
        self.workspaces = core.workspaces
        self.files = core.files
        self.cluster = core.cluster
        self.links = core.links
        self.documents = core.store.documents
        self.keys = core.store.keys
        self.metrics = core.metrics
        for agent in agents:
            self.teams.add(agent)

    # -- life ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Opens the store and the bus, and begins to execute runs."""
        await self.core.start()

    async def stop(self) -> None:
        """Finishes what can be finished, returns the rest, and closes everything, whatever goes wrong on the way."""
        await self.core.stop()

    async def abandon(self) -> None:
        """Returns all runs at once, and writes nothing more of them: for a process that is about to end."""
        await self.core.abandon()

    @contextlib.asynccontextmanager
    async def only_store_open(self) -> AsyncIterator[None]:
        """Opens the store, and nothing else, for what must be known before the start."""
        await self.core.store.open()
        try:
            yield
        finally:
            await self.core.store.close()

    def renew_processes(self) -> None:
        """Runs agents that have processes of their own in new ones from now on: their files have changed."""
        self.core.worker.processes.renew()

    @property
    def running(self) -> bool:
        """Whether it takes runs; false from the moment that it begins to stop."""
        return self.core.admission.is_open

    @property
    def server_id(self) -> str:
        """The id of the store among servers, once it is open."""
        return self.agents.server_id

    # -- hooks of doors -----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a background job of a door. It is cancelled when the engine stops; its error is logged."""
        return self.core.worker.spawn(work)

    def on_store_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls a function when other processes wrote to the store, or may have.

        Returns a function that ends that; it may be called again.
        """
        listeners = self.core.store_listeners
        listeners.append(listener)

        def end() -> None:
            with contextlib.suppress(ValueError):
                listeners.remove(listener)

        return end
