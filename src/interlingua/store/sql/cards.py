"""Cards as SQL: those of every agent that a process of this store ever had."""

from __future__ import annotations

import msgspec

from ...model import json_values, run_identity
from ...model.card import AgentCard
from ..rows import StoredCard
from .database import Database

_cards = msgspec.json.Decoder(AgentCard)


class SqlCards:
    """Cards, by name, version and origin."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, cards: list[StoredCard]) -> None:
        rows = [(card.card.name, card.card.version, card.origin, json_values.encode(card.card)) for card in cards]
        await self._database.write(
            lambda conn: conn.executemany(
                "INSERT INTO cards (name, version, origin, card) VALUES (?,?,?,?) "
                "ON CONFLICT (name, version, origin) DO UPDATE SET card=excluded.card WHERE cards.card<>excluded.card",
                sorted(rows),
            )
        )

    async def get(self, name: str, version: str | None, origin: str | None = None) -> StoredCard | None:
        found = [
            one for one in await self.list()
            if one.card.name == name and version in (None, one.card.version) and origin in (None, one.origin)
        ]  # fmt: skip
        if not found:
            return None
        newest = [one for one in found if one.card.version == found[-1].card.version]
        return min(newest, key=lambda one: (run_identity.is_mount(one.origin), one.origin))

    async def list(self) -> list[StoredCard]:
        rows = await self._database.read(
            lambda conn: conn.execute("SELECT origin, card FROM cards ORDER BY name, version, origin").fetchall()
        )
        return [StoredCard(origin, _cards.decode(card)) for origin, card in rows]
