"""Metadata that goes along with messages and tasks, over HTTP and as frames, is that of the run."""

from __future__ import annotations

from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from tests.kit.peer_nodes import at_door, running_node, shout, text
from tests.kit.traces import TRACE

from .reference import Reference

GIVEN = {"ticket": "T-7", "deep": {"er": [1, None]}}


async def only_run(eng: il.Engine) -> il.Run:
    (run,) = await eng.runs.search(RunFilter())
    return await eng.runs.get(run.id)


@pytest.mark.parametrize("path", ["/message:send", "/tasks"])
async def test_metadata_of_a_request_is_that_of_the_run(path: str) -> None:
    async with at_door(shout) as (node, http):
        body: dict[str, Any] = {"role": "user", "parts": text("hi"), "metadata": {**GIVEN, **TRACE}}
        assert (await http.post(path, json=body)).is_success
        assert (await only_run(node.node.engine)).metadata == GIVEN  # a trace has a place of its own


@pytest.mark.parametrize("given", [GIVEN, None, "odd"], ids=str)
@pytest.mark.parametrize("kind", ["message", "task"])
async def test_metadata_of_a_frame_is_that_of_the_run(kind: str, given: Any) -> None:
    async with running_node("Ours", agents=[shout]) as ours, Reference("Ref").join(str(ours.node.link)) as ref:
        await ref.connected()
        if kind == "message":
            assert (await ref.ask("hi", metadata=given))["parts"] == text("HI")
        else:
            task = await ref.delegate({"role": "user", "parts": text("hi"), "metadata": given})
            await ref.until(lambda: ref.tasks[task]["status"] == "completed")
        assert (await only_run(ours.node.engine)).metadata == (GIVEN if given is GIVEN else {})
