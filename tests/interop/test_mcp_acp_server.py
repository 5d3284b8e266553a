"""Agents that are written with PyPI `acp-sdk` 0.0.6 as agents of ours: started by `mcp:COMMAND`, and at the address of
the SDK's own server. See `mcp_acp_server.py`.

That server ends at a request that it does not know or cannot read: where a mount goes on, nothing was tried out on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.errors import InvalidInput
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from tests.kit.engines import finish
from tests.kit.mounts.watch import seen

from .mcp_peers import HERE, driven, interlingua_run, mounted, stdio_command, target_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDK

NAMES = ["echo", "adder", "lastword", "endless", "witness", "breaks", "retire", "styled"]


@pytest.fixture(params=["stdio", "sse"])
def target(request: pytest.FixtureRequest, mcp_acp_sdk: Path, tmp_path: Path) -> Iterator[str]:
    with target_of([str(mcp_acp_sdk), str(HERE / "mcp_acp_server.py")], request.param, tmp_path) as found:
        yield found


async def test_its_cards_tell_what_they_are(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        cards = [agent.card for agent in server.engine.agents]
        assert [card.name for card in cards] == NAMES
        assert cards[0].description == "Repeats what it hears, word by word."
        assert (cards[0].input_text, cards[0].output_text) == ("text", "text")
        assert cards[0].metadata["mcp"] == {"framework": "none", "tags": ["demo"]}
        assert set(cards[1].output["properties"]) == {"total", "seen"}


async def test_its_templates_are_agents_that_take_a_config(store: Path, target: str) -> None:
    """It lists them, and fails to make an agent of any: it checks the config against the template's own class."""
    async with mounted(store, target) as server:
        card = next(agent.card for agent in server.engine.agents if agent.card.name == "styled")
        assert card.description == "Speaks in a tone."
        assert card.config is not None
        assert set(card.config["properties"]) == {"tone"}
        assert card.metadata["mcp"] == {"tags": ["demo"]}
        run = await finish(server.engine, "styled", {"text": "hi"}, config={"tone": "dry"})
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert "AgentTemplate" in run.error.message
        assert (await server.run("adder", numbers=[1])).output == {"total": 1, "seen": [1]}
        assert server.mount.keeper.starts == 1


async def test_its_deltas_join_to_its_output(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.run("adder", numbers=[1, 2, 3])
        assert run.output == await server.joined(run.id) == {"total": 6, "seen": [1, 2, 3]}, run.error
        words = [str(number) for number in range(300)]
        run = await server.run("echo", text=" ".join(words))
        assert run.output is not None
        assert run.output["text"].split() == words
        assert [log["message"] for log in run.output["logs"]] == words
        assert await server.joined(run.id) == run.output
        assert await server.warnings(run.id) == []


async def test_its_result_counts_where_the_deltas_lead_elsewhere(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.run("lastword", text="a b")
        assert run.output == {"text": "b"}
        assert await server.joined(run.id) == {"text": "ab"}
        [warning] = await server.warnings(run.id)
        assert "do not join to the result" in warning


async def test_its_run_is_cancelled(store: Path, target: str) -> None:
    """It answers what was cancelled, with an error; that is nothing to us."""
    async with mounted(store, target) as server:
        run = await server.begin("endless", text="knitting")
        await seen(server.engine, run, "delta")
        await server.engine.runs.cancel(run)
        assert (await server.end(run)).status is il.Status.CANCELLED
        assert (await server.run("witness", text="?")).output == {"text": "knitting"}
        assert (await server.run("adder", numbers=[1])).output == {"total": 1, "seen": [1]}
        assert server.mount.keeper.starts == 1


async def test_its_error_is_the_error_of_the_run(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.run("breaks", text="saw")
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.message == "Error running agent breaks: the saw is broken"
        assert run.error.details == {"code": 0}
        assert await server.joined(run.id) == {"text": "so far "}
        with pytest.raises(InvalidInput):
            await server.run("echo", text=3)  # it would end at this
        assert (await server.run("echo", text="on")).status is il.Status.SUCCEEDED
        assert server.mount.keeper.starts == 1


async def test_many_runs_at_once_do_not_mix(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        runs = await asyncio.gather(*(server.run("echo", text=f"{number} {number}") for number in range(20)))
        for number, run in enumerate(runs):
            assert run.output is not None, run.error
            assert run.output["text"] == f"{number} {number} "
            assert await server.joined(run.id) == run.output
        assert server.mount.keeper.starts == 1


async def test_an_agent_that_it_took_away_is_missed(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        assert (await server.run("retire", text="adder")).output == {"text": "gone"}
        run = await server.run("adder", numbers=[1])
        assert run.error is not None
        assert run.error.code == "agent_not_found"
        assert (await server.run("echo", text="on")).status is il.Status.SUCCEEDED
        assert server.mount.keeper.starts == 1


async def test_targets_of_the_command_line_are_loaded(target: str) -> None:
    assert [agent.card.name for agent in await load_all(parse(target))] == NAMES


async def test_interlingua_run_shows_its_output_and_its_error(target: str, tmp_path: Path) -> None:
    code, out, err = await interlingua_run(f"{target}#echo", "hello there", tmp_path)
    assert (code, out.splitlines()[0]) == (0, "hello there "), err
    code, out, err = await interlingua_run(f"{target}#breaks", "saw", tmp_path)
    assert code == 1
    assert out.startswith("so far")
    assert "the saw is broken" in err


async def test_interlingua_run_is_interrupted_and_so_is_its_run(target: str, tmp_path: Path) -> None:
    code, out, err = await interlingua_run(f"{target}#endless", "knitting", tmp_path, interrupt_at="begun")
    assert (code, out.strip()) == (130, "begun"), err
    if target.startswith("mcp+"):  # a process of its own has ended with it
        assert (await interlingua_run(f"{target}#witness", "?", tmp_path))[:2] == (0, "knitting\n")


async def test_its_own_client_reaches_it_through_our_door_and_our_mount(
    target: str, mcp_acp_sdk: Path, tmp_path: Path
) -> None:
    driver = [str(mcp_acp_sdk), str(HERE / "mcp_acp_client.py"), "stdio"]
    async with driven([*driver, *stdio_command(tmp_path, target)], tmp_path, quiet=False) as client:
        await client.initialize()
        assert await client.agents() == NAMES
        output = await client.run("adder", {"numbers": [4, 5]}, token="t")
        assert output == client.joined("t") == {"total": 9, "seen": [4, 5]}
        assert "the saw is broken" in (await client.failed_run("breaks", {"text": "saw"}))["message"]
        await client.cancel(await client.begun("endless", {"text": "far away"}, "u"))
        assert await client.run("witness", {"text": "?"}) == {"text": "far away"}
