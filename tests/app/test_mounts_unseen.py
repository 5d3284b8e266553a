"""Agents of a mount that was never up: those whose names its owner wrote are there, and answer that it is down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import AgentNotFound, Unavailable
from interlingua.server.app import Server
from interlingua.server.mounts.entry import load
from tests.kit.clients.mcp_http import clients

from .test_mounts import QUICK, SLOW, Far, get, hub, names, run, state, until

DOWN = "connect+http://127.0.0.1:9/connect"


@pytest.mark.parametrize(
    ("mount", "name"),
    [
        ({"target": DOWN, "as": "far"}, "far"),
        ({"target": f"{DOWN}#echo", "as": "far"}, "far"),
        ({"target": f"{DOWN}#echo"}, "echo"),
        ({"target": f"{DOWN}#echo@1.0", "prefix": "there-"}, "there-echo"),
        ({"target": DOWN, "only": ["echo"], "prefix": "there-"}, "there-echo"),
        ({"target": "mcp:no-such-command-abc", "as": "far"}, "far"),
    ],
)  # fmt: skip
async def test_an_agent_that_its_owner_has_named_answers_that_its_mount_is_down(
    tmp_path: Path, mount: dict[str, Any], name: str
) -> None:
    for _ in range(2):  # and after a restart
        async with hub(tmp_path, mount, mounting=SLOW) as server:
            assert names(server) == sorted([name, "local"])
            ended = await run(server, name)
            assert ended.error is not None
            assert (ended.error.code, ended.error.transient) == ("unavailable", True)
            assert "is down: " in ended.error.message
            (view,) = server.mounts.views()
            assert (view.state, view.agents) == ("down", [f"{name}@0.0.0"])
            told = (await by_connect(server, name)).json()["output"]
            assert (told["code"], told["transient"]) == ("unavailable", True)
            told = await by_mcp(server, name)
            assert (told["code"], told["transient"]) == ("unavailable", True)


async def by_connect(server: Server, name: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        asked = {"agent_id": name, "input": {"text": "hi"}}
        return await http.post(f"{server.address}/connect/runs/wait", json=asked)


async def by_mcp(server: Server, name: str) -> Any:
    """The error that a run ends with."""
    async with clients(server) as client:
        await client.begin()
        answer = await client.ask("agents/run", {"name": name, "input": {"text": "hi"}})
        whole = (await answer.rest())[-1] if answer.kind == "text/event-stream" else await answer.json()
        return whole["error"]["data"]


async def test_when_it_comes_up_the_agent_is_what_it_is_there(tmp_path: Path) -> None:
    far = Far(tmp_path)
    async with hub(tmp_path, {"target": f"{far.target}#echo", "as": "parrot"}, mounting=QUICK) as server:
        assert names(server) == ["local", "parrot"]
        with far.up():
            await until(server, lambda: state(server) == "up")
            assert [agent.card.key for agent in server.engine.agents] == ["local@0.1.0", "parrot@0.1.0"]
            assert (await run(server, "parrot")).output == {"text": "hi"}


async def test_a_run_that_comes_before_the_first_look_is_over_waits_and_is_done_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, looks = Far(tmp_path), asyncio.Event()

    async def held(*args: Any) -> Any:
        await looks.wait()
        return await load(*args)

    monkeypatch.setattr("interlingua.server.mounts.supervisor.load", held)
    mounting = msgspec.structs.replace(QUICK, wait=0)
    with far.up():
        async with hub(tmp_path, {"target": f"{far.target}#echo", "as": "parrot"}, mounting=mounting) as server:
            fits = await server.engine.runs.submit(il.RunRequest("parrot", input={"text": "hi"}))
            unfit = await server.engine.runs.submit(il.RunRequest("parrot", input={"words": 1}))
            looks.set()
            assert (await server.engine.runs.wait(fits.id, timeout=60)).output == {"text": "hi"}
            ended = await server.engine.runs.wait(unfit.id, timeout=60)
            assert ended.error is not None
            assert ended.error.code == "invalid_input"


async def test_a_name_that_begins_as_those_of_a_mount_that_was_never_up_is_not_called_unknown(tmp_path: Path) -> None:
    async with hub(tmp_path, {"target": DOWN, "prefix": "there-"}, mounting=SLOW) as server:
        assert names(server) == ["local"]
        with pytest.raises(Unavailable, match=r"the mount of there-\* is down; it is tried again in"):
            await server.engine.runs.submit(il.RunRequest("there-echo", input={}))
        with pytest.raises(AgentNotFound):
            await server.engine.runs.submit(il.RunRequest("their-echo", input={}))
        assert (await by_connect(server, "there-echo")).status_code == 503
        told = await by_mcp(server, "there-echo")
        assert (told["code"], told["transient"]) == ("unavailable", True)
        assert (await get(server, "/connect/agents/there-echo")).status_code == 503
        assert (await get(server, "/connect/agents/their-echo")).status_code == 404
