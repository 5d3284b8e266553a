"""Our agents as the published client of agents over MCP sees them: PyPI `acp-sdk` 0.0.6, over stdio and over HTTP+SSE.

The SDK runs in its own virtualenv and process; see `mcp_acp_client.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlingua.protocols.mcp.translate import QUESTION_OPEN
from interlingua.transports.jsonrpc.core import CANCELLED, INTERNAL_ERROR, INVALID_PARAMS
from tests.kit.clients.mcp import DELTA, RUN
from tests.kit.clients.rpc import INTERLINGUA

from .mcp_peers import HERE, NAMES, Connect, driven, serve, stdio_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDK

CHANGED = ("notifications/agents/list_changed", "notifications/tools/list_changed")


@pytest.fixture(params=["stdio", "sse"])
def connect(request: pytest.FixtureRequest, mcp_acp_sdk: Path, tmp_path: Path) -> Iterator[Connect]:
    """The SDK's client, connected to our agents in the way that the test is for."""
    driver = [str(mcp_acp_sdk), str(HERE / "mcp_acp_client.py"), request.param]
    with contextlib.ExitStack() as stack:
        where = stdio_command(tmp_path)
        if request.param == "sse":
            where = [stack.enter_context(serve(tmp_path)) + "/mcp/sse"]
        yield lambda: driven([*driver, *where], tmp_path)


async def test_the_handshake_is_in_the_only_revision_that_it_knows(connect: Connect) -> None:
    async with connect() as client:
        told = await client.initialize()
        assert told["protocolVersion"] == "2024-11-05"
        assert told["capabilities"]["agents"] == {"templates": True, "listChanged": True}
        assert await client.ask("ping") == {}


