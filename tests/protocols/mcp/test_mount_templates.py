"""Templates of a mounted server are agents that take a config: one is made for each run, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import InvalidConfig
from interlingua.model.filters import RunFilter
from interlingua.mounts.loader import local_agents
from interlingua.server.app import ServeSettings, serving
from tests.kit.clients.mcp import echo, in_process, styled
from tests.kit.engines import crash, engine, submit
from tests.kit.mounts.mcp import act, mount, mounted, script, sent, wire
from tests.kit.mounts.watch import SETTINGS, seen

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TONE = {"type": "object", "properties": {"tone": {"type": "string"}}, "required": ["tone"]}
TEMPLATE = {
    "name": "styled", "description": "Speaks in a tone.", "inputSchema": TEXT, "outputSchema": TEXT,
    "configSchema": TONE, "framework": "none",
}  # fmt: skip
ABLE = {"agents": {"templates": True}}
DONE = act("output", {"text": "done"})


async def run(eng: il.Engine, name: str, input_: Any, config: Any = None) -> il.Run:
    return await eng.runs.wait((await submit(eng, name, input_, config=config)).id, timeout=20)


async def test_a_template_is_an_agent_that_takes_a_config(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "wire"
    given = {"capabilities": ABLE, "templates": [TEMPLATE], "log": str(log)}
    async with mounted(store, given) as (eng, _):
        cards = {agent.card.name: agent.card for agent in eng.agents}
        assert list(cards) == ["script", "styled"]
        assert (cards["styled"].config, cards["script"].config) == (TONE, None)
        assert cards["styled"].metadata["mcp"] == {"framework": "none"}
        for number in (1, 2):
            done = await run(eng, "styled", script(DONE), {"tone": "dry"})
            assert done.output == {"text": "done"}, done.error
            made = (await sent(log, "agents/create"))["params"]
            assert (made["templateName"], made["config"]) == ("styled", {"tone": "dry"})
            assert (await sent(log, "agents/run"))["params"]["name"] == f"made-{number}"
            assert (await sent(log, "agents/destroy"))["params"]["name"] == f"made-{number}"
        with pytest.raises(InvalidConfig):
            await run(eng, "styled", script(DONE))
        assert (await run(eng, "script", script(DONE))).output == {"text": "done"}
        assert len([one for one in wire(log) if one.get("method") == "agents/create"]) == 2


async def test_what_was_made_for_a_run_ends_with_it_however_it_ends(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "wire"
    given = {"capabilities": ABLE, "templates": [TEMPLATE], "log": str(log)}
    async with mounted(store, given) as (eng, _):
        failed = await run(eng, "styled", script(act("error", {"code": 0, "message": "oh no"})), {"tone": "dry"})
        assert failed.error is not None
        assert failed.error.message == "oh no"
        assert (await sent(log, "agents/destroy"))["params"]["name"] == "made-1"
        lines = [act("delta", {"text": "a"}), act("until_cancelled", {"code": 0, "message": "cancelled"})]
        left = await submit(eng, "styled", script(*lines), config={"tone": "dry"})
        await seen(eng, left.id, "delta")
        await eng.runs.cancel(left.id)
        assert (await eng.runs.wait(left.id, timeout=20)).status is il.Status.CANCELLED
        methods = [one.get("method") for one in wire(log)]
        assert methods[-2:] == ["notifications/cancelled", "agents/destroy"]


async def test_a_server_that_cannot_make_an_agent_fails_the_run_and_says_why(store: Path) -> None:
    """As acp-sdk 0.0.6, which lists templates and fails to make an agent of any."""
    unmade = {"capabilities": ABLE, "templates": [{**TEMPLATE, "name": "cannot"}], "cannot": "no such thing"}
    async with mounted(store, unmade) as (eng, _):
        failed = await run(eng, "cannot", script(DONE), {"tone": "dry"})
        assert failed.error is not None
        assert failed.error.message == "no such thing"


async def test_who_does_not_declare_templates_is_not_asked_for_them(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "wire"
    async with mounted(store, {"strict": True, "log": str(log)}) as (eng, _):
        assert (await run(eng, "script", script(DONE))).output == {"text": "done"}
        assert "agents/templates/list" not in [one.get("method") for one in wire(log)]


async def test_a_server_that_has_only_templates_is_mounted(store: Path) -> None:
    async with mounted(store, {"capabilities": ABLE, "templates": [TEMPLATE], "agents": []}) as (eng, _):
        assert [agent.card.name for agent in eng.agents] == ["styled"]
        assert (await run(eng, "styled", script(DONE), {"tone": "dry"})).output == {"text": "done"}


async def test_templates_appear_at_our_door(store: Path) -> None:
    made = mount({"capabilities": ABLE, "templates": [TEMPLATE]})
    async with in_process(store, *await local_agents(made, None)) as (client, _):
        await client.initialize()
        [template] = (await client.ask("agents/templates/list"))["agentTemplates"]
        assert (template["name"], template["configSchema"]) == ("styled", TONE)
        request = {"templateName": "styled", "config": {"tone": "dry"}}
        name = (await client.ask("agents/create", request))["agent"]["name"]
        assert await client.run(name, script(DONE)) == {"text": "done"}
    await made.close()


async def test_an_agent_of_our_own_server_gets_its_config(store: Path, tmp_path: Path) -> None:
    async with serving(tmp_path / "there.db", [styled, echo], ServeSettings(port=0, engine=SETTINGS)) as server:
        async with mounted(store, f"{server.address}/mcp") as (eng, _):
            assert [agent.card.name for agent in eng.agents] == ["styled", "echo"]
            assert (await run(eng, "styled", {"text": "hi"})).output == {"text": "hi in a dry tone"}
            warm = await run(eng, "styled", {"text": "hi"}, {"tone": "warm"})
            assert warm.output == {"text": "hi in a warm tone"}, warm.error
        assert await server.engine.core.store.instances.list(caller=None, limit=10, offset=0) == []


async def test_a_run_with_a_config_is_found_again_after_a_crash_here(store: Path, tmp_path: Path) -> None:
    opened = asyncio.Event()

    @il.agent
    async def patient(text: str, ctx: il.Context[None, dict[str, Any]]) -> AsyncIterator[str]:
        yield f"{ctx.config['tone']} "
        await opened.wait()
        yield text

    async with serving(tmp_path / "there.db", [patient], ServeSettings(port=0, engine=SETTINGS)) as server:
        made = mount(f"{server.address}/mcp")
        eng = engine(store, *await local_agents(made, None), settings=SETTINGS)
        await eng.__aenter__()
        begun = await submit(eng, "patient", {"text": "hi"}, config={"tone": "warm"})
        await seen(eng, begun.id, "delta")
        await crash(eng)
        async with mounted(store, f"{server.address}/mcp") as (again, _):
            opened.set()
            ended = await again.runs.wait(begun.id, timeout=20)
            assert ended.output == {"text": "warm hi"}, ended.error
        await made.close()
        assert len(await server.engine.runs.search(RunFilter())) == 1
