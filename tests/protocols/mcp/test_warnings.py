"""Warnings of a run that `agents/run` follows: the door tells them as progress, and the mount shows each once."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import RunBlocked, Warned
from interlingua.model.filters import RunFilter
from interlingua.mounts.loader import local_agents
from interlingua.protocols.targets import parse
from interlingua.server.app import ServeSettings, serving
from interlingua.server.loading.target import load
from tests.kit.clients.mcp import COMMAND, DELTA, LEGACY, MODERN, in_process, show
from tests.kit.engines import bodies, crash, engine, finish, submit
from tests.kit.mounts.mcp import act, mount, mounted, script
from tests.kit.mounts.watch import SETTINGS, seen

PROGRESS = "notifications/progress"
SOURCE = '''
import interlingua as il

@il.agent
async def careless(text: str, ctx: il.Context[None, None]):
    """Says something odd."""
    yield "one "
    await ctx.warn("Something is odd.")
    yield "two"
'''


@pytest.mark.parametrize("version", [*LEGACY, MODERN])
async def test_warnings_are_told_as_progress_where_progress_has_text(store: Path, version: str) -> None:
    async with in_process(store, show) as (client, _):
        call: Any = {"name": "show", "input": {"text": "x"}}
        if version == MODERN:
            await client.modern("agents/run", call)
            answer = await client.modern("agents/run", call, token="t")
        else:
            await client.initialize(version)
            await client.run("show", {"text": "x"})
            answer = await client.call("agents/run", {**call, "_meta": {"progressToken": "t"}})
        told = [notice["params"] for notice in client.notices(PROGRESS)]
        wanted = {"progressToken": "t", "progress": 1, "message": "Something is odd."}
        assert told == ([] if version == "2024-11-05" else [wanted])
        assert client.joined("t") == answer["result"]["output"] == {"text": "Half and whole."}
        for notice in client.notices(PROGRESS):
            assert client.place(notice) < client.place(answer)
            assert client.place(notice) > client.place(client.notices(DELTA)[0])


@pytest.mark.parametrize("way", ["stdio", "mcp", "mcp/sse"])
async def test_the_warnings_of_a_mounted_server_of_ours_are_those_of_the_run(
    store: Path, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "careless.py"
    file.write_text(SOURCE)
    there = tmp_path / "there.db"
    made: dict[str, Any] = {}
    exec(SOURCE, made)
    async with serving(there, [made["careless"]], ServeSettings(port=0, engine=SETTINGS)) as server:
        target = f"mcp+{server.address}/{way}"
        if way == "stdio":
            words = [
                "env",
                f"INTERLINGUA_STORE={tmp_path / 'other.db'}",
                "INTERLINGUA_PROJECT=there",
                *COMMAND,
                str(file),
            ]
            target = f"mcp:{shlex.join(words)}"
        agent = (await load(parse(f"{target}#careless"))).chosen
        async with engine(store, agent, settings=SETTINGS) as eng:
            run = await finish(eng, "careless", {"text": "x"})
            assert run.output == {"text": "one two"}
            assert [body.message for body in await bodies(eng, run.id, Warned)] == ["Something is odd."]
        assert agent.let_go is not None
        await agent.let_go()


async def test_a_run_that_is_found_again_shows_each_warning_once(store: Path, tmp_path: Path) -> None:
    gate = asyncio.Event()

    @il.agent
    async def careless(text: str, ctx: il.Context[None, None]) -> str:
        await ctx.warn("Something is odd.")
        await gate.wait()
        await ctx.warn("Something else is odd.")
        return "done"

    async with serving(tmp_path / "there.db", [careless], ServeSettings(port=0, engine=SETTINGS)) as server:
        made = mount(f"{server.address}/mcp")
        eng = engine(store, *await local_agents(made, None), settings=SETTINGS)
        await eng.__aenter__()
        run = await submit(eng, "careless", {"text": "x"})
        await seen(eng, run.id, "warning")
        await crash(eng)
        async with mounted(store, f"{server.address}/mcp") as (again, _):
            gate.set()
            ended = await again.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "done"}
            told = [body.message for body in await bodies(again, run.id, Warned)]
            assert told == ["Something is odd.", "Something else is odd."]
        await made.close()


async def test_progress_of_another_server_is_no_warning(store: Path) -> None:
    progress = {"message": "half of it"}
    async with mounted(store) as (eng, _):
        run = await finish(eng, "script", script(act("said", progress), act("output", {"text": "x"})))
        assert run.output == {"text": "x"}
        assert await bodies(eng, run.id, Warned) == []


async def test_why_a_run_is_blocked_is_told_by_agents_run(store: Path) -> None:
    entered = 0

    @il.agent
    async def payer(ctx: il.Context[Any, Any], text: str) -> str:
        nonlocal entered
        entered += 1
        if entered == 1:
            ctx._run.block_run("history_mismatch", "the code calls another step")
        return f"paid {text}"

    async with in_process(store, payer) as (client, eng):
        await client.initialize()
        call = await client.start_run("payer", {"text": "10"}, token="t")
        progress = await client.notice(PROGRESS)
        assert "the code calls another step" in progress["params"]["message"]
        [run] = await eng.runs.search(RunFilter(blocked=True))
        assert await bodies(eng, run.id, RunBlocked)
        await eng.runs.retry(run.id)
        assert json.dumps((await client.answer(call))["result"]["output"]) == '{"text": "paid 10"}'
