"""Agents on the low-level server of PyPI `mcp` 2.3 as agents of ours: over stdio, Streamable HTTP with a handshake and
without (`http-modern` refuses it), and HTTP+SSE. See `mcp_sdk_server.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlingua as il
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from tests.kit.clients.mcp import LATEST, MODERN
from tests.kit.engines import question
from tests.kit.mounts.watch import seen

from .mcp_peers import HERE, driven, interlingua_run, mounted, stdio_command, target_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDK

NAMES = ["echo", "adder", "endless", "counter", "witness", "breaks", "careful", "retire"]


@pytest.fixture(params=["stdio", "http", "http-modern", "sse"])
def way(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def target(way: str, mcp_sdk: Path, tmp_path: Path) -> Iterator[str]:
    with target_of([str(mcp_sdk), str(HERE / "mcp_sdk_server.py")], way, tmp_path) as found:
        yield found


async def test_its_agents_are_found_in_the_revision_that_it_speaks(store: Path, target: str, way: str) -> None:
    async with mounted(store, target) as server:
        assert [agent.card.name for agent in server.engine.agents] == NAMES
        peer = await server.mount.keeper.connection()
        assert (peer.version, peer.info["name"]) == (MODERN if way == "http-modern" else LATEST, "mcp-agents")
        assert peer.declares_agents
        card = await server.engine.agents.card("echo")
        assert card.metadata["mcp"] == {"license": "none"}


async def test_its_deltas_join_to_its_output(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.run("adder", numbers=[1, 2, 3])
        assert run.output == await server.joined(run.id) == {"total": 6, "seen": [1, 2, 3]}, run.error
        words = " ".join(str(number) for number in range(1000))
        run = await server.run("echo", text=words)
        assert run.output == await server.joined(run.id) == {"text": words + " "}
        assert await server.warnings(run.id) == []


async def test_its_run_is_cancelled(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.begin("endless", text="knitting")
        await seen(server.engine, run, "delta")
        await server.engine.runs.cancel(run)
        assert (await server.end(run)).status is il.Status.CANCELLED
        assert (await server.run("witness", text="?")).output == {"text": "knitting"}
        assert server.mount.keeper.starts == 1


async def test_its_error_is_the_error_of_the_run(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.run("breaks", text="saw")
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.message == "the saw is broken"
        assert run.error.details == {"code": -32050, "data": {"tool": "saw"}}
        assert await server.joined(run.id) == {"text": "so far "}
        assert (await server.run("echo", text="on")).output == {"text": "on "}


@pytest.mark.parametrize(("sure", "said"), [(True, "done"), (False, "left alone")])
async def test_its_elicitation_is_a_question(store: Path, target: str, sure: bool, said: str) -> None:
    async with mounted(store, target) as server:
        run = await server.begin("careful", text="it")
        asked = await question(server.engine, run)
        assert (asked.type, asked.prompt) == ("elicitation", "Do it?")
        await server.engine.questions.answer(asked.id, {"sure": sure})
        assert (await server.end(run)).output == {"text": said}


async def test_many_runs_at_once_do_not_mix(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        runs = await asyncio.gather(*(server.run("echo", text=f"{number} {number}") for number in range(20)))
        for number, run in enumerate(runs):
            assert run.output == await server.joined(run.id) == {"text": f"{number} {number} "}, run.error
        assert server.mount.keeper.starts == 1


async def test_an_agent_that_it_took_away_is_missed(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        assert (await server.run("retire", text="adder")).output == {"text": "gone"}
        run = await server.run("adder", numbers=[1])
        assert run.error is not None
        assert run.error.code == "agent_not_found"
        assert (await server.run("echo", text="on")).output == {"text": "on "}


async def test_targets_of_the_command_line_are_loaded(target: str) -> None:
    assert [agent.card.name for agent in await load_all(parse(target))] == NAMES


async def test_interlingua_run_shows_its_output_and_its_error(target: str, tmp_path: Path) -> None:
    assert (await interlingua_run(f"{target}#echo", "hello there", tmp_path))[:2] == (0, "hello there \n")
    code, out, err = await interlingua_run(f"{target}#breaks", "saw", tmp_path)
    assert (code, out.startswith("so far")) == (1, True)
    assert "the saw is broken" in err


async def test_interlingua_run_is_interrupted_and_so_is_its_run(target: str, tmp_path: Path) -> None:
    code, out, err = await interlingua_run(f"{target}#endless", "knitting", tmp_path, interrupt_at="begun")
    assert (code, out.strip()) == (130, "begun"), err
    if target.startswith("mcp+"):  # a process of its own has ended with it
        assert (await interlingua_run(f"{target}#witness", "?", tmp_path))[:2] == (0, "knitting\n")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_its_own_client_reaches_it_through_our_door_and_our_mount(
    target: str, mode: str, mcp_sdk: Path, tmp_path: Path
) -> None:
    driver = [str(mcp_sdk), str(HERE / "mcp_sdk_client.py"), mode, "stdio"]
    async with driven([*driver, *stdio_command(tmp_path, target)], tmp_path, quiet=False) as client:
        assert await client.agents() == NAMES
        output = await client.run("adder", {"numbers": [4, 5]}, token="t")
        assert output == {"total": 9, "seen": [4, 5]}
        await client.joins_to("t", output)
        told = await client.tool("echo", {"text": "a b"})
        assert told["structuredContent"] == {"text": "a b "}
        yes = {"action": "accept", "content": {"choice": "yes"}}  # on the way, a box to tick becomes a choice
        client.on("elicitation/create", lambda _: yes)
        assert (await client.tool("careful", {"text": "it"}))["structuredContent"] == {"text": "done"}
        await client.cancel(await client.begun("endless", {"text": "far away"}, "u"))
        assert await client.run("witness", {"text": "?"}) == {"text": "far away"}
