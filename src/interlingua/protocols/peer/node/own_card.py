"""The card of a node: its agents and settings, with what the owner changed while the node ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ....engine.engine import Engine
from ....model.documents import Put
from ..config import NodeSettings
from ..translate import skills
from ..wire import card as cards
from ..wire import extensions
from ..wire.signatures import Trust
from .node_store import Journal

_FEATURES = frozenset({"typing_indicator", "long_poll", "history", "broadcast"})


class Patches(msgspec.Struct, omit_defaults=True):
    """Changes that the owner made to the card while the node ran."""

    availability: dict[str, Any] | None = None
    limitations: list[dict[str, Any]] | None = None
    skill_limitations: dict[str, list[dict[str, Any]]] = {}
    extensions: list[dict[str, Any]] = []


class OwnCard:
    def __init__(
        self,
        engine: Engine,
        settings: NodeSettings,
        trust: Trust,
        journal: Journal,
        transports: Callable[[], list[str]],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._trust = trust
        self._journal = journal
        self._transports = transports
        self._declared = skills.declared(list(settings.skills))
        self.patches = Patches()

    async def load(self) -> None:
        stored = await self._engine.documents.get(self._journal.facts_space, "card")
        if stored is not None:
            self.patches = msgspec.json.decode(stored.body, type=Patches)

    async def change(self, patches: Patches) -> None:
        """Change the card for good."""
        self.patches = patches
        await self._engine.documents.write([Put(self._journal.facts_space, "card", msgspec.json.encode(patches))])

    def skills(self) -> list[skills.Skill]:
        agents = self._engine.agents
        found = skills.from_cards([agent.card for agent in agents], self._declared, agents.mount_path)
        for skill in found:
            if skill.id in self.patches.skill_limitations:
                skill.limitations = self.patches.skill_limitations[skill.id]
        return found

    def view(self, *, door: bool = False, auth: list[str] | None = None) -> dict[str, Any]:
        """Returns the card of this node, signed. The link is a secret, and not on it."""
        settings, patches = self._settings, self.patches
        facts = cards.CardFacts(
            name=settings.name,
            skills=self.skills(),
            transports=self._transports(),
            transport_modes=list(settings.transport_modes),
            relay=settings.relay is not None,
            lan_discovery=settings.advertise_mdns,
            hmac=self._trust.hmac,
            identity=self._trust.card_block(),
            extensions=[*settings.extensions, *patches.extensions],
            availability=patches.availability if patches.availability is not None else settings.availability,
            limitations=self.limitations(),
            interfaces=list(settings.interfaces),
            auth_schemes=auth or ["none"],
            door=door,
            max_msg_bytes=settings.max_msg_bytes,
            features=_FEATURES,
        )
        return self._trust.sign_card(cards.build(facts))

    def limitations(self) -> list[dict[str, Any]]:
        changed = self.patches.limitations
        return changed if changed is not None else cards.limitations(list(self._settings.limitations))

    def extensions(self) -> set[str]:
        """The extensions that this node supports."""
        settings, hmac = self._settings, self._trust.hmac
        declared = {one["uri"] for one in (*settings.extensions, *self.patches.extensions)}
        built_in = extensions.built_in(hmac=hmac, mdns=settings.advertise_mdns, h2c=settings.http2)
        return declared | {one["uri"] for one in built_in} | {extensions.MDNS, extensions.H2C}
