"""Mounts of MCP servers without agents: their tools and prompts are agents. The server is made with the published
library, and speaks over pipes and at an address."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import interlingua as il
from interlingua.detection.detect import inspect
from interlingua.model.content import DataPart, FilePart, TextPart
from interlingua.model.errors import Unavailable
from interlingua.model.events import ArtifactAdded, Thought, Warned
from interlingua.mounts.loader import local_agents
from interlingua.protocols.mcp.mount.server import load
from interlingua.protocols.targets import parse
from interlingua.server.app import Server
from tests.app.test_mounts import SLOW, hub
from tests.app.test_mounts import until as until_mount
from tests.kit.engines import bodies, crash, engine, finish, question, submit
from tests.kit.mounts.mcp import command, mount, mounted
from tests.kit.mounts.watch import SETTINGS, seen
from tests.kit.wait_for import wait_for

from ...interop.editor_peers import process_with_address

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "plain_server.py")]
Way = Literal["stdio", "http", "json"]
WAYS: list[Way] = ["stdio", "http", "json"]
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the server has noted. A command inherits the variable from us."""
    log = tmp_path / "calls"
    monkeypatch.setenv("CALLS_LOG", str(log))
    return lambda: log.read_text().splitlines() if log.exists() else []


@contextlib.contextmanager
def target_of(way: Way, folder: Path) -> Iterator[str]:
    if way == "stdio":
        yield f"mcp:{shlex.join(SERVER)}"
    else:
        with process_with_address([*SERVER, "http", *(["json"] if way == "json" else [])], folder / "log") as address:
            yield f"mcp+{address}/mcp"


@contextlib.asynccontextmanager
async def plain(store: Path, way: Way = "stdio") -> AsyncIterator[il.Engine]:
    """An engine with the agents of the server."""
    with target_of(way, store.parent) as target:
        agents = await load(parse(target))
        assert agents[0].let_go is not None
        try:
            async with engine(store, *agents, settings=SETTINGS) as eng:
                yield eng
        finally:
            await agents[0].let_go()


def card_of(eng: il.Engine, name: str) -> il.AgentCard:
    agent = eng.agents.find(name)
    assert agent is not None
    return agent.card


async def lines(eng: il.Engine, run: str) -> list[str]:
    return [body.text for body in await bodies(eng, run, Thought)]


# -- tools ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_is_an_agent_with_its_schemas_and_its_structured_output(store: Path, way: Way) -> None:
    async with plain(store, way) as eng:
        card = card_of(eng, "add")
        assert card.description == "Adds numbers."
        assert card.input["properties"]["numbers"]["items"] == {"type": "integer"}
        assert card.output["required"] == ["total", "parts"]
        run = await finish(eng, "add", {"numbers": [1, 2]})
        assert run.output == {"total": 3, "parts": [1, 2]}
        assert await bodies(eng, run.id, Warned) == await bodies(eng, run.id, ArtifactAdded) == []


@pytest.mark.parametrize("way", WAYS)
async def test_text_of_a_tool_without_an_output_schema_is_the_output(store: Path, way: Way) -> None:
    async with plain(store, way) as eng:
        card = card_of(eng, "shout")
        assert (card.input_text, card.output_text, card.output) == ("text", "text", TEXT)
        assert (await finish(eng, "shout", {"text": "hello"})).output == {"text": "HELLO"}


async def test_text_that_repeats_the_structured_output_is_left_out(store: Path) -> None:
    async with plain(store) as eng:
        run = await finish(eng, "names")
        assert run.output == {"result": ["one", "two"]}
        assert await bodies(eng, run.id, ArtifactAdded) == []


async def test_pictures_files_and_links_of_a_result_are_an_artifact(store: Path) -> None:
    async with plain(store) as eng:
        run = await finish(eng, "picture")
        assert run.output == {"text": "a picture"}
        (added,) = await bodies(eng, run.id, ArtifactAdded)
        image, link, page = added.artifact.parts
        assert (image.data, image.media_type) == (b"\x89PNG", "image/png")
        assert (link.url, link.name, link.media_type, link.size) == (
            "https://example.com/r.csv",
            "r.csv",
            "text/csv",
            12,
        )
        assert (page.text, page.name, page.media_type) == ("notes", "file:///notes.txt", "text/plain")


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_progress_of_a_tool_is_activity(store: Path, way: Way) -> None:
    async with plain(store, way) as eng:
        run = await finish(eng, "count", {"to": 3})
        assert run.output == {"result": "done"}
        assert await lines(eng, run.id) == [f"counting to 3 ({number} of 3)" for number in (1, 2, 3)]


