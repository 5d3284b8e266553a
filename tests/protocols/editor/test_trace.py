"""One trace over the wire: what `_meta` of a prompt brings, and what the mount puts there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import interlingua as il
from interlingua import Engine
from tests.kit.clients.editor import client_of
from tests.kit.engines import finish
from tests.kit.mounts.editor import AGENT, mounted, script
from tests.kit.traces import MALFORMED, TRACE, check_sent_on

from . import agents


@pytest.mark.parametrize(
    ("meta", "expected"), [(TRACE, TRACE), (MALFORMED, None), ({"baggage": "a=1"}, {"baggage": "a=1"}), (None, None)]
)
async def test_the_trace_in_meta_of_a_prompt_is_that_of_the_run(
    tmp_path: Path, meta: dict[str, str] | None, expected: dict[str, str] | None
) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.echo]) as engine, client_of(engine) as (client, _):
        await client.initialize()
        session = await client.new_session()
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "x"}], "_meta": meta}
        told = await client.ask("session/prompt", prompt)
        run = await engine.runs.get(told["_meta"]["interlingua"]["run"])
        assert run.request is not None
        assert run.request.trace == expected


@pytest.mark.parametrize("version", [1, 2])
async def test_the_mount_sends_the_trace_with_the_prompt(store: Path, version: int) -> None:
    async with mounted(store, {"version": version}, version=version) as (eng, _):
        for trace in (TRACE, None):
            run = await finish(eng, AGENT, script("seen"), trace=trace)
            assert run.status is il.Status.SUCCEEDED, run.error
            assert run.output is not None
            asked = [params for method, params in json.loads(run.output["text"]) if method == "session/prompt"]
            meta = asked[-1]["_meta"]
            if trace is not None:
                check_sent_on(meta)
            else:
                assert meta["baggage"] == "interlingua-hops=1"
