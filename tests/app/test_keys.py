"""Keys of a server that is up: whatever part of its process revokes one, it is refused from then on."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from interlingua.engine.ids import now
from interlingua.security import remembered_keys
from interlingua.security.keys import make_key
from interlingua.server.app import ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from interlingua.store.sql.keys import SqlKeys


async def test_a_key_is_read_once_and_refused_as_soon_as_this_process_revokes_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    found = SqlKeys.get

    async def counted(self: SqlKeys, id_: str) -> bytes | None:
        nonlocal reads
        reads += 1
        return await found(self, id_)

    secret, record = make_key("laptop", [], now())
    record.last_used_at = now()
    kept = open_store(store)
    await kept.open()
    await StoredKeys(kept.keys).put(record)
    await kept.close()
    monkeypatch.setattr(SqlKeys, "get", counted)
    monkeypatch.setattr(remembered_keys, "REMEMBERED_FOR", 60.0)
    async with serving(store, [], ServeSettings(port=0)) as server, httpx2.AsyncClient() as client:

        async def asked() -> int:
            given = {"x-api-key": secret}
            return (await client.post(server.address + "/connect/agents/search", json={}, headers=given)).status_code

        for _ in range(3):
            assert await asked() == 200
        assert reads == 1
        assert await StoredKeys(server.engine.keys).revoke(record.id, now())
        assert await asked() == 401
