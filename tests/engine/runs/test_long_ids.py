"""Ids and keys that are too long are the caller's mistake, on every store and at every door."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.documents import Post, Put
from interlingua.model.errors import DefinitionError, InvalidRequest
from interlingua.model.filters import RunFilter
from interlingua.model.run import MAX_ID_BYTES
from tests.kit.engines import engine, finish, submit

LONG = "".join(random.Random(7).choices(string.ascii_letters, k=5000))  # a text that no database makes shorter
MOST = LONG[:MAX_ID_BYTES]


@il.agent
async def echo(text: str) -> str:
    return text


@pytest.mark.parametrize(
    "options", [{"key": LONG}, {"thread": LONG}, {"caller": il.Caller(LONG)}, {"key": "é" * 300}], ids=str
)
async def test_a_run_with_a_long_id_is_refused(store: Path, options: dict[str, Any]) -> None:
    async with engine(store, echo) as eng:
        with pytest.raises(InvalidRequest, match="longer than 512 bytes") as refused:
            await submit(eng, "echo", {"text": "x"}, **options)
        assert not refused.value.transient
        assert await eng.runs.search(RunFilter()) == []


async def test_ids_up_to_the_limit_are_kept(store: Path) -> None:
    async with engine(store, echo) as eng:
        caller = il.Caller(MOST)
        await eng.threads.create(MOST, caller=caller)
        first = await finish(eng, "echo", {"text": "x"}, key=MOST, thread=MOST, caller=caller)
        assert first.output == {"text": "x"}
        again = await finish(eng, "echo", {"text": "x"}, key=MOST, thread=MOST, caller=caller)
        assert again.id == first.id


async def test_a_thread_with_a_long_id_is_refused(store: Path) -> None:
    async with engine(store) as eng:
        with pytest.raises(InvalidRequest, match="thread id is longer") as refused:
            await eng.threads.create(LONG)
        assert refused.value.path == "/thread_id"
        with pytest.raises(InvalidRequest, match="caller is longer"):
            await eng.threads.create("t", caller=il.Caller(LONG))


async def test_what_a_store_cannot_index_is_refused_and_disturbs_nothing_else(store: Path) -> None:
    async with engine(store) as eng:
        with pytest.raises(InvalidRequest, match="cannot be kept"):
            await eng.core.store.documents.link("kind", LONG, "target")
        fine = eng.core.store.documents.write([Put("space", "fine", b"{}")])
        for change in (Put("space", LONG, b""), Put("space", "x", b"", topic=LONG), Post("box", LONG, b"")):
            with pytest.raises(InvalidRequest, match="cannot be kept"):
                await eng.core.store.documents.write([change])
        await fine
        assert await eng.core.store.documents.get("space", "fine") is not None


async def test_an_agent_with_a_long_name_is_refused_where_it_is_declared() -> None:
    with pytest.raises(DefinitionError, match="at most 128"):
        il.agent(name=LONG)(_nothing)


async def _nothing(text: str) -> str:
    return text
