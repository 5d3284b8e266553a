"""API keys, kept in the store. The security package knows what a key is; the store keeps it."""

from __future__ import annotations

import msgspec

from ..model import values
from ..security.keys import KeyRecord
from ..store.base import Store

_records = msgspec.json.Decoder(KeyRecord)


class StoredKeys:
    """The key store of a server: `security.keys.KeyStore` over our store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, record: KeyRecord) -> None:
        await self._store.put_key(record.id, values.encode(record))

    async def all(self) -> list[KeyRecord]:
        return [_records.decode(record) for record in await self._store.key_records()]

    async def get(self, key_id: str) -> KeyRecord | None:
        found = await self._store.key_record(key_id)
        return None if found is None else _records.decode(found)

    async def revoke(self, key_id: str, at: int) -> bool:
        record = await self.get(key_id)
        if record is None or record.revoked_at is not None:
            return False
        await self.put(msgspec.structs.replace(record, revoked_at=at))
        return True

    async def touch(self, key_id: str, at: int) -> None:
        record = await self.get(key_id)
        if record is not None:
            await self.put(msgspec.structs.replace(record, last_used_at=at))
