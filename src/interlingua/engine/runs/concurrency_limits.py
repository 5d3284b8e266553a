"""How many runs of one agent may be at it in this process: what `max_running=` of an agent and `limits.agents` say.

A gate only counts. Who is turned away stands in line in the store, and nobody looks for runs of an agent whose gate is
full. Agents without a limit have no gate, and cost nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..agents.agent import Agent, Registry


class Gate:
    __slots__ = ("limit", "lined", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0  # places of runs that are at it, or are being claimed
        self.lined = False  # it was full, and who came then may stand in line

    @property
    def room(self) -> int:
        return self.limit - self.taken

    def take(self, places: int = 1) -> None:
        self.taken += places
        if self.taken >= self.limit:
            self.lined = True

    def free(self, places: int = 1) -> None:
        self.taken -= places


class Gates:
    """Those of all agents here. `limits`: by NAME, for all versions together, or by NAME@VERSION."""

    def __init__(self, registry: Registry, limits: Mapping[str, int]) -> None:
        self._registry = registry
        self._limits = limits
        self.any = False  # there are some
        self._gates: dict[str, Gate] = {}  # they outlive changes of agents: runs are counted in them
        self._of: dict[str, Gate] = {}  # by queue
        self.refresh()

    def refresh(self) -> None:
        """There are other agents than before."""
        self._of = {}
        for queue in self._registry.queues():
            agent = self._registry.serving(queue)
            assert agent is not None
            limit = agent.max_running
            by = next((by for by in (agent.card.key, agent.card.name) if by in self._limits), None)
            if by is not None:
                limit = self._limits[by]
            if limit is not None:
                gate = self._of[queue] = self._gates.setdefault(by or queue, Gate(limit))
                gate.limit = limit
        self.any = bool(self._of)

    def of(self, queue: str) -> Gate | None:
        return self._of.get(queue) if self.any else None

    def of_agent(self, agent: Agent[..., Any]) -> Gate | None:
        return self._of.get(self._registry.queue(agent)) if self.any else None

    def open(self, queues: list[str]) -> list[str]:
        """Those of these queues that have a place."""
        if not self.any:
            return queues
        return [queue for queue in queues if (gate := self._of.get(queue)) is None or gate.room > 0]

    def nobody_waits(self, queues: list[str]) -> None:
        """No run of these is in line."""
        for queue in queues if self.any else ():
            gate = self._of.get(queue)
            if gate is not None and gate.room > 0:
                gate.lined = False

    def at_most(self, queues: list[str]) -> list[tuple[list[str], int]]:
        """Which of these are limited, together with whom, and how many places are left."""
        found: dict[int, tuple[list[str], int]] = {}
        for queue in queues if self.any else ():
            gate = self._of.get(queue)
            if gate is not None:
                found.setdefault(id(gate), ([], gate.room))[0].append(queue)
        return list(found.values())