async def test_a_result_that_says_it_is_an_error_fails_the_run(store: Path) -> None:
    async with plain(store) as eng:
        run = await finish(eng, "refuse", {"reason": "no money"})
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("remote_failed", False)
        assert "no money" in run.error.message


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_an_elicitation_of_a_tool_is_a_question_of_the_run(store: Path, way: Way) -> None:
    async with plain(store, way) as eng:
        run = await submit(eng, "travel")
        asked = await question(eng, run.id)
        assert asked.prompt == "Where to?"
        await eng.questions.answer(asked.id, {"city": "Rome"})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"result": "to Rome"}


async def test_at_an_address_each_of_several_calls_gets_the_answer_to_its_own_question(store: Path) -> None:
    async with plain(store, "http") as eng:
        runs = [await submit(eng, "travel") for _ in range(2)]
        for run, city in zip(runs, ("Rome", "Oslo"), strict=True):
            await eng.questions.answer((await question(eng, run.id)).id, {"city": city})
        ended = [await eng.runs.wait(run.id, timeout=20) for run in runs]
        assert [run.output for run in ended] == [{"result": "to Rome"}, {"result": "to Oslo"}]


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_cancelling_the_run_cancels_the_call(store: Path, way: Way, calls: Callable[[], list[str]]) -> None:
    async with plain(store, way) as eng:
        run = await submit(eng, "hang")
        await seen(eng, run.id, "thought")
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        await wait_for(lambda: calls() == ["hang", "cancelled"])


# -- prompts --------------------------------------------------------------------------------------------------


async def test_a_prompt_that_takes_arguments_is_an_agent_and_one_without_is_none(store: Path) -> None:
    async with plain(store) as eng:
        names = {agent.card.name for agent in eng.agents}
        assert {"review", "interview"} < names
        assert "greeting" not in names
        card = card_of(eng, "review")
        assert card.description == "Asks for a review."
        assert (card.input["required"], list(card.input["properties"])) == (["code"], ["code", "language"])
        run = await finish(eng, "review", {"code": "x = 1"})
        assert run.output == {"text": "Review this Python: x = 1"}


async def test_a_prompt_of_several_messages_keeps_their_roles(store: Path) -> None:
    async with plain(store) as eng:
        output = (await finish(eng, "interview", {"topic": "whales"})).output
        assert output is not None
        assert output["text"] == "Ask me about whales.\n\nWhat do you know?"
        assert [message["role"] for message in output["messages"]] == ["user", "assistant"]


# -- servers that die -----------------------------------------------------------------------------------------


async def test_a_call_whose_server_dies_is_not_repeated_and_fails_as_transient(
    store: Path, calls: Callable[[], list[str]]
) -> None:
    async with plain(store) as eng:
        run = await finish(eng, "pay")
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("run_lost", True)
        assert calls() == ["pay"]
        assert (await finish(eng, "pay")).output == {"result": "pay survived"}


async def test_an_idempotent_call_whose_server_dies_is_repeated(store: Path, calls: Callable[[], list[str]]) -> None:
    async with plain(store) as eng:
        assert (await finish(eng, "store")).output == {"result": "store survived"}
        assert calls() == ["store", "store"]


async def test_a_call_that_kills_every_server_is_not_repeated_for_ever(
    store: Path, calls: Callable[[], list[str]]
) -> None:
    async with plain(store) as eng:
        run = await finish(eng, "crash")
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("run_lost", True)
        assert calls() == ["crash"] * 3


