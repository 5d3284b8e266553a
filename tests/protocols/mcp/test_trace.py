"""One trace over the wire: what `_meta` of a request brings, and what the mount puts there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from tests.kit.clients.mcp import RUN, echo, in_process
from tests.kit.engines import finish
from tests.kit.mounts.mcp import act, mounted, script, sent
from tests.kit.traces import MALFORMED, TRACE, check_sent_on

from .mount_web import served


@pytest.mark.parametrize("modern", [False, True])
async def test_the_trace_in_meta_is_that_of_the_run(store: Path, modern: bool) -> None:
    async with in_process(store, echo) as (client, engine):
        for meta, expected in ((TRACE, TRACE), (MALFORMED, None), ({"baggage": "a=1"}, {"baggage": "a=1"})):
            if modern:
                answer = await client.modern("agents/run", {"name": "echo", "input": {"text": "x"}}, **meta)
                told = answer["result"]
            else:
                await client.initialize()
                told = await client.whole_run("echo", {"text": "x"}, **meta)
            run = await engine.runs.get(told["_meta"][RUN])
            assert run.request is not None
            assert run.request.trace == expected


async def test_the_trace_of_a_tool_call_is_that_of_the_run(store: Path) -> None:
    async with in_process(store, echo) as (client, engine):
        await client.initialize()
        await client.tool("echo", {"text": "x"}, **TRACE)
        (run,) = await engine.runs.search(RunFilter())
        found = await engine.runs.get(run.id)
        assert found.request is not None
        assert found.request.trace == TRACE


async def sends_on(eng: il.Engine, log: Path) -> None:
    for trace in (TRACE, None):
        run = await finish(eng, "script", script(act("output", {"text": "done"})), trace=trace)
        assert run.status is il.Status.SUCCEEDED, run.error
        meta: dict[str, Any] = (await sent(log, "agents/run"))["params"]["_meta"]
        if trace is not None:
            check_sent_on(meta)
        else:
            assert meta["baggage"] == "interlingua-hops=1"


async def test_the_mount_sends_the_trace_to_a_process(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "wire"
    async with mounted(store, {"log": str(log)}) as (eng, _):
        await sends_on(eng, log)


async def test_the_mount_sends_the_trace_to_an_address(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "wire"
    async with served("stream", log=str(log)) as web, mounted(store, web.address) as (eng, _):
        await sends_on(eng, log)
