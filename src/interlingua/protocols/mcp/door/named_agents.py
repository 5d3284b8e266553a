"""The agents that a caller may run, under the names that clients see."""

from __future__ import annotations

import msgspec

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....model.run import Caller, Instance
from ....security import scopes
from .. import translate


class Named(msgspec.Struct):
    """An agent, or an agent with a configuration, that can be run under a name."""

    name: str
    card: AgentCard
    instance: Instance | None = None


class NamedAgents:
    """The agents of one caller."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine = engine
        self._caller = caller

    def cards(self) -> list[AgentCard]:
        return [agent.card for agent in self._engine.agents if self._may_run(agent.card)]

    def _may_run(self, card: AgentCard) -> bool:
        return scopes.may(self._caller, "run", card.key).allowed

    def has_templates(self) -> bool:
        """Tells if an agent takes a configuration."""
        return any(card.config is not None for card in self.cards())

    async def all(self) -> list[Named]:
        """Returns all agents that can be run, under unique names: the newest version has the plain name."""
        agents = self._engine.agents
        known: list[Named] = []
        for card in self.cards():
            newest = agents.find(card.name)
            plain = newest is None or newest.card is card
            known.append(Named(card.name if plain else card.key, card))
        taken = {named.name for named in known}
        for instance in await self._instances():
            agent = agents.find(instance.agent, instance.version)
            if agent is not None and self._may_run(agent.card):
                name = translate.instance_name(instance, taken)
                taken.add(name)
                known.append(Named(name, agent.card, instance))
        return known

    async def _instances(self) -> list[Instance]:
        own = None if scopes.sees(self._caller, "*") else self._caller.id
        instances: list[Instance] = []
        while page := await self._engine.instances.search(caller=own, limit=1000, offset=len(instances)):
            instances += page
            if len(page) < 1000:
                break
        return instances

    async def find(self, name: str) -> Named:
        agent = self._engine.agents.find(name)
        if agent is not None and self._may_run(agent.card):
            return Named(name, agent.card)
        for named in await self.all():
            if name in (named.name, named.card.key):
                return named
        raise self._engine.agents.no_agent(name, f"there is no agent {name!r}")
