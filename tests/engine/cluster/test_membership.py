"""How long a process that does not answer is waited for before others go on without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import interlingua as il
from interlingua.engine.cluster import membership
from interlingua.engine.cluster.membership import Replica
from interlingua.model.documents import Put
from interlingua.store.rows import WorkerRow
from tests.kit.engines import QUICK

ELSEWHERE = Replica("0badcafe", "http://127.0.0.1:9", "the worker of another process", "elsewhere")


async def test_one_that_does_not_answer_is_waited_for_as_long_as_the_store_needs_to_miss_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_PATIENCE", 0.0)
    async with il.Engine(store, settings=QUICK) as engine:
        engine.core.store.claims.missed_after = 0.5
        alive = [WorkerRow(ELSEWHERE.worker, "elsewhere", 1, 0, [])]

        async def workers() -> list[WorkerRow]:
            return alive

        monkeypatch.setattr(engine.core.store.claims, "workers", workers)
        await engine.core.store.documents.write([Put("replicas", ELSEWHERE.id, msgspec.json.encode(ELSEWHERE))])
        begun = asyncio.get_running_loop().time()
        assert not await engine.cluster.membership.gone(ELSEWHERE), "it lives, and only cannot be reached"
        assert asyncio.get_running_loop().time() - begun >= 0.5
        asyncio.get_running_loop().call_later(0.3, alive.clear)
        assert await engine.cluster.membership.gone(ELSEWHERE)
