"""Instances: agents with a configuration, kept under ids that later runs can use."""

from __future__ import annotations

from typing import Any

from ...model import json_values
from ...model.errors import InvalidConfig, InvalidRequest
from ...model.run import OWNER, Caller, Instance
from ...model.schemas import Validator
from ...store.ports import Store
from ..agents.catalog import AgentCatalog
from ..ids import new_id


class InstanceService:
    """Creates, finds and deletes configured agents."""

    def __init__(self, store: Store, agents: AgentCatalog) -> None:
        self._store = store
        self._agents = agents

    async def create(
        self, name: str, config: Any, *, version: str | None = None, caller: Caller = OWNER,
        label: str | None = None, metadata: dict[str, Any] | None = None,
    ) -> Instance:  # fmt: skip
        """Keeps an agent with a configuration, under an id that later runs can use."""
        card = await self._agents.card(name, version)
        if card.config is None and config not in (None, {}):
            raise InvalidConfig(f"agent {card.name} takes no config")
        json_values.check(metadata or {}, InvalidRequest, what="metadata")
        config = {} if config is None else config
        Validator(card.config or {"type": "object"}, what="config").check(config, InvalidConfig)
        time = self._store.clock.now()
        made = Instance(new_id(), card.name, card.version, config, caller.id, time, label, metadata or {})
        await self._store.instances.put(made)
        return made

    async def find(self, instance: str) -> Instance | None:
        return await self._store.instances.get(instance)

    async def search(
        self,
        *,
        caller: str | None = None,
        agent: str | None = None,
        version: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Instance]:
        return await self._store.instances.list(caller=caller, agent=agent, version=version, limit=limit, offset=offset)

    async def delete(self, instance: str) -> None:
        await self._store.instances.delete(instance)
