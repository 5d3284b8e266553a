"""Readers of a stream that are slow: what a stream forgets meanwhile, it knows again when they go on."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.run import OWNER
from interlingua.protocols.connect import projection
from interlingua.protocols.connect.config import DoorSettings
from interlingua.protocols.connect.door import http_streams
from tests.kit.engines import engine

PIECES = ["a", "b\ud83d", "\ude00c", "d", "e"]


@il.agent(asks=[il.Confirm])
async def slow(text: str, ctx: il.Context[None, None]) -> AsyncIterator[str]:
    """Says it piece by piece, shows a file, and asks in the end."""
    await ctx.artifact("kept", name="file")
    for number, piece in enumerate(PIECES):
        await ctx.step(f"pause {number}", lambda: asyncio.sleep(0.01))
        yield piece
    await ctx.ask(il.Confirm("Go on?"))
    yield "!"


async def read(updates: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    """Takes a piece only after the stream has forgotten what it knew."""
    told = []
    async for piece in updates:
        for _ in range(5):
            await asyncio.sleep(0.001)
        told += [json.loads(line[5:]) for line in piece.decode().splitlines() if line.startswith("data:")]
    return told


@pytest.mark.parametrize("modes", [["values"], ["values", "custom"]])
async def test_a_slow_reader_is_told_the_same(store: Path, modes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_streams, "_SLOW", 0.0)
    forgotten = []
    forget = projection.Projection.forget
    monkeypatch.setattr(projection.Projection, "forget", lambda self: (forgotten.append(1), forget(self))[1])
    async with engine(store, slow) as eng:
        run = await eng.runs.submit(il.RunRequest("slow", None, {"text": "x"}))

        def updates(after: projection.Place) -> AsyncIterator[bytes]:
            settings = DoorSettings(values_per_second=1000.0)
            return http_streams.follow(eng, run.id, after, modes, settings, OWNER.id)

        told = await read(updates((0, 1)))
        assert told[-1]["status"] == "interrupted"
        values = [update["values"]["text"] for update in told if update["type"] == "values"]
        assert values[-1] == "ab\U0001f600cde"
        assert all(later.startswith(sooner) for sooner, later in itertools.pairwise(values))
        assert len(forgotten) > 1
        [question] = (await eng.runs.get(run.id)).questions
        seen = (await eng.runs.get(run.id)).seq
        await eng.questions.answer(question.id, {"approved": True})
        end = (await read(updates((seen, 1))))[-1]
        assert end["values"] == {"text": "ab\U0001f600cde!"}
        assert "kept" in json.dumps(end["messages"])
