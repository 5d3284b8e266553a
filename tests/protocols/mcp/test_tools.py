"""Every agent as a tool, for clients that know nothing of agents."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.card import AgentCard
from interlingua.model.filters import RunFilter
from interlingua.protocols.mcp import translate
from interlingua.protocols.mcp.translate import QUESTION_OPEN, tool_names
from interlingua.transports.jsonrpc.core import INVALID_PARAMS
from tests.kit.clients.mcp import (
    DELTA,
    LATEST,
    LEGACY,
    PATIENCE,
    RUN,
    THREAD,
    Client,
    adder,
    breaks,
    careful,
    echo,
    in_process,
    remember,
    show,
    silent,
    slow,
    stdio,
    styled,
)
from tests.kit.engines import question

PROGRESS = "notifications/progress"


def messages(client: Client, token: Any) -> list[str]:
    """The text of every progress notification with a token."""
    return [n["params"]["message"] for n in client.notices(PROGRESS) if n["params"]["progressToken"] == token]


async def test_every_agent_is_a_tool(store: Path) -> None:
    async with in_process(store, echo, adder, styled) as (client, _):
        assert (await client.initialize())["capabilities"]["tools"] == {"listChanged": True}
        tools = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
        agents = {agent["name"]: agent for agent in (await client.ask("agents/list"))["agents"]}
        assert list(tools) == list(agents) == ["echo", "adder", "styled"]
        for name, tool in tools.items():
            for member in ("description", "inputSchema", "outputSchema"):
                assert tool[member] == agents[name][member]


async def test_tools_have_pages(store: Path) -> None:
    async with in_process(store, echo, adder, silent, page=2) as (client, _):
        await client.initialize()
        first = await client.ask("tools/list")
        second = await client.ask("tools/list", {"cursor": first["nextCursor"]})
        assert [tool["name"] for tool in first["tools"] + second["tools"]] == ["echo", "adder", "silent"]
        assert "nextCursor" not in second


@pytest.mark.parametrize("version", LEGACY)
async def test_structure_is_told_to_the_revisions_that_have_it(store: Path, version: str) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize(version)
        [tool] = (await client.ask("tools/list"))["tools"]
        result = await client.tool("adder", {"numbers": [1, 2]})
        output = {"total": 3, "seen": [1, 2], "note": "done"}
        structured = version >= "2025-06-18"
        assert ("outputSchema" in tool) == ("title" in tool) == ("structuredContent" in result) == structured
        assert result.get("structuredContent", output) == output
        assert result["isError"] is False
        [content] = result["content"]
        assert (content["type"], json.loads(content["text"])) == ("text", output)


async def test_an_output_that_is_only_text_is_plain_text(store: Path) -> None:
    async with in_process(store, silent) as (client, engine):
        await client.initialize()
        result = await client.tool("silent", {"text": "hi"})
        assert result["content"] == [{"type": "text", "text": "HI"}]
        assert result["structuredContent"] == {"text": "HI"}
        assert (await engine.runs.get(result["_meta"][RUN])).output == {"text": "HI"}


@pytest.mark.parametrize("token", ["t", 0, ""], ids=repr)
async def test_progress_tells_the_text_so_far_and_grows(store: Path, token: Any) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        text = " ".join(f"word{n}" for n in range(500))
        answer = await client.answer(await client.start_tool("echo", {"text": text}, token=token))
        told = messages(client, token)
        assert told[-1] == text + " "
        assert all(told[-1].startswith(earlier) for earlier in told)
        steps = [n["params"]["progress"] for n in client.notices(PROGRESS)]
        assert steps == sorted(set(steps))
        assert max(client.place(notice) for notice in client.notices(PROGRESS)) < client.place(answer)
        assert not client.notices(DELTA)


async def test_the_text_so_far_is_told_while_the_tool_runs(store: Path) -> None:
    async with in_process(store, slow) as (client, _):
        await client.initialize()
        id_ = await client.start_tool("slow", {"text": ""}, token="t")
        assert (await client.notice(PROGRESS))["params"]["message"] == "begun "
        await client.notify("notifications/cancelled", {"requestId": id_})


async def test_the_text_so_far_of_a_long_answer_costs_little(store: Path) -> None:
    @il.agent
    async def long(text: str):
        for n in range(1000):
            yield f"{n:0999d} "
            await asyncio.sleep(0.001)  # or the engine would make few deltas of them

    async with in_process(store, long) as (client, _):
        await client.initialize()
        result = await client.tool("long", {"text": ""}, token="t")
        assert messages(client, "t")[-1] == result["structuredContent"]["text"]
        assert client.bytes < 50_000_000, "the whole text was sent for every few tokens"


async def test_what_the_agent_does_is_told_as_lines_between_its_text(store: Path) -> None:
    async with in_process(store, show) as (client, _):
        await client.initialize()
        await client.tool("show", {"text": "x"}, token="t")
        told = messages(client, "t")
        assert told == ["Let me think.", "1 of 2 done: leap", "Edit (in_progress)", "Half ", "Something is odd.",
                        "Half and whole."]  # fmt: skip


async def test_without_a_token_there_is_no_progress(store: Path) -> None:
    async with in_process(store, show) as (client, _):
        await client.initialize()
        await client.tool("show", {"text": "x"})
        await client.ask("ping")
        assert not client.notices(PROGRESS)


async def test_the_oldest_revision_gets_progress_without_words(store: Path) -> None:
    async with in_process(store, show) as (client, _):
        await client.initialize("2024-11-05")
        await client.tool("show", {"text": "x"}, token="t")
        assert client.notices(PROGRESS)
        assert all(set(n["params"]) == {"progressToken", "progress"} for n in client.notices(PROGRESS))


async def test_a_tool_that_fails_is_a_result_that_says_why(store: Path) -> None:
    async with in_process(store, breaks) as (client, _):
        await client.initialize()
        result = await client.tool("breaks", {"text": "x"})
        assert result["isError"] is True
        assert "the saw is broken" in result["content"][0]["text"]
        assert "later" in result["content"][0]["text"]
        assert "structuredContent" not in result


async def test_arguments_that_do_not_fit_are_a_result_for_the_model_in_the_newest_revision(store: Path) -> None:
    async with in_process(store, adder) as (client, engine):
        await client.initialize(LATEST)
        result = await client.tool("adder", {"numbers": ["x"]})
        assert result["isError"] is True
        assert "/numbers/0" in result["content"][0]["text"]
        assert await engine.runs.search(RunFilter()) == []


@pytest.mark.parametrize("version", LEGACY[:-1])
async def test_arguments_that_do_not_fit_are_an_error_in_older_revisions(store: Path, version: str) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize(version)
        error = (await client.call("tools/call", {"name": "adder", "arguments": {"numbers": ["x"]}}))["error"]
        assert (error["code"], error["data"]["details"]["path"]) == (INVALID_PARAMS, "/numbers/0")


@pytest.mark.parametrize(
    "params", [{"name": "nobody"}, {"name": "echo", "arguments": []}, {"arguments": {}}, {"name": 5}, {}], ids=repr
)
async def test_unknown_tools_and_odd_calls_are_errors(store: Path, params: Any) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        assert (await client.call("tools/call", params))["error"]["code"] == INVALID_PARAMS


async def test_arguments_may_be_missing(store: Path) -> None:
    @il.agent
    async def nothing() -> str:
        return "nothing"

    async with in_process(store, nothing) as (client, _):
        await client.initialize()
        for params in ({"name": "nothing"}, {"name": "nothing", "arguments": None}):
            assert (await client.ask("tools/call", params))["structuredContent"] == {"text": "nothing"}


async def test_a_cancelled_call_gets_no_answer_and_its_run_is_cancelled(store: Path) -> None:
    async with in_process(store, slow) as (client, engine):
        await client.initialize()
        id_ = await client.start_tool("slow", {"text": ""}, token="t")
        await client.notice(PROGRESS)
        await client.notify("notifications/cancelled", {"requestId": id_})
        [run] = await engine.runs.search(RunFilter())
        assert (await engine.runs.wait(run.id, timeout=PATIENCE)).status is il.Status.CANCELLED
        await client.ask("ping")
        assert all(message.get("id") != id_ for message in client.messages)


async def test_questions_of_a_tool_are_elicitations(store: Path) -> None:
    async with in_process(store, careful) as (client, _):
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {"choice": "yes"}})
        await client.initialize(elicits=True)
        assert (await client.tool("careful", {"text": "it"}))["structuredContent"] == {"text": "asking. done"}


async def test_without_elicitation_a_tool_fails_with_the_question_and_is_joined_again(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        await client.initialize()
        error = (await client.answer(await client.start_tool("careful", {"text": "it"})))["error"]
        assert error["code"] == QUESTION_OPEN
        run = error["data"]["run"]
        await engine.questions.answer((await question(engine, run)).id, {"approved": True})
        result = await client.tool("careful", {"text": "it"}, **{RUN: run})
        assert result["structuredContent"] == {"text": "asking. done"}


async def test_calls_with_a_thread_share_its_state(store: Path) -> None:
    async with in_process(store, remember) as (client, _):
        await client.initialize()
        meta = {THREAD: "7f0c6f3e-93f5-4f7e-8f0e-0a1b2c3d4e5f"}
        for text in ("one", "two"):
            result = await client.tool("remember", {"text": text}, **meta)
        assert result["content"][0]["text"] == "one two"


async def test_calls_of_one_client_go_on_side_by_side(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        results = await asyncio.gather(*(client.tool("echo", {"text": str(n)}) for n in range(20)))
        assert [result["content"][0]["text"] for result in results] == [f"{n} " for n in range(20)]


async def test_an_agent_that_was_created_is_a_tool_too(store: Path) -> None:
    async with in_process(store, styled) as (client, _):
        await client.initialize()
        made = (await client.ask("agents/create", {"templateName": "styled", "config": {"tone": "warm"}}))["agent"]
        names = [tool["name"] for tool in (await client.ask("tools/list"))["tools"]]
        assert names == ["styled", made["name"].replace(":", "_")]
        assert (await client.tool(names[1], {"text": "hi"}))["content"][0]["text"] == "hi in a warm tone"


async def test_names_that_no_tool_can_have_are_made_fit_and_stay_apart(store: Path) -> None:
    names = ["org.acme.mail", "org_acme.mail", "org_acme_mail", "n" * 100, "n" * 99 + "x", "twice"]
    agents = [_says(name) for name in names] + [_says("twice", "0.0.1")]
    async with in_process(store, *agents) as (client, _):
        await client.initialize()
        tools = {tool["title"]: tool["name"] for tool in (await client.ask("tools/list"))["tools"]}
        assert len(set(tools.values())) == len(agents)
        assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in tools.values())
        assert tools["org_acme_mail"] == "org_acme_mail"
        for title, name in tools.items():
            told = (await client.tool(name, {}))["content"][0]["text"]
            assert told == (title if "@" in title else f"{title}@0.1.0")


def _says(name: str, version: str = "0.1.0") -> Any:
    @il.agent(name=name, version=version)
    async def says() -> str:
        return f"{name}@{version}"

    return says


def test_the_name_of_a_tool_does_not_hang_on_the_order_of_agents() -> None:
    names = ["a.b", "a b", "a_b", "c.d", "x" * 70, "x" * 71]
    assert tool_names(names) == {name: tool_names(names[::-1])[name] for name in names}
    assert (tool_names(names)["c.d"], tool_names(names)["a_b"]) == ("c_d", "a_b")
    assert len(set(tool_names(names).values())) == len(names)


async def test_a_tool_is_called_over_stdio(tmp_path: Path) -> None:
    source = "import interlingua as il\n@il.agent\nasync def hello(text: str) -> str:\n    return f'hello {text}'\n"
    async with stdio(tmp_path, source) as client:
        await client.initialize()
        assert (await client.tool("hello", {"text": "you"}))["structuredContent"] == {"text": "hello you"}


# -- large results, and schemas with marks of their own -------------------------------------------------------


@il.agent
async def large(size: int, structured: bool) -> dict[str, Any]:
    """Says much."""
    return {"text": "ä\n" * (size // 2), **({"more": 1} if structured else {})}


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("modern", [False, True])
async def test_a_large_text_is_sent_once(store: Path, modern: bool, structured: bool) -> None:
    async with in_process(store, large) as (client, _):
        if not modern:
            await client.initialize()
        for size in (100_000, 200_000, 400_000, 600_000):
            arguments = {"size": size, "structured": structured}
            if modern:
                result = (await client.modern("tools/call", {"name": "large", "arguments": arguments}))["result"]
            else:
                result = await client.tool("large", arguments)
            assert len(result["structuredContent"]["text"]) == size
            [content] = result["content"]
            if size <= 100_000:
                assert len(content["text"]) >= size
            if size >= 400_000:
                assert len(content["text"]) < 20_000
                assert content["text"].endswith("characters in all; structuredContent has the whole result)")
            whole = len(msgspec.json.encode(result))
            assert whole < max(1_000_000, 1.1 * len(msgspec.json.encode(result["structuredContent"])))


async def test_a_large_text_is_whole_where_there_is_no_structure(store: Path) -> None:
    async with in_process(store, large) as (client, _):
        await client.initialize("2025-03-26")
        [content] = (await client.tool("large", {"size": 600_000, "structured": True}))["content"]
        assert len(content["text"]) > 600_000


Marked = Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]


class Place(msgspec.Struct):
    region: Marked
    other: list[Marked] = []


@il.agent
async def marked(place: Place, region: Marked, text: str = "") -> str:
    """Has parameters that a proxy would like to see in headers."""
    return region


async def test_no_tool_asks_for_headers_that_nobody_checks(store: Path) -> None:
    named = {"type": "object", "properties": {"x-mcp-header": {"type": "string", "default": {"x-mcp-header": 1}}}}
    card = AgentCard("named", input=named)
    assert translate.tool(card, "named", "named", LATEST)["inputSchema"] == named, "a parameter may be called so"
    async with in_process(store, marked) as (client, _):
        await client.initialize()
        [tool] = (await client.ask("tools/list"))["tools"]
        assert "x-mcp-header" not in str(tool)
        assert set(tool["inputSchema"]["properties"]) == {"place", "region", "text"}
        assert "x-mcp-header" not in str((await client.modern("tools/list"))["result"])
        arguments = {"place": {"region": "a"}, "region": "b"}
        assert (await client.tool("marked", arguments))["structuredContent"] == {"text": "b"}
