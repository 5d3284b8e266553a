"""Our agents as a client of MCP itself sees them: PyPI `mcp` 2.3, over stdio and Streamable HTTP, with a handshake
(`legacy`: revision 2025-11-25) and without (`auto` finds 2026-07-28); and over HTTP+SSE, which has only the handshake.

The SDK runs in its own virtualenv and process; see `mcp_sdk_client.py`. It knows tools, and agents it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlingua.protocols.mcp.translate import QUESTION_OPEN
from interlingua.protocols.mcp.wire import EXTENSION
from interlingua.transports.jsonrpc.core import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from tests.kit.clients.mcp import LATEST, MODERN, RUN, Message

from .mcp_peers import HERE, NAMES, Connect, Peer, driven, serve, stdio_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDK

PATHS = {"http": "/mcp", "sse": "/mcp/sse"}
TOOLS = [*NAMES[:-1], "org_acme_styled"]
YES = {"action": "accept", "content": {"choice": "yes"}}
NO = {"action": "accept", "content": {"choice": "no", "reason": "too dear"}}
HANDSHAKES = [("legacy", "stdio"), ("legacy", "http"), ("legacy", "sse")]
WITHOUT = [("auto", "stdio"), ("auto", "http")]


@pytest.fixture(params=[*HANDSHAKES, *WITHOUT], ids="-".join)
def how(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def modern(how: tuple[str, str]) -> bool:
    return how[0] != "legacy"


@pytest.fixture
def server() -> Iterator[contextlib.ExitStack]:
    """What serves our agents, until it is closed."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(how: tuple[str, str], server: contextlib.ExitStack, mcp_sdk: Path, tmp_path: Path) -> Connect:
    """The SDK's client, connected to our agents in the way that the test is for."""
    mode, way = how
    where = stdio_command(tmp_path) if way == "stdio" else [server.enter_context(serve(tmp_path)) + PATHS[way]]
    return lambda: driven([str(mcp_sdk), str(HERE / "mcp_sdk_client.py"), mode, way, *where], tmp_path)


async def elicited(client: Peer, modern: bool, name: str, input_: Message, answer: Message) -> Message:
    """The answer to a run that asks once: in a request of ours, or in a result that makes the client ask again."""
    params = {"name": name, "input": input_}
    if not modern:
        client.on("elicitation/create", lambda _: answer)
        return await client.call("agents/run", params)
    wanted = await client.ask("agents/run", params)
    assert wanted["resultType"] == "input_required"
    [(key, request)] = wanted["inputRequests"].items()
    assert request["method"] == "elicitation/create"
    given = {"requestState": wanted["requestState"], "inputResponses": {key: answer}}
    return await client.call("agents/run", {**params, **given})


# -- agents ---------------------------------------------------------------------------------------------------


async def test_the_revision_is_agreed_on_and_agents_are_declared_where_it_looks(connect: Connect, modern: bool) -> None:
    async with connect() as client:
        told = await client.ask("initialize")
        assert told["protocolVersion"] == (MODERN if modern else LATEST)
        agents = {"listChanged": True, "templates": True}
        assert told["capabilities"]["experimental"]["agents"] == agents
        assert told["capabilities"]["extensions"][EXTENSION] == agents
        assert told["capabilities"]["tools"] == {"listChanged": True}


async def test_agents_are_listed_and_run_with_deltas_that_join_to_the_output(connect: Connect) -> None:
    async with connect() as client:
        assert await client.agents() == NAMES
        output = await client.run("adder", {"numbers": [1, 2, 3]}, token="t")
        assert output == {"total": 6, "seen": [1, 2, 3], "note": "done"}
        await client.joins_to("t", output)
        outputs = await asyncio.gather(
            *(client.run("echo", {"text": f"{number} {number}"}, token=str(number)) for number in range(10))
        )
        for number, output in enumerate(outputs):
            assert output == {"text": f"{number} {number} "}
            await client.joins_to(str(number), output)