@pytest.mark.parametrize(("hints", "repeated"), [({}, False), ({"idempotentHint": True}, True)])
async def test_a_call_that_our_own_death_interrupts_is_repeated_only_where_the_tool_allows_it(
    tmp_path: Path, store: Path, hints: dict[str, bool], repeated: bool
) -> None:
    log = tmp_path / "wire"
    tool = {
        "name": "work",
        "inputSchema": TEXT,
        "annotations": hints,
        "acts": [["said", {"message": "begun"}], ["hang", None]],
    }
    given = {"capabilities": {"tools": {}}, "agents": [], "tools": [tool], "log": str(log)}
    made = mount(given)
    eng = await engine(store, *await local_agents(made, None), settings=SETTINGS).__aenter__()
    run = await submit(eng, "work", {"text": "x"})
    await seen(eng, run.id, "thought")
    await crash(eng)
    await made.close()
    tool["acts"] = [["said", {"message": "begun"}], ["result", {"content": [{"type": "text", "text": "done"}]}]]
    async with mounted(store, given) as (again, _):
        ended = await again.runs.wait(run.id, timeout=20)
        assert log.read_text().count('"tools/call"') == (2 if repeated else 1)
        assert ended.output == ({"text": "done"} if repeated else None)
        assert await lines(again, run.id) == ["begun"], "a line that the second attempt repeats is shown once"
        if not repeated:
            assert ended.error is not None
            assert (ended.error.code, ended.error.transient) == ("run_lost", True)


# -- lists ----------------------------------------------------------------------------------------------------


async def test_tools_that_come_and_go_are_agents_that_come_and_go_over_the_same_process(tmp_path: Path) -> None:
    never_looks = msgspec.structs.replace(SLOW, retry_first=0.05)  # unless there is a reason, and then soon
    async with hub(tmp_path, f"mcp:{shlex.join(SERVER)}", mounting=never_looks) as server:
        await until_mount(server, lambda: "learn" in agents_of(server))
        before = server.engine.agents.find("learn")
        run = await finish(server.engine, "learn", {"name": "wise"})
        assert run.output == {"result": "learned"}
        await until_mount(server, lambda: "wise" in agents_of(server) and "shout" not in agents_of(server))
        assert (await finish(server.engine, "wise")).output == {"result": "I am wise"}
        assert server.engine.agents.find("learn") is before, "agents that stay are the same"


def agents_of(server: Server) -> set[str]:
    return {agent.card.name for agent in server.engine.agents}


async def test_a_tool_that_is_gone_is_reported_with_those_that_there_are(store: Path) -> None:
    async with plain(store) as eng:
        await finish(eng, "learn", {"name": "wise"})
        run = await finish(eng, "shout", {"text": "x"})
        assert run.error is not None
        assert run.error.code == "agent_not_found"
        assert "no longer has a tool 'shout'; it has: add" in run.error.message


async def test_a_tool_and_a_prompt_of_one_name_are_two_agents(store: Path) -> None:
    tool = {"name": "same", "inputSchema": TEXT, "acts": [["result", {"content": [{"type": "text", "text": "tool"}]}]]}
    prompt = {"name": "same", "arguments": [{"name": "text"}]}
    given = {"capabilities": {"tools": {}, "prompts": {}}, "agents": [], "tools": [tool], "prompts": [prompt]}
    async with mounted(store, given) as (eng, made):
        assert [agent.card.name for agent in await local_agents(made, "same")] == ["same", "same-2"]
        assert (await finish(eng, "same", {"text": "x"})).output == {"text": "tool"}
        assert (await finish(eng, "same-2", {"text": "x"})).output == {"text": '{"text": "x"}'}


async def test_a_server_with_tools_is_listed_without_being_asked_what_it_does_not_declare(tmp_path: Path) -> None:
    log = tmp_path / "wire"
    given = {
        "version": "2024-11-05",
        "strict": True,
        "agents": [],
        "log": str(log),
        "tools": [{"name": "t"}],
        "prompts": [],
    }
    made = mount({**given, "capabilities": {"tools": {}, "prompts": {}}})
    assert [agent.card.name for agent in await made.agents(None)] == ["t"]
    await made.close()
    methods = [json.loads(line)["method"] for line in log.read_text().splitlines()]
    assert methods == ["initialize", "notifications/initialized", "tools/list", "prompts/list"]


async def test_a_server_that_offers_nothing_to_run_says_what_it_has() -> None:
    with pytest.raises(Unavailable, match="offers no agents; it is an MCP server that has only resources"):
        await mount({"version": "2024-11-05", "capabilities": {"resources": {}}}).agents()
    with pytest.raises(Unavailable, match=r"declares tools, and cannot list them: .*no tools/list"):
        await mount({"capabilities": {"tools": {}}, "agents": []}).agents()