async def test_agents_are_listed_with_their_schemas(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        listed = {agent["name"]: agent for agent in (await client.ask("agents/list"))["agents"]}
        assert list(listed) == NAMES
        echo = listed["echo"]
        assert echo["description"] == "Repeats what it hears, word by word."
        assert echo["inputSchema"]["properties"] == {"text": {"type": "string"}}
        assert echo["outputSchema"]["properties"] == {"text": {"type": "string"}}
        assert listed["org.acme.styled"]["version"] == "2.0.0"  # what the SDK does not know stays beside the name


@pytest.mark.parametrize("token", ["abc123", 7, 0])
async def test_deltas_join_to_the_output(connect: Connect, token: Any) -> None:
    async with connect() as client:
        await client.initialize()
        output = await client.run("adder", {"numbers": [1, 2, 3]}, token=token)
        assert output == client.joined(token) == {"total": 6, "seen": [1, 2, 3], "note": "done"}
        assert {type(notice["params"]["progressToken"]) for notice in client.notices(DELTA)} == {type(token)}


async def test_many_deltas_come_in_order_and_before_the_result(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        words = " ".join(str(number) for number in range(1000))
        answer = await client.answer(await client.start_run("echo", {"text": words}, token="t"))
        assert answer["result"]["output"] == client.joined("t") == {"text": words + " "}
        assert max(client.place(notice) for notice in client.notices(DELTA)) < client.place(answer)


async def test_a_run_by_its_own_method_asks_for_no_progress(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        result = await client.whole_run("echo", {"text": "a b"})
        assert result["output"] == {"text": "a b "}
        assert result["_meta"][RUN]
        assert not client.notices(DELTA)


async def test_runs_at_once_do_not_mix(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        stays = await client.begun("endless", {"text": "stays"}, "stays")
        outputs = await asyncio.gather(
            *(client.run("echo", {"text": f"{number} {number}"}, token=str(number)) for number in range(20))
        )
        for number, output in enumerate(outputs):
            assert output == client.joined(str(number)) == {"text": f"{number} {number} "}
        await client.cancel(stays)


async def test_a_cancelled_run_stops_and_the_client_that_waits_is_told(connect: Connect) -> None:
    """The SDK goes on waiting after it has cancelled, without an end."""
    async with connect() as client:
        await client.initialize()
        error = await client.cancel(await client.begun("endless", {"text": "knitting"}, "t"))
        assert error["code"] == CANCELLED
        assert await client.run("witness", {}) == {"text": "knitting"}
        assert client.joined("t") == {"text": "begun "}


async def test_a_client_that_cancels_and_does_not_wait_is_not_disturbed(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        run = await client.begun("endless", {"text": "sewing"}, "t")
        assert (await client.cancel(run, leave=True))["message"] == "left"
        assert await client.run("witness", {}) == {"text": "sewing"}
        assert await client.run("echo", {"text": "on"}, token="u") == {"text": "on "}


async def test_the_error_of_a_run_and_wrong_requests_are_errors_and_the_session_goes_on(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        broken = await client.failed_run("breaks", {"text": "saw"}, token="t")
        assert (broken["code"], broken["message"]) == (INTERNAL_ERROR, "the saw is broken")
        assert (broken["data"]["code"], broken["data"]["details"]) == ("broken", {"tool": "saw"})
        assert client.joined("t") == {"text": "so far "}
        unknown = await client.failed_run("nobody", {})
        assert unknown["code"] == INVALID_PARAMS
        assert "'nobody'" in unknown["message"]
        assert (await client.failed_run("echo", {"text": 3}))["code"] == INVALID_PARAMS
        assert await client.run("echo", {"text": "still here"}) == {"text": "still here "}


async def test_an_agent_is_created_from_a_template_run_and_destroyed(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        [template] = (await client.ask("agents/templates/list"))["agentTemplates"]
        assert template["name"] == "org.acme.styled"
        assert template["configSchema"]["properties"]["tone"]["default"] == "dry"
        request = {"templateName": template["name"], "config": {"tone": "warm"}}
        name = (await client.ask("agents/create", request))["agent"]["name"]
        for method in CHANGED:
            await client.notice(method)
        assert await client.agents() == [*NAMES, name]
        assert await client.run(name, {"text": "hello"}) == {"text": "hello in a warm tone"}
        assert await client.run(template["name"], {"text": "hello"}) == {"text": "hello in a dry tone"}
        place = len(client.messages)
        assert await client.ask("agents/destroy", {"name": name}) == {}
        for method in CHANGED:
            await client.notice(method, after=place)
        assert await client.agents() == NAMES
        assert (await client.failed_run(name, {"text": "hello"}))["code"] == INVALID_PARAMS
        wrong = await client.call("agents/create", {"templateName": template["name"], "config": {"tone": 3}})
        assert wrong["error"]["code"] == INVALID_PARAMS


async def test_agents_are_tools_of_the_oldest_revision(connect: Connect) -> None:
    async with connect() as client:
        await client.initialize()
        tools = (await client.ask("tools/list"))["tools"]
        assert [tool["name"] for tool in tools] == [*NAMES[:-1], "org_acme_styled"]
        assert not any("outputSchema" in tool for tool in tools)
        told = await client.tool("echo", {"text": "a b"})
        assert told["content"] == [{"type": "text", "text": "a b "}]
        failed = await client.tool("breaks", {"text": "saw"})
        assert failed["isError"] is True
        assert "the saw is broken" in failed["content"][0]["text"]


async def test_a_question_that_it_cannot_be_asked_is_answered_elsewhere_and_the_run_joined_again(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect() as client:
        await client.initialize()
        waits = await client.failed_run("careful", {"text": "it"}, token="t")
        assert waits["code"] == QUESTION_OPEN
        question, run = waits["data"]["question"], waits["data"]["run"]
        assert question["prompt"] == "Do it?"
        command = [INTERLINGUA, "questions", "answer", question["id"], "y", "--json", "--store"]
        answering = await asyncio.create_subprocess_exec(
            *command, str(tmp_path / "store.db"), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(answering.communicate(), 60)
        assert answering.returncode == 0, out
        assert json.loads(out)
        assert await client.run("careful", {"text": "it"}, token="u", **{RUN: run}) == {"text": "asking. done"}
        assert client.joined("u") == {"text": "asking. done"}
