"""A store in memory: a whole store while it is open, and nothing afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

import interlingua as il
from interlingua.store.open import open_store
from interlingua.store.sqlite.memory import MemoryStore
from tests.kit.engines import QUICK, submit


@il.agent
async def echo(text: str) -> str:
    return text


async def test_it_is_a_store_and_is_gone_when_it_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(":memory:")
    assert isinstance(store, MemoryStore)
    async with il.Engine(store, agents=[echo], settings=QUICK) as engine:
        run = await submit(engine, "echo", {"text": "hello"})
        assert (await engine.runs.wait(run.id, timeout=10)).output == {"text": "hello"}
        assert store.path.exists()
    assert not store.path.parent.exists()
    assert list(tmp_path.iterdir()) == []


async def test_two_of_them_share_nothing() -> None:
    async with (
        il.Engine(":memory:", agents=[echo], settings=QUICK) as one,
        il.Engine(":memory:", agents=[echo], settings=QUICK) as other,
    ):
        run = await submit(one, "echo", {"text": "hello"})
        await one.runs.wait(run.id, timeout=10)
        with pytest.raises(il.RunNotFound):
            await other.runs.get(run.id)
