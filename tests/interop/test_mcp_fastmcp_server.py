"""Tools and prompts of a server on PyPI `fastmcp` as agents of ours, over stdio and Streamable HTTP. See
`mcp_fastmcp_server.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interlingua.model.events import Thought
from tests.kit.engines import bodies, question

from .mcp_peers import HERE, interlingua_run, mounted, target_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDK


@pytest.fixture(params=["stdio", "http"])
def target(request: pytest.FixtureRequest, fastmcp: Path, tmp_path: Path) -> Iterator[str]:
    with target_of([str(fastmcp), str(HERE / "mcp_fastmcp_server.py")], request.param, tmp_path) as found:
        yield found


async def test_its_tools_and_prompts_are_agents(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        assert [agent.card.name for agent in server.engine.agents] == [
            "add", "shout", "count", "travel", "refuse", "review",
        ]  # fmt: skip
        assert (await server.run("add", a=1, b=2)).output == {"total": 3}
        assert (await server.run("shout", text="hi")).output == {"result": "HI"}
        assert (await server.run("review", code="x")).output == {"text": "Review x"}
        failed = await server.run("refuse", reason="no money")
        assert failed.error is not None
        assert "no money" in failed.error.message


async def test_its_progress_is_activity(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.run("count", to=2)
        assert run.output == {"result": "done"}
        thoughts = await bodies(server.engine, run.id, Thought)
        assert [thought.text for thought in thoughts] == ["counting (1 of 2)", "counting (2 of 2)"]


async def test_its_elicitation_is_a_question(store: Path, target: str) -> None:
    async with mounted(store, target) as server:
        run = await server.begin("travel")
        asked = await question(server.engine, run)
        assert asked.prompt == "Where to?"
        await server.engine.questions.answer(asked.id, {"value": "Rome"})
        assert (await server.end(run)).output == {"result": "to Rome"}


async def test_interlingua_run_calls_a_tool(tmp_path: Path, target: str) -> None:
    code, out, err = await interlingua_run(f"{target}#shout", "hi", tmp_path)
    assert (code, out) == (0, "HI\n"), err
