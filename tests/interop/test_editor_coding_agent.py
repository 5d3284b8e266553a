"""A coding agent that people use, as an agent of ours: npm `@agentclientprotocol/claude-agent-acp` 0.99.0, offline.

Its model is a stand-in on loopback (`editor_model.py`). It takes some hundred megabytes, so it is tried only where
INTERLINGUA_INTEROP_AGENTS=1 is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pexpect
import pytest

import interlingua as il
from interlingua.model.events import ToolCall
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.editor.mount.server import EditorServer
from interlingua.protocols.editor.mount.sessions import source_of
from tests.kit.engines import bodies, engine, question, submit
from tests.kit.mounts.editor import agent_of
from tests.kit.mounts.watch import SETTINGS

from .conftest import npm_packages
from .editor_peers import HERE, INTERLINGUA, MARK, Sdk, Sdks, all_gone, marked, process_with_address, stdio_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]  # the first test installs the agent

PATIENCE = 90  # seconds; it takes some to start


@pytest.fixture(scope="module")
def command() -> str:
    folder = npm_packages("@agentclientprotocol/claude-agent-acp@0.99.0", "zod@4.6.7")
    return shlex.join(["node", str(folder / "node_modules" / ".bin" / "claude-agent-acp")])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the agent finds around it: a home of its own, a key that is none, and a model that is none."""
    home = tmp_path / "home"
    home.mkdir()
    with process_with_address([sys.executable, str(HERE / "editor_model.py")], tmp_path / "model.log") as address:
        yield {
            "HOME": str(home), "ANTHROPIC_API_KEY": "x", "ANTHROPIC_BASE_URL": address, "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "INTERLINGUA_STORE": str(tmp_path / "cli.db"),
            "INTERLINGUA_PROJECT": "interop",
            MARK: uuid.uuid4().hex, "TERM": "dumb",
        }  # fmt: skip


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize(("answer", "said"), [("Yes", "The file is there."), ("No", "It was refused.")])
def test_a_whole_turn_at_the_terminal(
    command: str, variables: dict[str, str], work: Path, version: str, answer: str, said: str
) -> None:
    child = pexpect.spawn(
        INTERLINGUA, ["run", f"editor:{command}", "make a file"], cwd=str(work), timeout=PATIENCE, encoding="utf-8",
        env={**os.environ, **variables, "INTERLINGUA_EDITOR_VERSION": version}, dimensions=(60, 120),
    )  # fmt: skip
    try:
        child.expect_exact("I will make a file.")
        child.expect_exact("question · permission")
        child.expect_exact("echo made by the agent")
        child.expect(rf"(\d)\) {answer}\r\n")
        number = child.match.group(1)
        child.expect(r"\[1-\d\]")
        during = marked(variables[MARK])
        assert len(during) > 2, "ours, and the agent with what it has started"
        child.sendline(number)
        child.expect_exact(said)
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)
    assert (work / "made.txt").exists() is (answer == "Yes")
    asyncio.run(all_gone(during))
    assert not marked(variables[MARK])


@contextlib.asynccontextmanager
async def mounted(
    store: Path, command: str, variables: dict[str, str], work: Path, version: int
) -> AsyncIterator[tuple[il.Engine, str]]:
    settings = MountSettings(version=2 if version == 2 else 1, directory=str(work))
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), *shlex.split(command)]
    mount = EditorServer(source_of("editor", shlex.join(words), settings), settings)
    agent = await agent_of(mount)
    try:
        async with engine(store, agent, settings=SETTINGS) as eng:
            yield eng, agent.card.name
    finally:
        await mount.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_run_of_it_is_a_run_like_any_other(
    command: str, variables: dict[str, str], work: Path, store: Path, version: int
) -> None:
    async with mounted(store, command, variables, work, version) as (eng, name):
        card = await eng.agents.card(name)
        assert card.metadata["protocol_version"] == version
        assert card.config is not None, "its modes and models are config"
        run = (await submit(eng, name, {"text": "make a file"}, thread="t", create_thread=True)).id
        asked = await question(eng, run)
        assert asked.type == "permission"
        assert asked.payload["input"]["command"].startswith("echo made by the agent")
        await eng.runs.cancel(run)
        assert (await eng.runs.wait(run, timeout=PATIENCE)).status is il.Status.CANCELLED
        assert not (work / "made.txt").exists()

        run = (await submit(eng, name, {"text": "make a file"})).id
        asked = await question(eng, run)
        allow = next(option.id for option in asked.options if option.kind == "allow_once")
        await eng.questions.answer(asked.id, {"choice": allow})
        ended = await eng.runs.wait(run, timeout=PATIENCE)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        assert ended.output is not None
        assert ended.output["text"].rstrip().endswith("The file is there.")
        assert (work / "made.txt").read_text() == "made by the agent\n"
        assert [call.status for call in await bodies(eng, run, ToolCall)][-1] == "completed"
        during = marked(variables[MARK])
        assert during
    await all_gone(during)
    assert not marked(variables[MARK])


@pytest.mark.parametrize("client", ["npm", "npm-v2", "pypi"])
async def test_an_editor_reaches_it_through_us(
    request: pytest.FixtureRequest, command: str, variables: dict[str, str], work: Path, tmp_path: Path, client: Sdk
) -> None:
    """SDK client → `interlingua stdio --as editor 'editor:claude-agent-acp'`: what an editor would start."""
    given = [f"{name}={value}" for name, value in variables.items()]
    door = ["env", *given, *stdio_command(tmp_path / "store.db", f"editor:{command}")]
    async with Sdks(request).client(client, "stdio", *door) as peer:
        await peer.begin()
        session = (await peer.ask("session/new", {"cwd": str(work), "mcpServers": []}, timeout=PATIENCE))["sessionId"]
        ended = await peer.turn_begun(session, "make a file")
        asked = await peer.request("session/request_permission", timeout=PATIENCE)
        assert "echo made by the agent" in json.dumps(asked["params"])
        allow = next(o["optionId"] for o in asked["params"]["options"] if o["kind"] == "allow_once")
        await peer.respond(asked, {"outcome": {"outcome": "selected", "optionId": allow}})
        assert (await ended())["stopReason"] == "end_turn"
        assert "The file is there." in peer.text(session)
        assert (work / "made.txt").exists()
        during = marked(variables[MARK])
    await all_gone(during)
