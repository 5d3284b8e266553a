"""Idempotency keys: one key is one run, whoever uses it, and a run with a key costs no commit more than one without."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import KeyReused
from interlingua.model.run import RunRequest
from interlingua.store.base import RunFilter
from interlingua.store.sqlite import SQLiteStore

from .common import engine


def asked(text: str = "x", key: str | None = "once") -> RunRequest:
    return RunRequest("count", None, {"text": text}, key=key)


def counting(calls: list[str]) -> il.Agent[..., Any]:
    @il.agent
    async def count(text: str) -> str:
        calls.append(text)
        return text

    return count


async def test_a_short_run_with_a_key_is_one_commit_of_a_file(tmp_path: Path) -> None:
    """A database elsewhere has to be asked first whether the key is free."""
    async with engine(tmp_path / "store.db", counting([])) as eng:
        assert isinstance(eng.store, SQLiteStore)
        for key in (None, "once"):
            before = eng.store.batches
            assert (await eng.submit(asked(key=key))).status is il.Status.SUCCEEDED
            assert eng.store.batches == before + 1


async def test_a_key_that_comes_again_gives_the_run_that_it_made(store: Path) -> None:
    calls: list[str] = []
    async with engine(store, counting(calls)) as eng:
        made = await asyncio.gather(*(eng.submit(asked()) for _ in range(5)))
        with pytest.raises(KeyReused):
            await eng.submit(asked("y"))
    async with engine(store, counting(calls)) as eng:
        made.append(await eng.submit(asked()))
    assert len({run.id for run in made}) == 1
    assert calls == ["x"]


async def test_a_key_that_another_process_uses_in_the_same_moment_is_one_run(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(store, counting([])) as one, engine(store, counting([])) as other:
        monkeypatch.setattr(other.store, "key_is_free", lambda caller, key: True)  # as it was a moment ago
        first = await one.submit(asked())
        assert (await other.submit(asked())).id == first.id
        begun = other.begin(asked())
        assert begun is not None
        with pytest.raises(il.InterlinguaError, match="ask again"):
            await begun.flush()
        assert len(await one.runs(RunFilter(agent="count"))) == 1
        assert other.worker.log_of(begun.row.id) is None
        assert other.worker.running == 0
