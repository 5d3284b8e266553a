"""Slots: how many runs execute at once in this process, in all and of one agent.

`max_running=` of an agent and the setting `limits.agents` limit single agents. A limit only counts: a run that gets no
slot stands in line in the store, and nobody looks for runs of an agent that has none left. Agents without a limit cost
nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..agents.agent import Agent, Registry
from ..execution.agent_limit import AgentLimit
from ..settings import Settings


class ConcurrencyLimits:
    """The slots of this process."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._most = settings.max_running
        self._by_agent = settings.agents  # by NAME, for all versions together, or by NAME@VERSION
        self.running = 0  # handlers that are entered
        self.idle = 0  # of those: the ones that only wait; they take no slot
        self.reserved = 0  # slots for runs that are being claimed or written
        self.starved = False  # runs wait for a slot
        self.closed = False  # nothing starts any more
        self._limits: dict[str, AgentLimit] = {}  # they outlive changes of agents: runs are counted in them
        self._of_queue: dict[str, AgentLimit] = {}
        self.refresh()

    def refresh(self) -> None:
        """Apply the limits to the agents that are registered now."""
        self._of_queue = {}
        for queue in self._registry.queues():
            agent = self._registry.serving(queue)
            assert agent is not None
            most = agent.max_running
            by = next((by for by in (agent.card.key, agent.card.name) if by in self._by_agent), None)
            if by is not None:
                most = self._by_agent[by]
            if most is not None:
                limit = self._of_queue[queue] = self._limits.setdefault(by or queue, AgentLimit(most))
                limit.limit = most

    # -- slots of the process -----------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Slots that are free."""
        return self._most - (self.running - self.idle) - self.reserved

    @property
    def has_room(self) -> bool:
        return self.room > 0 and not self.closed

    def may_start(self, agent: Agent[..., Any]) -> bool:
        """Returns True if a new run may start here at once: no other run waits for the slot."""
        if self.starved or not self.has_room:
            return False
        limit = self.of_agent(agent)
        return limit is None or (limit.room > 0 and not limit.has_line)

    def may_claim(self, queue: str) -> bool:
        """Returns True if there is a slot for a run of this queue."""
        limit = self.of_queue(queue)
        return self.has_room and (limit is None or limit.room > 0)

    def reserve(self, queue: str) -> Callable[[], None]:
        """Keep a slot for a run that is being claimed or written. The function that is returned frees it."""
        limit = self.of_queue(queue)
        self.reserved += 1
        if limit is not None:
            limit.take()

        def free() -> None:
            self.reserved -= 1
            if limit is not None:
                limit.free()

        return free

    def enter(self, queue: str) -> AgentLimit | None:
        """Count a handler that is entered. Returns the limit of its agent, which `leave` and `set_idle` need."""
        self.running += 1
        limit = self._of_queue.get(queue)
        if limit is not None:
            limit.take()
        return limit

    def leave(self, limit: AgentLimit | None) -> None:
        self.running -= 1
        if limit is not None:
            limit.free()

    def set_idle(self, limit: AgentLimit | None, idle: bool) -> None:
        """Give the slot of a handler back while it only waits, and take it again when it goes on."""
        self.idle += 1 if idle else -1
        if limit is not None:
            limit.free() if idle else limit.take()

    def has_line(self, limit: AgentLimit | None) -> bool:
        """Returns True if runs may wait for the slot that was just freed."""
        return self.starved or (limit is not None and limit.has_line)

    # -- slots of agents ----------------------------------------------------------------------------------

    def of_queue(self, queue: str) -> AgentLimit | None:
        return self._of_queue.get(queue)

    def of_agent(self, agent: Agent[..., Any]) -> AgentLimit | None:
        return self._of_queue.get(self._registry.queue(agent)) if self._of_queue else None

    def with_room(self, queues: list[str]) -> list[str]:
        """Returns the queues whose agents have a free slot."""
        if not self._of_queue:
            return queues
        return [queue for queue in queues if (limit := self._of_queue.get(queue)) is None or limit.room > 0]

    def line_is_empty(self, queues: list[str]) -> None:
        """No run of these queues is due."""
        self.starved = False
        for queue in queues if self._of_queue else ():
            limit = self._of_queue.get(queue)
            if limit is not None and limit.room > 0:
                limit.has_line = False

    def rooms(self, queues: list[str]) -> list[tuple[list[str], int]]:
        """The limited ones of these queues, those with one limit together, and how many slots it has left."""
        rooms: dict[int, tuple[list[str], int]] = {}
        for queue in queues if self._of_queue else ():
            limit = self._of_queue.get(queue)
            if limit is not None:
                rooms.setdefault(id(limit), ([], limit.room))[0].append(queue)
        return list(rooms.values())
