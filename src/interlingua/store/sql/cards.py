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
        matching = [
            stored for stored in await self.list()
            if stored.card.name == name and version in (None, stored.card.version) and origin in (None, stored.origin)
        ]  # fmt: skip
        if not matching:
            return None
        newest = [stored for stored in matching if stored.card.version == matching[-1].card.version]
        return min(newest, key=lambda stored: (run_identity.is_mount(stored.origin), stored.origin))

    async def list(self) -> list[StoredCard]:
        rows = await self._database.read(
            lambda conn: conn.execute("SELECT origin, card FROM cards ORDER BY name, version, origin").fetchall()
        )
        return [StoredCard(origin, _cards.decode(card)) for origin, card in rows]
