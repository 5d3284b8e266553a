"""Agents that are written with the published SDKs, as agents of ours: started by `editor:COMMAND`, and over HTTP and
WebSocket from the SDKs' own servers. PyPI `agent-client-protocol` 0.12.1 and npm `@agentclientprotocol/sdk` 2.4.0, the
latter in versions 1 and 2. See `editor_agent.py` and `editor_agent.mjs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

import interlingua as il
from interlingua.model.content import FilePart, Message, TextPart
from interlingua.model.events import Diff, OutputDelta, Plan, PlanEntry, Thought, ToolCall
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.editor.mount.server import EditorServer
from interlingua.protocols.editor.mount.sessions import source_of
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from tests.kit.engines import bodies, engine, finish, question, submit
from tests.kit.mounts.editor import agent_of
from tests.kit.mounts.watch import SETTINGS, seen

from .editor_peers import INTERLINGUA, MARK, Sdk, Sdks, Way, all_gone, marked, process_with_address, stdio_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDKs

Mounting = Callable[[], contextlib.AbstractAsyncContextManager["Mounted"]]

NAMES = {"pypi": "pypi-agent", "npm": "npm-agent", "npm-v2": "npm-agent"}


@pytest.fixture(params=["pypi", "npm", "npm-v2"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    chosen: Sdk = request.param
    return chosen


@pytest.fixture
def command(request: pytest.FixtureRequest, sdk: Sdk) -> list[str]:
    return Sdks(request).agent(sdk)


@pytest.fixture(params=["stdio", "http", "ws"])
def address(request: pytest.FixtureRequest, command: list[str], tmp_path: Path) -> Iterator[str | None]:
    """Where the agent is served; None where it is to be started."""
    way: Way = request.param
    if way == "stdio":
        yield None
        return
    with process_with_address([*command, "serve"], tmp_path / "agent.log") as at:
        yield f"{at if way == 'http' else at.replace('http://', 'ws://')}/acp"


class Mounted:
    """A mounted agent, and short ways to run it."""

    def __init__(self, eng: il.Engine, mount: EditorServer, name: str) -> None:
        self.engine, self.mount, self.name = eng, mount, name

    async def run(self, text: str, **options: Any) -> il.Run:
        return await finish(self.engine, self.name, {"text": text}, **options)

    async def begin(self, text: str, **options: Any) -> str:
        return (await submit(self.engine, self.name, {"text": text}, **options)).id

    async def end(self, run: str) -> il.Run:
        return await self.engine.runs.wait(run, timeout=20)

    async def text(self, run: str) -> str:
        return "".join(delta.delta["text"] for delta in await bodies(self.engine, run, OutputDelta))


@contextlib.asynccontextmanager
async def mounted(
    store: Path, sdk: Sdk, command: list[str], address: str | None, **settings: Any
) -> AsyncIterator[Mounted]:
    made = MountSettings(version=2 if sdk == "npm-v2" else 1, **settings)
    source = source_of("", address, made) if address else source_of("editor", shlex.join(command), made)
    mount = EditorServer(source, made)
    agent = await agent_of(mount)
    try:
        async with engine(store, agent, settings=SETTINGS) as eng:
            yield Mounted(eng, mount, agent.card.name)
    finally:
        await mount.close()


@pytest.fixture
def mounting(sdk: Sdk, command: list[str], address: str | None, store: Path, tmp_path: Path) -> Mounting:
    """The agent, mounted in the way that the test is for."""
    work = str(tmp_path)
    return lambda: mounted(store, sdk, command, address, directory=work, write="allow", terminal="allow")


async def test_its_card_tells_what_it_is(mounting: Mounting, sdk: Sdk) -> None:
    async with mounting() as agent:
        card = await agent.engine.agents.card(agent.name)
        assert (card.name, card.version) == (NAMES[sdk], "1.0.0")
        assert card.description.startswith("An agent on the")
        assert card.metadata["protocol_version"] == (2 if sdk == "npm-v2" else 1)
        assert card.config is not None
        assert card.config["properties"]["model"]["default"] == "small"
        assert card.config["properties"]["careful"]["type"] == "boolean"


async def test_its_output_streams_in_order(mounting: Mounting) -> None:
    async with mounting() as agent:
        run = await agent.run("stream 500")
        expected = "".join(f"{number} " for number in range(500))
        assert (run.status, run.output) == (il.Status.SUCCEEDED, {"text": expected})
        assert await agent.text(run.id) == expected


async def test_its_activity_becomes_events(mounting: Mounting, sdk: Sdk) -> None:
    async with mounting() as agent:
        run = await agent.run("activity")
        assert run.output == {"text": "Done."}, run.error
        assert [thought.text for thought in await bodies(agent.engine, run.id, Thought)] == ["Let me see."]
        (plan,) = await bodies(agent.engine, run.id, Plan)
        assert plan.entries == [PlanEntry("look", "in_progress", "high")]
        first, last = await bodies(agent.engine, run.id, ToolCall)
        assert (first.title, first.kind_, first.status, first.input) == ("Edit a file", "edit", "in_progress", {"n": 1})
        assert (last.status, last.output) == ("completed", {"ok": True})
        if sdk == "npm-v2":  # a patch says less than the two texts of a diff, so it is shown as it is
            assert "-old\n+new" in last.content[0]["text"]
        else:
            assert last.diffs == [Diff("/a.py", "new\n", "old\n")]
        assert run.usage == {"used": 5, "size": 50}


@pytest.mark.parametrize("choice", ["go", "stop"])
async def test_its_permission_is_a_question(mounting: Mounting, choice: str) -> None:
    async with mounting() as agent:
        run = await agent.begin("ask")
        asked = await question(agent.engine, run)
        assert (asked.type, asked.prompt) == ("permission", "Remove it")
        assert [(o.id, o.kind) for o in asked.options] == [("go", "allow_once"), ("stop", "reject_once")]
        await agent.engine.questions.answer(asked.id, {"choice": choice})
        output = (await agent.end(run)).output
        assert output is not None
        assert output["text"].split() == ["Asking.", "selected", choice]


async def test_it_is_cancelled(mounting: Mounting) -> None:
    async with mounting() as agent:
        run = await agent.begin("wait")
        await seen(agent.engine, run, "delta")
        await agent.engine.runs.cancel(run)
        assert (await agent.end(run)).status is il.Status.CANCELLED
        assert await agent.text(run) == "Waiting. Stopped."
        asking = await agent.begin("ask")
        await question(agent.engine, asking)
        await agent.engine.runs.cancel(asking)
        assert (await agent.end(asking)).status is il.Status.CANCELLED
        assert (await agent.run("hello")).output == {"text": "heard hello"}


async def test_its_options_are_config(mounting: Mounting) -> None:
    async with mounting() as agent:
        run = await agent.run("options", config={"model": "big", "careful": True})
        assert run.output is not None, run.error
        assert json.loads(run.output["text"]) == {"model": "big", "careful": True}


async def test_content_of_other_kinds_reaches_it(mounting: Mounting) -> None:
    async with mounting() as agent:
        parts = [
            TextPart("blocks"),
            FilePart(data=b"png", media_type="image/png"),
            FilePart(text="notes", url="file:///notes.txt", name="notes.txt"),
            FilePart(url="file:///big.bin", name="big.bin"),
        ]
        run = await agent.run("blocks", messages=[Message("user", parts)])
        assert run.output is not None, run.error
        assert json.loads(run.output["text"]) == ["text", "image", "resource", "resource_link"]


async def test_its_error_is_the_error_of_the_run(mounting: Mounting) -> None:
    async with mounting() as agent:
        run = await agent.run("fail")
        assert run.error is not None
        assert run.error.message == "the saw is broken"
        assert run.error.details == {"code": -32050, "data": {"tool": "saw"}}


async def test_a_thread_is_one_session_of_it(mounting: Mounting, sdk: Sdk) -> None:
    async with mounting() as agent:
        await agent.run("hello", thread="t", create_thread=True)
        run = await agent.run("recall", thread="t")
        assert run.output is not None, run.error
        expected = [] if sdk == "pypi" else ["hello", "recall"]  # that one remembers only where it is given a file
        assert json.loads(run.output["text"]) == expected


async def test_many_runs_at_once_do_not_mix(mounting: Mounting) -> None:
    async with mounting() as agent:
        runs = [await agent.begin(f"ask {number}") for number in range(3)]
        for run in reversed(runs):
            await agent.engine.questions.answer((await question(agent.engine, run)).id, {"choice": "go"})
        for run in runs:
            output = (await agent.end(run)).output
            assert output is not None
            assert output["text"].split() == ["Asking.", "selected", "go"]


@pytest.mark.parametrize("sdk", ["npm", "npm-v2"], indirect=True)
async def test_its_form_is_a_question(mounting: Mounting) -> None:
    async with mounting() as agent:
        run = await agent.begin("form")
        asked = await question(agent.engine, run)
        assert (asked.type, asked.prompt) == ("elicitation", "Where to?")
        await agent.engine.questions.answer(asked.id, {"street": "Via Roma", "number": 7})
        output = (await agent.end(run)).output
        assert output == {"text": 'accept {"street":"Via Roma","number":7}'}


@pytest.mark.parametrize("sdk", ["pypi"], indirect=True)
async def test_it_uses_files_and_terminals_here(mounting: Mounting, tmp_path: Path) -> None:
    async with mounting() as agent:
        (tmp_path / "in.txt").write_text("some text")
        run = await agent.run(f"files {tmp_path}")
        assert run.output == {"text": "0 SOME TEXT"}, run.error
        assert (tmp_path / "out.txt").read_text() == "SOME TEXT"


# -- processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sdk", ["pypi"], indirect=True)
async def test_a_session_outlives_the_process(
    sdk: Sdk, command: list[str], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_STATE", str(tmp_path / "state.jsonl"))
    async with mounted(store, sdk, command, None) as agent:
        await agent.run("hello", thread="t", create_thread=True)
        dead = await agent.run("die", thread="t")
        assert dead.error is not None
        assert dead.error.transient is True, "nobody can tell how far it came"
        again = await agent.run("recall", thread="t")
        assert again.output is not None, again.error
        assert json.loads(again.output["text"]) == ["hello", "die", "recall"]
        assert again.output["text"].count("again") == 0, "what is replayed is not said again"
    async with mounted(store, sdk, command, None) as agent:
        later = await agent.run("recall", thread="t")
        assert later.output is not None, later.error
        assert json.loads(later.output["text"])[:2] == ["hello", "die"]


async def test_its_process_ends_with_the_mount(
    sdk: Sdk, command: list[str], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    async with mounted(store, sdk, command, None) as agent:
        await agent.run("hello")
        during = marked(mark)
        assert during
    await all_gone(during)


async def test_it_is_logged_in_to(sdk: Sdk, command: list[str], store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_LOGIN", "1")
    with pytest.raises(il.InterlinguaError, match="INTERLINGUA_EDITOR_AUTH=key") as refused:
        async with mounted(store, sdk, command, None):
            pass
    assert refused.value.code == "auth_required"
    async with mounted(store, sdk, command, None, auth="key") as agent:
        assert (await agent.run("hello")).output == {"text": "heard hello"}


# -- the command line -----------------------------------------------------------------------------------------


def environment(tmp_path: Path, sdk: Sdk) -> dict[str, str]:
    version = {"INTERLINGUA_EDITOR_VERSION": "2"} if sdk == "npm-v2" else {}
    return {
        **os.environ,
        "INTERLINGUA_STORE": str(tmp_path / "cli.db"),
        "INTERLINGUA_PROJECT": "interop",
        "TERM": "dumb",
        **version,
    }


async def test_a_target_of_the_command_line_is_loaded(
    command: list[str], sdk: Sdk, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_EDITOR_VERSION", "2" if sdk == "npm-v2" else "1")
    (agent,) = await load_all(parse(f"editor+{address}" if address else f"editor:{shlex.join(command)}"))
    assert agent.card.name == NAMES[sdk]


async def test_interlingua_run_streams_its_output(
    command: list[str], sdk: Sdk, address: str | None, tmp_path: Path
) -> None:
    target = f"editor+{address}" if address else f"editor:{shlex.join(command)}"
    process = await asyncio.create_subprocess_exec(
        INTERLINGUA, "run", target, "stream 50", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment(tmp_path, sdk),
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    assert out.decode().split() == [str(number) for number in range(50)]


@pytest.mark.parametrize(("typed", "said"), [("1", "selected go"), ("2", "selected stop")])
def test_interlingua_run_asks_at_the_terminal(
    command: list[str], sdk: Sdk, tmp_path: Path, typed: str, said: str
) -> None:
    child = pexpect.spawn(
        INTERLINGUA, ["run", f"editor:{shlex.join(command)}", "ask"], env=environment(tmp_path, sdk), timeout=60,
        encoding="utf-8", dimensions=(40, 120),
    )  # fmt: skip
    try:
        child.expect_exact("Remove it")
        child.expect_exact("[1-2]")
        child.sendline(typed)
        child.expect_exact(said)
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)


def test_interlingua_run_shows_what_it_does(command: list[str], sdk: Sdk, tmp_path: Path) -> None:
    done = subprocess.run(
        [INTERLINGUA, "run", f"editor:{shlex.join(command)}", "activity"], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, env=environment(tmp_path, sdk),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Done.\n"
    for piece in ("Let me see.", "look", "Edit a file", "-old", "+new"):
        assert piece in done.stderr, piece


# -- a chain --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["npm", "npm-v2", "pypi"])
async def test_a_client_reaches_an_agent_through_our_door_and_our_mount(
    request: pytest.FixtureRequest, client: Sdk, sdk: Sdk, command: list[str], tmp_path: Path
) -> None:
    """SDK client → `interlingua stdio --as editor 'editor:…'` → SDK agent: two connections, and one conversation."""
    target = "editor:" + shlex.join(command)
    mark = uuid.uuid4().hex
    # The PyPI client passes on few variables, so they are given in the command.
    variables = [f"{MARK}={mark}", f"INTERLINGUA_EDITOR_VERSION={'2' if sdk == 'npm-v2' else '1'}"]
    door = ["env", *variables, *stdio_command(tmp_path / "store.db", target)]
    async with Sdks(request).client(client, "stdio", *door) as peer:
        told = await peer.begin()
        assert told["info" if peer.version == 2 else "agentInfo"]["name"] == NAMES[sdk]
        server: dict[str, Any] = {"name": "tools", "command": "/bin/tools", "args": [], "env": []}
        if peer.version == 2:
            server["type"] = "stdio"
        made = await peer.ask("session/new", {"cwd": str(tmp_path), "mcpServers": [server]})
        session = made["sessionId"]
        assert (await peer.turn(session, "servers"))["stopReason"] == "end_turn"
        assert json.loads(peer.text(session)) == [["tools", "/bin/tools"]]

        peer.forget()
        assert (await peer.set_option(session, "model", "big"))["model"] == "big"
        assert (await peer.turn(session, "stream 200"))["stopReason"] == "end_turn"
        assert peer.text(session) == "".join(f"{number} " for number in range(200))

        peer.forget()
        assert (await peer.turn(session, "options"))["stopReason"] == "end_turn"
        assert json.loads(peer.text(session))["model"] == "big"

        peer.forget()
        await peer.turn(session, "activity")
        assert peer.text(session, "agent_thought_chunk") == "Let me see."
        assert [call["status"] for call in peer.tool_calls()] == ["in_progress", "completed"]
        (diff,) = peer.tool_calls()[-1]["content"]
        if sdk == "npm-v2":  # a patch says less than the two texts of a diff, so it travels as it is
            assert "-old\n+new" in diff["content"]["text"]
        else:
            assert diff["type"] == "diff"
            assert "new" in json.dumps(diff)

        peer.forget()
        ended = await peer.turn_begun(session, "ask")
        asked = await peer.request("session/request_permission")
        assert [option["kind"] for option in asked["params"]["options"]] == ["allow_once", "reject_once"]
        chosen = asked["params"]["options"][1]["optionId"]
        await peer.respond(asked, {"outcome": {"outcome": "selected", "optionId": chosen}})
        assert (await ended())["stopReason"] == "end_turn"
        assert peer.text(session).split() == ["Asking.", "selected", "stop"]

        peer.forget()
        ended = await peer.turn_begun(session, "wait")
        await peer.update("agent_message_chunk")
        await peer.notify("session/cancel", {"sessionId": session})
        assert (await ended())["stopReason"] == "cancelled"
        assert peer.text(session) == "Waiting. Stopped."

        peer.forget()
        failed = await peer.turn(session, "fail")
        assert failed["stopReason"] == "error"
        assert "the saw is broken" in failed["error"]["message"]
        during = marked(mark)
        assert len(during) >= 2, "ours and the agent"
    await all_gone(during)


@pytest.mark.parametrize("sdk", ["pypi"], indirect=True)
@pytest.mark.parametrize("client", ["npm", "pypi"])
async def test_an_agent_uses_the_files_and_terminals_of_an_editor_far_away(
    request: pytest.FixtureRequest, client: Sdk, command: list[str], tmp_path: Path
) -> None:
    door = stdio_command(tmp_path / "store.db", "editor:" + shlex.join(command))
    async with Sdks(request).client(client, "stdio", *door) as peer:
        await peer.begin()
        written: list[Any] = []
        peer.on("fs/read_text_file", lambda params: {"content": f"not saved yet: {params['path']}"})
        peer.on("fs/write_text_file", lambda params: written.append((params["path"], params["content"])) or {})
        peer.on("terminal/create", lambda params: {"terminalId": f"{params['command']} {params['args']}"})
        peer.on("terminal/wait_for_exit", lambda params: {"exitCode": 4})
        peer.on("terminal/output", lambda params: {"output": params["terminalId"], "truncated": False})
        peer.on("terminal/release", lambda params: {})
        session = await peer.new_session("/workspace")
        assert (await peer.turn(session, "files /workspace"))["stopReason"] == "end_turn"
        assert written == [("/workspace/out.txt", "NOT SAVED YET: /WORKSPACE/IN.TXT")]
        assert peer.text(session) == "4 cat ['out.txt']"


@pytest.mark.parametrize("sdk", ["pypi"], indirect=True)
async def test_what_is_denied_to_an_agent_is_denied_in_an_editor_too(
    request: pytest.FixtureRequest, command: list[str], tmp_path: Path
) -> None:
    door = stdio_command(tmp_path / "store.db", "editor:" + shlex.join(command))
    async with Sdks(request).client("npm", "stdio", "env", "INTERLINGUA_EDITOR_READ=deny", *door) as peer:
        await peer.begin()
        peer.on("fs/read_text_file", lambda params: {"content": "a secret"})
        failed = await peer.turn(await peer.new_session("/workspace"), "files /workspace")
        assert failed["stopReason"] == "error"
        assert not [message for message in peer.messages if message.get("method") == "fs/read_text_file"]
