"""The protocol document's own examples, message by message, and its sentences that no other test is about."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.delta import DeltaError, combine
from tests.kit.clients.mcp import COMMAND, DELTA, Client, adder, breaks, echo, in_process, join, stdio
from tests.kit.clients.rpc import PATIENCE

DOCS = Path(__file__).parents[3] / "docs" / "mcp.md"

GPA = """
import interlingua as il

@il.agent(description="General purpose agent")
async def gpa(text: str, **others: object):
    assert text == "Howdy!"
    for piece in ("Howd", "y back", " at ya!"):
        yield piece
"""

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@il.agent(description="General purpose agent")
async def gpa(text: str, **others: object) -> AsyncIterator[str]:
    for piece in ("Howd", "y back", " at ya!"):
        yield piece


async def exchange(client: Client, message: dict[str, Any]) -> dict[str, Any]:
    """A message exactly as it stands, and its answer."""
    await client.line(message)
    return await client.answer(message["id"], timeout=PATIENCE)


async def test_the_capability_is_declared_where_the_example_has_it(store: Path) -> None:
    async with in_process(store, gpa) as (client, _):
        request = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await exchange(client, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": request})
        assert isinstance(answer["result"]["capabilities"]["agents"], dict)


async def test_the_example_of_listing(store: Path) -> None:
    async with in_process(store, gpa) as (client, _):
        await client.initialize("2024-11-05")
        answer = await exchange(client, {"jsonrpc": "2.0", "id": 1, "method": "agents/list", "params": {}})
        del answer["result"]["agents"][0]["_meta"]  # where extensions belong
        assert answer == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {
                "agents": [
                    {
                        "name": "gpa",
                        "description": "General purpose agent",
                        "inputSchema": TEXT,
                        "outputSchema": TEXT,
                    }
                ]
            },
        }


async def test_the_example_of_running(store: Path) -> None:
    async with in_process(store, gpa) as (client, _):
        await client.initialize("2024-11-05")
        params = {"name": "gpa", "input": {"text": "Howdy!"}}
        answer = await exchange(client, {"jsonrpc": "2.0", "id": 2, "method": "agents/run", "params": params})
        assert set(answer["result"].pop("_meta")) == {"interlingua/run"}  # MCP has a place for more in every result
        assert answer == {"jsonrpc": "2.0", "id": 2, "result": {"output": {"text": "Howdy back at ya!"}}}


async def test_the_example_of_progress(store: Path) -> None:
    @il.agent(name="gpa", version="0.2.0")
    async def stops(text: str, ctx: il.Context[None, None]):
        yield "Howd"
        await ctx.sleep(3600)

    async with in_process(store, stops) as (client, _):
        await client.initialize("2024-11-05")
        params = {"name": "gpa", "input": {"text": "Howdy!"}, "_meta": {"progressToken": "abc123"}}
        await client.line({"jsonrpc": "2.0", "id": 3, "method": "agents/run", "params": params})
        assert await client.notice(DELTA) == {
            "jsonrpc": "2.0",
            "method": "notifications/agents/run/progress",
            "params": {"progressToken": "abc123", "delta": {"text": "Howd"}},
        }
        await client.notify("notifications/cancelled", {"requestId": 3})


async def test_the_examples_one_after_the_other_over_stdio(tmp_path: Path) -> None:
    async with stdio(tmp_path, GPA) as client:
        await client.initialize("2024-11-05")
        listed = await exchange(client, {"jsonrpc": "2.0", "id": 1, "method": "agents/list", "params": {}})
        assert [agent["name"] for agent in listed["result"]["agents"]] == ["gpa"]
        params = {"name": "gpa", "input": {"text": "Howdy!"}, "_meta": {"progressToken": "abc123"}}
        answer = await exchange(client, {"jsonrpc": "2.0", "id": 2, "method": "agents/run", "params": params})
        assert answer["result"]["output"] == {"text": "Howdy back at ya!"}
        assert client.joined("abc123") == answer["result"]["output"]


async def test_a_client_finds_an_agent_and_runs_it_by_the_name_that_was_listed(store: Path) -> None:
    async with in_process(store, echo, gpa) as (client, _):
        await client.initialize()
        outputs = [
            await client.run(agent["name"], {"text": "Howdy!"}) for agent in (await client.ask("agents/list"))["agents"]
        ]
        assert outputs == [{"text": "Howdy! "}, {"text": "Howdy back at ya!"}]


async def test_agents_of_any_object_schemas_are_listed_and_run(store: Path) -> None:
    @il.agent
    async def counts(words: dict[str, int], strict: bool = False) -> dict[str, Any]:
        return {"sum": sum(words.values()), "nested": {"words": list(words)}}

    @il.agent
    async def nothing() -> None:
        return None

    async with in_process(store, counts, adder, nothing) as (client, _):
        await client.initialize()
        listed = {agent["name"]: agent for agent in (await client.ask("agents/list"))["agents"]}
        assert listed["counts"]["inputSchema"]["required"] == ["words"]
        told = await client.run("counts", {"words": {"a": 1, "b": 2}}, token="c")
        assert told == {"sum": 3, "nested": {"words": ["a", "b"]}} == client.joined("c")
        assert await client.run("nothing", {}, token="n") == {}
        assert (await client.run("adder", {"numbers": [4]}))["total"] == 4


async def test_a_server_may_send_no_progress_although_there_is_a_token(store: Path) -> None:
    @il.agent
    async def nothing(text: str) -> dict[str, Any]:
        return {}

    async with in_process(store, nothing) as (client, _):
        await client.initialize()
        assert await client.run("nothing", {"text": ""}, token="t") == {}
        assert not client.notices(DELTA)


async def test_progress_comes_while_the_run_lasts_and_stops_with_its_answer(store: Path) -> None:
    async with in_process(store, gpa, breaks) as (client, _):
        await client.initialize()
        for name in ("gpa", "breaks"):
            before = len(client.messages)
            answer = await client.answer(await client.start_run(name, {"text": "Howdy!"}, token=name))
            await client.ask("ping")
            places = [client.place(notice) for notice in client.notices(DELTA)]
            assert [place for place in places if place >= before]
            assert max(places) < client.place(answer)


async def test_a_token_outside_of_meta_is_no_token(store: Path) -> None:
    async with in_process(store, gpa) as (client, _):
        await client.initialize()
        params = {"name": "gpa", "input": {"text": "Howdy!"}, "progressToken": "t"}
        await client.ask("agents/run", params)
        await client.ask("ping")
        assert not client.notices(DELTA)


async def test_deltas_are_joined_by_the_algorithm_and_in_no_other_order(store: Path) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize()
        output = await client.run("adder", {"numbers": [3, 1, 2]}, token="t")
        deltas = client.deltas("t")
        assert join(deltas) == output
        with pytest.raises(DeltaError):
            combine(output, {"seen": "x"})


def test_the_page_says_that_this_protocol_is_pre_alpha_and_may_change() -> None:
    text = re.sub(r"\s+", " ", DOCS.read_text())
    assert "pre-alpha" in text
    assert "may change incompatibly" in text


def commands() -> list[list[str]]:
    """The command that each client is told to start, as the page writes it."""
    text = DOCS.read_text()
    found = [shlex.split(line) for line in re.findall(r"^\$ (interlingua stdio .*)$", text, re.MULTILINE)]
    found += [shlex.split(line) for line in re.findall(r"^\$ claude mcp add .* -- (.*)$", text, re.MULTILINE)]
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        told = json.loads(block)
        servers = told.get("mcpServers") or told.get("servers") or {}
        found += [[server["command"], *server["args"]] for server in servers.values()]
    return found


def test_the_settings_of_every_client_on_the_page_start_the_door() -> None:
    assert len(commands()) >= 4
    for command, *words in commands():
        assert Path(command).name == Path(COMMAND[0]).name
        assert words[:-1] == COMMAND[1:], "the words that the tests start it with"
        assert Path(words[-1]).name == "agents.py"
