"""A model that is asked by way of the newer of OpenAI's two APIs, which is what `openai:NAME` means: tools, delegation
and verdicts work there too, and what it answered is replayed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import interlingua as il
from interlingua.models.agent_loop import thinker
from tests.kit.engines import PATIENT, QUICK, crash, engine, submit

from .standin import RESPONSES, Answer, Asked, StandIn
from .test_thinking import EXAMPLE, REQUESTS, Tools, done_once, example


def add(eng: il.Engine, tools: Tools) -> None:
    handlers = {id_: thinker(EXAMPLE, manifest, RESPONSES) for id_, manifest in EXAMPLE.manifests.items()}
    eng.teams.add_team(EXAMPLE, handlers, tools)


@pytest.mark.parametrize("at", [3, 8, REQUESTS])
@pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])
async def test_over_the_responses_api_a_team_works_and_goes_on_after_a_crash(
    store: Path, settings: il.Settings, at: int
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def script(asked: Asked) -> Answer:
        if len(model.requests) == at and not reached.is_set():
            reached.set()
            assert go_on.wait(20)
        return example(asked)

    tools = Tools()
    with StandIn(EXAMPLE, script) as model:
        eng = await engine(store, settings=settings).__aenter__()
        add(eng, tools)
        run = await submit(eng, "crew", {"text": "the task"})
        assert await asyncio.to_thread(reached.wait, 20)
        await crash(eng)
        go_on.set()
        async with engine(store, settings=settings) as again:
            add(again, tools)
            await done_once(again, model, run.id, 1)
    assert sorted(arguments["path"] for _, arguments in tools.calls) == ["a", "b"]
    assert all("input" in one.body and "messages" not in one.body for one in model.requests)
    lead = [one for one in model.of("lead") if one.turns == 1][-1]
    # What the model called, it finds again under the ids that it gave, each with what came of it.
    called = [item["call_id"] for item in lead.body["input"] if item.get("type") == "function_call"]
    given = [item["call_id"] for item in lead.body["input"] if item.get("type") == "function_call_output"]
    assert called == given
    assert len(called) == 2
