"""Remembers the records of API keys that a server read a moment ago: a key then costs no read of the store for each
request.

Only the record is remembered, not the verdict: for every request the secret is hashed and compared, and the expiry
checked. A key that another process revokes is refused `REMEMBERED_FOR` seconds later at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .keys import KeyRecord, KeyStore

REMEMBERED_FOR = 0.5
"""Seconds; `interlingua keys revoke` returns after them, so that the key is valid nowhere by then."""

_LIMIT = 10_000  # records


class RememberedKeys:
    """A key store in front of another one. `forget` is to be called when this process changes a record there."""

    def __init__(self, keys: KeyStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._records: dict[str, tuple[float, KeyRecord]] = {}  # with the time until which each is remembered
        self._changes = 0

    async def get(self, key_id: str) -> KeyRecord | None:
        now = self._clock()  # before the read: a key that is revoked during the read is not remembered longer
        until, record = self._records.get(key_id, (0.0, None))
        if record is not None and now < until:
            return record
        changes = self._changes
        record = await self._keys.get(key_id)
        if record is None:
            self._records.pop(key_id, None)
        elif changes == self._changes:  # else the record may be the one from before the change
            if len(self._records) >= _LIMIT:
                self._records.clear()
            self._records[key_id] = now + REMEMBERED_FOR, record
        return record

    def forget(self, key_id: str) -> None:
        """Forgets a record, so that its next use reads it again, also while a read of it is under way."""
        self._changes += 1
        self._records.pop(key_id, None)

    async def all(self) -> list[KeyRecord]:
        return await self._keys.all()

    async def put(self, record: KeyRecord) -> None:
        await self._keys.put(record)
        self.forget(record.id)

    async def revoke(self, key_id: str, at: int) -> bool:
        known = await self._keys.revoke(key_id, at)
        self.forget(key_id)
        return known

    async def touch(self, key_id: str, at: int) -> None:
        await self._keys.touch(key_id, at)
        self.forget(key_id)