async def test_a_run_that_the_client_leaves_is_cancelled(connect: Connect) -> None:
    async with connect() as client:
        run = await client.begun("endless", {"text": "knitting"}, "t")
        assert (await client.cancel(run))["message"] == "left"
        assert await client.run("witness", {}) == {"text": "knitting"}


async def test_errors_of_runs_and_of_requests_are_errors(connect: Connect) -> None:
    async with connect() as client:
        broken = await client.failed_run("breaks", {"text": "saw"}, token="t")
        assert (broken["code"], broken["message"]) == (INTERNAL_ERROR, "the saw is broken")
        assert (broken["data"]["code"], broken["data"]["transient"]) == ("broken", True)
        assert (await client.failed_run("nobody", {}))["code"] == INVALID_PARAMS
        assert (await client.failed_run("echo", {"text": 3}))["code"] == INVALID_PARAMS
        assert (await client.call("agents/frobnicate", {}))["error"]["code"] == METHOD_NOT_FOUND
        assert await client.run("echo", {"text": "on"}) == {"text": "on "}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (YES, "asking. done"),
        (NO, "asking. left alone: too dear"),
        ({"action": "decline"}, "asking. left alone"),
    ],
)
async def test_a_run_asks_by_elicitation(connect: Connect, modern: bool, answer: Message, said: str) -> None:
    async with connect() as client:
        told = await elicited(client, modern, "careful", {"text": "it"}, answer)
        assert told["result"]["output"] == {"text": said}


async def test_what_is_more_than_a_flat_form_is_given_as_json(connect: Connect, modern: bool) -> None:
    async with connect() as client:
        answer = {"action": "accept", "content": {"answer": '[["a", "b"], []]'}}
        told = await elicited(client, modern, "deep", {"text": "it"}, answer)
        assert told["result"]["output"] == {"text": "[['a', 'b'], []]"}


async def test_a_run_whose_question_is_dismissed_keeps_waiting(connect: Connect, modern: bool) -> None:
    async with connect() as client:
        told = await elicited(client, modern, "careful", {"text": "it"}, {"action": "cancel"})
        assert told["error"]["code"] == QUESTION_OPEN
        run = told["error"]["data"]["run"]
        if modern:
            again = await client.whole_run("careful", {"text": "it"}, **{RUN: run})
            assert list(again["inputRequests"]) == [told["error"]["data"]["question"]["id"]]
        else:
            client.on("elicitation/create", lambda _: YES)
            assert await client.run("careful", {"text": "it"}, **{RUN: run}) == {"text": "asking. done"}


# -- tools ----------------------------------------------------------------------------------------------------


async def test_agents_are_tools_with_structured_output(connect: Connect) -> None:
    async with connect() as client:
        tools = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
        assert list(tools) == TOOLS
        assert set(tools["adder"]["outputSchema"]["properties"]) == {"total", "seen", "note"}
        told = await client.tool("adder", {"numbers": [1, 2]})  # the SDK checks it against the schema
        assert told["structuredContent"] == {"total": 3, "seen": [1, 2], "note": "done"}
        assert told["isError"] is False
        assert (await client.tool("org_acme_styled", {"text": "hi"}))["structuredContent"]["text"] == "hi in a dry tone"


async def test_progress_of_a_tool_has_the_text_so_far(connect: Connect) -> None:
    async with connect() as client:
        words = " ".join(str(number) for number in range(200))
        told = await client.tool("echo", {"text": words}, token="wanted")
        assert told["content"] == [{"type": "text", "text": words + " "}]

        def complete(message: Message) -> bool:
            return message.get("method") == "driver/progress" and message["params"]["message"] == words + " "

        await client.wait_for(complete)
        texts = [notice["params"]["message"] for notice in client.notices("driver/progress")]
        assert all((words + " ").startswith(text) for text in texts)
        assert [notice["params"]["progress"] for notice in client.notices("driver/progress")] == [
            number + 1 for number in range(len(texts))
        ]


