"""What the document asks of configuration: an endpoint of its own, and an identifier that later invocations use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interlingua as il

from .test_door import NOBODY, Style, echo, greeter, up

FRIENDLY = {"config": {"style": "friendly"}}


async def test_an_agent_is_configured_at_an_endpoint_and_the_configuration_is_kept(store: Path) -> None:
    async with up(store, greeter) as s:
        made = await s.post("/agents/greeter/configurations", {**FRIENDLY, "name": "warm", "metadata": {"team": "a"}})
        assert made["config"] == {"style": "friendly"}
        assert (made["name"], made["metadata"]) == ("warm", {"team": "a"})
        assert await s.get("/agents/greeter/configurations") == [made]
        (agent,) = await s.post("/agents/search", {"name": "greeter"})
        by_id = await s.post(f"/agents/{agent['agent_id']}/configurations", {"config": {"style": "formal"}})
        assert by_id["agent_id"] == made["agent_id"] == agent["agent_id"]
        await s.post(f"/agents/{NOBODY}/configurations", FRIENDLY, 404)


async def test_configuring_an_agent_runs_nothing_and_running_it_configures_nothing(store: Path) -> None:
    calls: list[str] = []

    @il.agent
    async def noted(ctx: il.Context[None, Style]) -> str:
        calls.append(ctx.config.style)
        return ctx.config.style

    async with up(store, noted) as s:
        made = await s.post("/agents/noted/configurations", FRIENDLY)
        assert "run_id" not in made
        assert calls == []
        assert await s.post("/runs/search", {}) == []
        with_config = {"agent_id": "noted", "config": {"configurable": {"style": "friendly"}}}
        await s.post("/runs/wait", with_config)
        assert calls == ["friendly"]
        assert await s.get("/agents/noted/configurations") == [made], "the run's own configuration was its alone"


async def test_configuring_an_agent_returns_an_identifier_of_that_instance_alone(store: Path) -> None:
    async with up(store, greeter) as s:
        warm = await s.post("/agents/greeter/configurations", FRIENDLY)
        cold = await s.post("/agents/greeter/configurations", {"config": {"style": "formal"}})
        again = await s.post("/agents/greeter/configurations", FRIENDLY)
        assert len({made["config_id"] for made in (warm, cold, again)}) == 3
        for made in (warm, cold, again):
            assert await s.get(f"/configurations/{made['config_id']}") == made
        said = {
            made["config_id"]: (await s.output(await s.run(made["config_id"], {"name": "Ada"})))["result"]["message"]
            for made in (warm, cold)
        }
        assert said == {warm["config_id"]: "Hi Ada!", cold["config_id"]: "Good day, Ada."}


async def test_the_identifier_of_an_instance_serves_many_invocations_of_every_kind(store: Path) -> None:
    async with up(store, greeter) as s:
        instance = (await s.post("/agents/greeter/configurations", FRIENDLY))["config_id"]
        thread = await s.thread()
        heard: list[Any] = []
        for name in ("Ada", "Bob"):
            body = {"agent_id": instance, "input": {"name": name}}
            for base in ("/runs", f"/threads/{thread}/runs"):
                heard.append((await s.output(await s.run(instance, {"name": name}, base), base))["result"])
                heard.append((await s.post(f"{base}/wait", body))["output"]["result"])
                heard.append((await s.streamed("POST", f"{base}/stream", body))[-1][1]["result"])
        assert heard == [{"message": "Hi Ada!"}] * 6 + [{"message": "Hi Bob!"}] * 6
    async with up(store, greeter) as s:
        assert (await s.output(await s.run(instance, {"name": "Eve"})))["result"] == {"message": "Hi Eve!"}


async def test_a_configuration_that_does_not_fit_makes_no_instance(store: Path) -> None:
    async with up(store, greeter, echo) as s:
        for wrong in ({"style": "rude"}, {"style": 3}, [], "", 0, False, "friendly"):
            assert isinstance(await s.post("/agents/greeter/configurations", {"config": wrong}, 422), str)
        assert await s.get("/agents/greeter/configurations") == []
        assert isinstance(await s.post("/agents/echo/configurations", FRIENDLY, 422), str), "it takes none"
