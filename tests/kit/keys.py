"""What the tests of this package share: a key store in memory, and clocks that stand still until told."""

from __future__ import annotations

import msgspec

from interlingua.security.keys import KeyRecord

NOW = 1_800_000_000  # seconds
NOW_MICROS = NOW * 1_000_000


class Clock:
    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class MemoryKeys:
    """The key store's port, kept in a dict."""

    def __init__(self, *records: KeyRecord) -> None:
        self.records = {record.id: record for record in records}
        self.touched: list[tuple[str, int]] = []

    async def put(self, record: KeyRecord) -> None:
        self.records[record.id] = record

    async def all(self) -> list[KeyRecord]:
        return list(self.records.values())

    async def get(self, key_id: str) -> KeyRecord | None:
        return self.records.get(key_id)

    async def revoke(self, key_id: str, at: int) -> bool:
        record = self.records.get(key_id)
        if record is None:
            return False
        if record.revoked_at is None:
            self.records[key_id] = msgspec.structs.replace(record, revoked_at=at)
        return True

    async def touch(self, key_id: str, at: int) -> None:
        self.touched.append((key_id, at))
        self.records[key_id] = msgspec.structs.replace(self.records[key_id], last_used_at=at)