async def test_inspect_lists_the_tools_and_prompts_of_a_command() -> None:
    given = {
        "capabilities": {"tools": {"listChanged": True}, "prompts": {}},
        "tools": [{"name": "add", "description": "Adds."}],
        "prompts": [{"name": "review", "arguments": [{"name": "code"}]}, {"name": "greeting"}],
    }  # fmt: skip
    (spoken,), _ = await inspect(command(given))
    assert (spoken.protocol, spoken.target) == ("mcp-tools", f"mcp:{command(given)}")
    assert [(agent.name, agent.description) for agent in spoken.agents] == [("add", "Adds."), ("review", "")]


@pytest.mark.parametrize("way", ["http", "json"])
async def test_inspect_lists_tools_and_prompts_with_a_target_that_runs_them(tmp_path: Path, way: Way) -> None:
    with target_of(way, tmp_path) as target:
        found, _ = await inspect(target.removeprefix("mcp+"))
        (spoken,) = [spoken for spoken in found if spoken.protocol == "mcp-tools"]
        listed = {agent.name: agent.description for agent in spoken.agents}
        assert listed["add"] == "Adds numbers."
        assert listed["review"] == "Asks for a review."
        assert "greeting" not in listed
        assert spoken.target == target


async def test_an_address_that_names_no_protocol_is_mounted_by_its_tools(tmp_path: Path) -> None:
    with target_of("http", tmp_path) as target:
        async with hub(tmp_path, target.removeprefix("mcp+"), mounting=SLOW) as server:
            await until_mount(server, lambda: "add" in agents_of(server))
            assert (await finish(server.engine, "add", {"numbers": [4]})).output == {"total": 4, "parts": [4]}


# -- results that are odd -------------------------------------------------------------------------------------


def result(**members: Any) -> dict[str, Any]:
    return {"content": [], **members}


@pytest.mark.parametrize(
    ("told", "output", "parts"),
    [
        (result(), {}, []),
        (result(structuredContent=[1, 2]), {"value": [1, 2]}, []),
        (result(structuredContent={"a": 1}, content=[{"type": "text", "text": '{"a":1}'}]), {"a": 1}, []),
        (
            result(structuredContent={"a": 1}, content=[{"type": "text", "text": "a is one"}]),
            {"a": 1},
            [TextPart("a is one")],
        ),
        (
            result(content=[{"type": "image", "data": "%", "mimeType": "image/png"}]),
            {},
            [DataPart({"type": "image", "data": "%", "mimeType": "image/png"})],
        ),
        (result(content=[{"type": "hologram"}, 5]), {}, [DataPart({"type": "hologram"})]),
        (
            result(content=[{"type": "resource", "resource": {"uri": "a", "blob": "aGk="}}]),
            {},
            [FilePart(data=b"hi", name="a")],
        ),
    ],
)  # fmt: skip
async def test_odd_results_lose_nothing(store: Path, told: Any, output: Any, parts: list[Any]) -> None:
    tool = {"name": "t", "inputSchema": TEXT, "acts": [["result", told]]}
    async with mounted(store, {"capabilities": {"tools": {}}, "agents": [], "tools": [tool]}) as (eng, _):
        run = await finish(eng, "t")
        assert run.output == output
        assert [part for body in await bodies(eng, run.id, ArtifactAdded) for part in body.artifact.parts] == parts


@pytest.mark.parametrize(
    ("told", "message", "code", "transient"),
    [
        ({}, "answered tools/call without content", "remote_failed", False),
        (result(isError=True), "t failed, and does not say why", "remote_failed", False),
        (
            result(isError=True, content=[{"type": "text", "text": "busy"}],
                   _meta={"interlingua/error": {"code": "busy", "transient": True}}),
            "busy", "busy", True,
        ),
    ],
)  # fmt: skip
async def test_failures_of_tools(store: Path, told: Any, message: str, code: str, transient: bool) -> None:
    tool = {"name": "t", "inputSchema": TEXT, "acts": [["result", told]]}
    async with mounted(store, {"capabilities": {"tools": {}}, "agents": [], "tools": [tool]}) as (eng, _):
        error = (await finish(eng, "t")).error
        assert error is not None
        assert message in error.message
        assert (error.code, error.transient) == (code, transient)
