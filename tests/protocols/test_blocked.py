"""Blocked runs through every door: alive, with a message, until the run goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.model.events import RunBlocked
from interlingua.model.filters import RunFilter
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_all
from tests.kit.clients.mcp import client_of
from tests.kit.engines import QUICK, engine, parked, submit

WHY = "the history has step 'charge' (10) here; the code calls step 'charge' (999)"
PROTOCOLS = ["connect", "mcp", "peer", "cap", "editor"]


def payer() -> il.Agent[..., Any]:
    """An agent whose code does not fit its runs until somebody retries them."""
    entered = 0

    @il.agent
    async def payer(ctx: il.Context[Any, Any], text: str) -> str:
        nonlocal entered
        entered += 1
        if entered == 1:
            ctx._run.block_run("history_mismatch", WHY)
        return f"paid {text}"

    return payer


@contextlib.asynccontextmanager
async def remote(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path / "there.db", [payer()], ServeSettings(port=0, engine=QUICK)) as server:
        yield server


async def blocked_there(server: Server) -> il.Run:
    async with asyncio.timeout(20):
        while not (found := await server.engine.runs.search(RunFilter(agent="payer", blocked=True))):
            await server.engine.runs.next_hint("")
    return found[0]


async def heard(eng: il.Engine, run: str, text: str) -> None:
    """Wait until the log of a run says something."""
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run):
            if text in str(event.body):
                return
    raise AssertionError(f"nobody said {text}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_blocked_run_is_alive_with_a_message(tmp_path: Path, store: Path | str, protocol: str) -> None:
    async with remote(tmp_path) as server:
        agents = await load_all(parse(f"{protocol}+{server.address}/{protocol}"))
        async with engine(store, *agents) as eng:
            run = await submit(eng, agents[0].card.name, {"text": "10"})
            there = await blocked_there(server)
            await heard(eng, run.id, WHY)
            with pytest.raises(TimeoutError):
                await eng.runs.wait(run.id, timeout=0.05)
            assert not (await eng.runs.get(run.id)).status.final
            await server.engine.runs.retry(there.id)
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.status is il.Status.SUCCEEDED
            assert "paid 10" in str(done.output)
            for let_go in {agent.let_go for agent in agents if agent.let_go is not None}:
                await let_go()


@il.agent
async def listener(ctx: il.Context[Any, Any], text: str) -> str:
    return f"{text} {(await ctx.receive()).text}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_run_whose_code_has_gone_is_alive_with_a_message(
    tmp_path: Path, store: Path | str, protocol: str
) -> None:
    """A server offers the agent of a worker, which ends while the run waits."""
    at = tmp_path / "there.db"
    worker = engine(at, listener)
    await worker.start()
    await worker.cluster.remote_agents.start(looks=False)
    async with serving(at, [], ServeSettings(port=0, engine=QUICK)) as server:
        there = server.engine
        agents = await load_all(parse(f"{protocol}+{server.address}/{protocol}"))
        async with engine(store, *agents) as eng:
            run = await submit(eng, agents[0].card.name, {"text": "you said"})
            async with asyncio.timeout(20):
                while not (found := await there.runs.search(RunFilter(agent="listener"))):
                    await there.runs.next_hint("")
            await parked(worker, found[0].id)
            await worker.cluster.remote_agents.stop()
            await worker.stop()
            await there.runs.send(found[0].id, "hello")
            if protocol != "mcp":  # its runs have no place for that beside their output; its tools do
                await heard(eng, run.id, "nobody serves")
            async with engine(at, listener):
                done = await eng.runs.wait(run.id, timeout=20)
            assert done.status is il.Status.SUCCEEDED, done.error
            assert "you said hello" in str(done.output)
            for let_go in {agent.let_go for agent in agents if agent.let_go is not None}:
                await let_go()


async def test_a_reader_is_told_once_that_nobody_serves_its_run(store: Path | str) -> None:
    async with engine(store) as eng:
        async with engine(store, listener) as worker:
            run = (await submit(worker, "listener", {"text": "you said"})).id
            await parked(worker, run)
        reader = eng.runs.reader(run)
        seen = await reader.read()
        await eng.runs.send(run, "hello")
        while not isinstance(seen[-1].body, RunBlocked):
            seen += await reader.read(timeout=20)
        assert seen[-1].body.reason == "no_code"
        assert seen[-1].seq == reader.cursor == seen[-2].seq
        assert await reader.read(timeout=0.3) == []
        async with engine(store, listener):
            while not reader.over:
                seen += await reader.read(timeout=20)
        reader.close()
        assert [event.kind for event in seen].count("blocked") == 1
        assert "blocked" not in [event.kind async for event in eng.runs.events(run, follow=False)]


async def test_the_caller_of_a_tool_is_told_why_its_run_is_blocked(store: Path | str) -> None:
    async with il.Engine(store, agents=[payer()], settings=QUICK) as eng, client_of(eng) as (client, _):
        await client.initialize()
        await client.call("logging/setLevel", {"level": "warning"})
        call = await client.start_tool("payer", {"text": "10"}, token="t")
        progress = await client.notice("notifications/progress")
        assert WHY in progress["params"]["message"]
        assert WHY in (await client.notice("notifications/message"))["params"]["data"]
        (run,) = await eng.runs.search(RunFilter(blocked=True))
        await eng.runs.retry(run.id)
        assert "paid 10" in str(await client.answer(call))


async def test_who_looks_at_a_blocked_run_is_told_why(tmp_path: Path) -> None:
    async with remote(tmp_path) as server, httpx2.AsyncClient(base_url=server.address) as http:
        (agent,) = (await http.post("/connect/agents/search", json={})).json()
        body = {"agent_id": agent["agent_id"], "input": {"text": "10"}}
        made = (await http.post("/connect/runs", json=body)).json()
        await blocked_there(server)
        shown = (await http.get(f"/connect/runs/{made['run_id']}")).json()
        assert (shown["status"], shown["interlingua"]) == (
            "pending", {"blocked": {"reason": "history_mismatch", "message": WHY}},
        )  # fmt: skip
        waited = await http.get(f"/connect/runs/{made['run_id']}/wait", params={"timeout": 0.05})
        assert waited.status_code == 204
        task = (await http.get(f"/cap/tasks/{made['run_id']}")).json()
        assert (task["status"], task["blocked"]["message"]) == ("running", WHY)
