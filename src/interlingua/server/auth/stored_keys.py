"""Keeps API keys in the store. The security package defines a key; the store keeps its record."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from ...engine.engine import Engine
from ...engine.ports import KeyStore
from ...model import json_values
from ...model.errors import StoreError
from ...security.auth import Authenticator
from ...security.keys import KeyRecord
from ...security.remembered_keys import RememberedKeys

log = logging.getLogger("interlingua.http")

_records = msgspec.json.Decoder(KeyRecord)


class StoredKeys:
    """Implements `security.keys.KeyStore` over the store of the server."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    async def put(self, record: KeyRecord) -> None:
        await self._keys.put(record.id, json_values.encode(record))

    async def all(self) -> list[KeyRecord]:
        return [_records.decode(record) for record in await self._keys.list()]

    async def get(self, key_id: str) -> KeyRecord | None:
        found = await self._keys.get(key_id)
        return None if found is None else _records.decode(found)

    async def any(self) -> bool:
        """Returns whether any key is stored, valid or not."""
        return bool(await self._keys.list(1))

    async def revoke(self, key_id: str, at: int) -> bool:
        return await self._keys.change(key_id, lambda old: _changed(old, revoked_at=at))

    async def touch(self, key_id: str, at: int) -> None:
        await self._keys.change(key_id, lambda old: _changed(old, last_used_at=at))

    def remembered(self) -> RememberedKeys:
        """Returns the key store for a server's requests. It sees at once every change that any part of this process
        makes."""
        keys = RememberedKeys(self)
        self._keys.on_change = keys.forget
        return keys


def _changed(old: bytes, **changes: int) -> bytes | None:
    """The record with these members; None for one that was revoked, which stays as it is."""
    record = _records.decode(old)
    return None if record.revoked_at is not None else json_values.encode(msgspec.structs.replace(record, **changes))


async def close_when_keyed(engine: Engine, keys: StoredKeys, auth: Authenticator) -> None:
    """Closes an open server to callers without a key as soon as the store has its first key."""
    if not auth.open_to_all:
        return
    news = asyncio.Event()
    end = engine.on_store_change(news.set)  # keys are made by other processes
    while auth.open_to_all:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await news.wait()
        news.clear()
        with contextlib.suppress(StoreError):
            auth.open_to_all = not await keys.any()
        await asyncio.sleep(0.02)  # others may write all the time
    end()
    log.warning("the store has its first key: callers need one from now on")