async def test_a_tool_call_that_the_client_leaves_is_cancelled(connect: Connect) -> None:
    async with connect() as client:
        call = await client.start_tool("endless", {"text": "sewing"}, token="wanted")
        await client.notice("driver/progress")
        assert (await client.cancel(call))["message"] == "left"
        assert (await client.tool("witness"))["structuredContent"] == {"text": "sewing"}


async def test_a_tool_that_fails_says_so_to_the_model_and_a_wrong_call_to_the_client(connect: Connect) -> None:
    async with connect() as client:
        broken = await client.tool("breaks", {"text": "saw"})
        assert broken["isError"] is True
        assert "the saw is broken" in broken["content"][0]["text"]
        wrong = await client.tool("echo", {"text": 3})
        assert wrong["isError"] is True
        unknown = await client.call("tools/call", {"name": "nothing", "arguments": {}})
        assert unknown["error"]["code"] == INVALID_PARAMS


async def test_a_tool_asks_by_elicitation_and_the_sdk_does_the_rest(connect: Connect) -> None:
    async with connect() as client:
        asked: list[Message] = []

        def answer(params: Message) -> Message:
            asked.append(params)
            form = "street" in params["requestedSchema"]["properties"]
            return {"action": "accept", "content": {"street": "Via Roma", "number": 7}} if form else YES

        client.on("elicitation/create", answer)
        assert (await client.tool("careful", {"text": "it"}))["structuredContent"] == {"text": "asking. done"}
        told = await client.tool("shipper", {"text": "it"})
        assert told["structuredContent"] == {"text": "it to Via Roma 7"}
        assert [params["message"] for params in asked] == ["Do it?", "Where shall it go?"]


# -- lists that change ----------------------------------------------------------------------------------------


async def created(client: Peer) -> str:
    request = {"templateName": "org.acme.styled", "config": {"tone": "warm"}}
    name: str = (await client.ask("agents/create", request))["agent"]["name"]
    return name


@pytest.mark.parametrize("how", HANDSHAKES, indirect=True, ids="-".join)
async def test_a_session_is_told_that_lists_have_changed(connect: Connect) -> None:
    async with connect() as client:
        name = await created(client)
        await client.notice("notifications/agents/list_changed")
        await client.notice("notifications/tools/list_changed")
        assert await client.agents() == [*NAMES, name]
        assert len(await client.tools()) == len(TOOLS) + 1


@pytest.mark.parametrize("how", WITHOUT, indirect=True, ids="-".join)
async def test_who_listens_is_told_that_lists_have_changed(connect: Connect) -> None:
    """The SDK asks for tools and prompts; there are no prompts here, and it is told so."""
    async with connect() as client:
        assert await client.tools() == TOOLS
        listening = await client.send("driver/listen")
        assert (await client.notice("driver/listens"))["params"] == {"toolsListChanged": True}
        name = await created(client)
        assert (await client.notice("driver/event"))["params"] == {"event": "ToolsListChanged"}
        assert len(await client.tools()) == len(TOOLS) + 1
        place = len(client.messages)
        await client.ask("agents/destroy", {"name": name})
        await client.notice("driver/event", after=place)
        assert (await client.cancel(listening))["message"] == "left"
        assert await client.tools() == TOOLS


@pytest.mark.parametrize("how", [("auto", "http")], indirect=True, ids="-".join)
async def test_who_listens_is_told_that_the_server_stops(connect: Connect, server: contextlib.ExitStack) -> None:
    async with connect() as client:
        listening = await client.send("driver/listen")
        await client.notice("driver/listens")
        await asyncio.to_thread(server.close)
        assert (await client.answer(listening))["result"] == {"ended": "gracefully"}


@pytest.mark.parametrize("how", [("legacy", "stdio")], indirect=True, ids="-".join)
async def test_what_belongs_to_the_other_revision_does_not_exist_in_a_session(connect: Connect) -> None:
    async with connect() as client:
        for method in ("subscriptions/listen", "server/discover"):
            assert (await client.call(method, {"notifications": {}}))["error"]["code"] == METHOD_NOT_FOUND
        assert await client.agents() == NAMES
