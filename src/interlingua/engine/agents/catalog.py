"""The catalog of agents: those of this process, those of others, and the cards that the store has of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...model.card import AgentCard
from ...model.errors import AgentNotFound, Unavailable
from ...store.ports import Store
from ...store.rows import ProjectRow, StoredCard
from . import mount_path
from .agent import Agent, Registry
from .mount_path import MEMBER_OF
from .remote_agent import RemoteAgent

UnavailableHint = Callable[[str], Unavailable | None]
"""Returns the error for the name of an agent that is expected and not there now; None for other names."""


class AgentCatalog(Registry):
    """Finds agents, and the cards of agents whose code is not here."""

    def __init__(self, store: Store, project: str = "", root: Path | None = None) -> None:
        super().__init__(project, root)
        self.server_id = ""  # the id of the store among servers, once it is open
        self._store = store
        self._hints: list[UnavailableHint] = []

    def add_unavailable_hint(self, hint: UnavailableHint) -> None:
        """Adds a source of errors for agents that are expected and not there now, such as those of a mount."""
        self._hints.append(hint)

    def no_agent(self, name: str, message: str) -> AgentNotFound | Unavailable:
        """Returns the error for a name without an agent: not found, or expected and not available now."""
        errors = (hint(name) for hint in self._hints)
        return next((error for error in errors if error is not None), None) or AgentNotFound(message)

    def mount_path(self, card: AgentCard) -> list[str]:
        """Returns the ids of the servers that an agent came through, this one last: for clients that mount it."""
        return mount_path.path_through(card, self.server_id)

    def turned_away(self, card: AgentCard, max_hops: int) -> str | None:
        """Returns why an agent must not be mounted here; None where it may be."""
        return mount_path.refusal(card, self.server_id, max_hops)

    async def card(self, name: str, version: str | None = None) -> AgentCard:
        """Returns the card of an agent, here or in any process that ever shared this store."""
        agent = self.find(name, version)
        return agent.card if agent is not None else (await self.find_stored(name, version)).card

    async def find_card(self, name: str, version: str | None = None, origin: str | None = None) -> AgentCard | None:
        """Returns the newest card in the store of this name and version, also of a member of a team."""
        stored = await self._store.cards.get(name, version, origin)
        return stored.card if stored is not None else None

    async def store_owner(self) -> ProjectRow | None:
        """Returns the project that the store belongs to; None where it belongs to none yet."""
        return await self._store.claims.project()

    async def find_stored(self, name: str, version: str | None) -> StoredCard:
        """Returns the card of an agent whose code is not here, with its origin."""
        stored = await self._store.cards.get(name, version)
        if stored is None or MEMBER_OF in stored.card.metadata:
            known = ", ".join(sorted({agent.card.name for agent in self})) or "none"
            key = name if version is None else f"{name} {version}"
            raise self.no_agent(name, f"there is no agent {key} (there are: {known})")
        return stored

    def stored(self, agent: Agent[..., Any]) -> StoredCard:
        """Returns the card of an agent that is known here, with its origin."""
        if isinstance(agent, RemoteAgent):
            return agent.stored
        return StoredCard(str(self.origin(agent)), agent.card)

    async def publish_cards(self) -> None:
        """Writes the cards of the agents that are here into the store, for the other processes."""
        if own := [*self.own(), *self.hidden()]:
            await self._store.cards.put([self.stored(agent) for agent in own])
