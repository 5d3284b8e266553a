"""Moving runs: unfinished runs are given to code of another origin, on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from ...model.errors import AgentNotFound, Conflict, NotFound
from ...model.filters import RunFilter
from ...model.run import OWNER, Caller
from ...model.run_identity import Origin, is_mount
from ...model.status import Status
from ...store.rows import QueueCount, StoredCard
from ..agents.agent import Agent, version_key
from ..agents.catalog import AgentCatalog
from ..runs.service import RunService
from ..teams.members import TeamAgent

_OPEN = [status for status in Status if not status.final]


class Moved(msgspec.Struct, frozen=True):
    """The outcome of moving one run."""

    run: str
    agent: str
    origin: str  # the new one
    problem: str = ""  # why the run was not moved


class MovingEngine(Protocol):
    """The engine that moves runs."""

    @property
    def runs(self) -> RunService: ...

    @property
    def agents(self) -> AgentCatalog: ...


class Mover:
    """Moves runs to the agents of one target, each to the agent of its name."""

    def __init__(self, engine: MovingEngine, agents: Iterable[Agent[..., Any]]) -> None:
        self._engine = engine
        self._there = [
            StoredCard(str(engine.agents.origin(part)), part.card)
            for agent in agents
            for part in (agent, *(agent.parts() if isinstance(agent, TeamAgent) else ()))
        ]

    def target(self, agent: str, version: str, origin: str) -> StoredCard:
        """The agent that a run of this one is moved to: of the same version where there is one, else of the newest.

        A mount may give its agent a name here. Its run also moves to the agent that has the name of the other end, and
        keeps its own.
        """
        named = [one for one in self._there if one.card.name == agent]
        if not named and is_mount(origin):
            named = [one for one in self._there if one.card.name == origin.rpartition("#")[2]]
        if not named:
            names = ", ".join(sorted({one.card.name for one in self._there})) or "none"
            raise AgentNotFound(
                f"the target has no agent {agent}; a run moves to an agent of its name (it has: {names})"
            )
        return max(named, key=lambda one: (one.card.version == version, version_key(one.card.version)))

    async def move(self, run: str, by: Caller = OWNER) -> list[Moved]:
        """Move one run, and the runs below it that are of its origin. Raises where the run itself cannot be moved."""
        engine = self._engine
        row = await engine.runs.row(run, sealed=True)
        to = self.target(row.agent, row.version, row.origin)
        await engine.runs.move(run, to.origin, version=to.card.version, by=by)
        moved = [Moved(run, row.agent, to.origin)]
        tree = RunFilter(root=row.path.split("/")[1] if row.path else run, status=_OPEN, sealed=True, limit=100_000)
        for child in await engine.runs.rows(tree):
            if child.path.startswith(row.path_below) and child.origin == row.origin:
                moved.append(await self._one(child.id, child.agent, child.version, child.origin, by))
        return moved

    async def open_queues(self, origin: str) -> list[QueueCount]:
        """The queues with unfinished runs of an origin. `origin`: PROJECT SOURCE, or the source alone."""
        queues = await self._engine.runs.open_queues()
        matching = [one for one in queues if origin in (one.origin, Origin.parse(one.origin).source)]
        if not matching:
            known = ", ".join(sorted({one.origin.strip() for one in queues})) or "none"
            raise NotFound(f"no unfinished run is of origin {origin!r} (there are: {known})")
        return matching

    async def move_all(self, queues: Iterable[QueueCount], by: Caller = OWNER) -> list[Moved]:
        """Move all runs of these queues. Runs that cannot be moved now are reported with the others."""
        return [
            await self._one(run, one.agent, one.version, one.origin, by)
            for one in queues
            for run in await self._engine.runs.open_runs(one.queue)
        ]

    async def _one(self, run: str, agent: str, version: str, origin: str, by: Caller) -> Moved:
        try:
            to = self.target(agent, version, origin)
        except NotFound as error:
            return Moved(run, agent, "", error.message)
        try:
            await self._engine.runs.move(run, to.origin, version=to.card.version, by=by)
        except (Conflict, NotFound) as error:  # it executes, or has ended meanwhile
            return Moved(run, agent, to.origin, error.message)
        return Moved(run, agent, to.origin)
