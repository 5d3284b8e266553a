"""The client side, rule by rule: what a mount of ours writes to an agent, and what it takes from one."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.engine import Engine
from interlingua.model.errors import InvalidRequest
from interlingua.model.events import Plan, ToolCall, Warned
from interlingua.protocols.editor.mount.rpc_client import Peer, Place
from interlingua.transports.jsonrpc.batch import LIFECYCLE
from interlingua.transports.jsonrpc.core import RpcError
from tests.kit.clients.editor import check_frame
from tests.kit.engines import bodies, finish, question, submit
from tests.kit.mounts.editor import AGENT, FAKE, PERMISSION, act, mounted, script, update
from tests.kit.mounts.watch import seen

from . import agents
from .test_contract_transports import Queues, served

METHODS = [{"id": "key", "name": "A key"}]


RECORDER = """
import runpy, sys

class Recorded:
    def __init__(self, stream, path):
        self.stream, self.file = stream, open(path, "ab", 0)

    def __iter__(self):
        for line in self.stream:
            self.file.write(line)
            if not line.startswith(b"["):  # the agent itself knows no batches
                yield line.decode()

sys.stdin = Recorded(sys.stdin.buffer, sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def recorded(path: Path, given: dict[str, Any]) -> str:
    """The command of a fake agent, of whose input everything is written down."""
    return shlex.join([sys.executable, "-c", RECORDER, str(path), str(FAKE), json.dumps(given)])


async def everything(store: Path, path: Path) -> list[bytes]:
    """What a client writes when it does all that it can; with an agent that does not behave. Line by line."""
    given = {"state": str(path.parent / "state"), "noise": ["Welcome!", "{", "[]", "null"]}
    line = recorded(path, {**given, "init": {"authMethods": METHODS}})
    async with mounted(store, line=line, auth="key", directory=str(path.parent)) as (eng, _):
        odd = [
            "raw not a message", "raw ", 'raw {"jsonrpc": "2.0"', 'raw {"jsonrpc":"2.0","id":null,"method":"x"}',
            'raw {"jsonrpc":"2.0","id":"q","method":"unknown/method"}', 'raw {"jsonrpc":"2.0","id":99,"result":{}}',
            'raw {"jsonrpc":"2.0","error":{"code":-32700,"message":"?"}}', 'raw [{"jsonrpc":"2.0"},1]',
            'raw {"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":[]}',
        ]  # fmt: skip
        await finish(
            eng, AGENT,
            script(*odd, act("call", "fs/read_text_file", path="/none"), 'say a "quoted" \u2028 ünï'),
            thread="t", create_thread=True,
        )  # fmt: skip
        asking = await submit(eng, AGENT, script(PERMISSION))
        await eng.questions.answer((await question(eng, asking.id)).id, {"choice": "no"})
        await eng.runs.wait(asking.id, timeout=20)
        stopped = await submit(eng, AGENT, script("say begun", "wait"))
        await seen(eng, stopped.id, "delta")
        await eng.runs.cancel(stopped.id)
        await eng.runs.wait(stopped.id, timeout=20)
        await finish(eng, AGENT, script("die"), thread="t")
        await finish(eng, AGENT, script("say again"), thread="t")
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return data[:-1].split(b"\n")


async def test_a_client_writes_nothing_but_valid_messages_to_the_agent(store: Path, tmp_path: Path) -> None:
    lines = await everything(store, tmp_path / "stdin")
    kinds = set()
    for line in lines:
        message = json.loads(line.decode("utf-8", "strict"))
        check_frame(message)
        if isinstance(message, list):  # the answer to a batch of the agent's
            kinds.add("array")
            continue
        kinds.add("call" if {"method", "id"} <= set(message) else "note" if "method" in message else "answer")
        if "error" in message and message["id"] is None:
            assert message["error"]["code"] in (-32700, -32600)
    assert kinds == {"call", "note", "answer", "array"}


@pytest.mark.parametrize("method", ["initialize", "authenticate", "session/new", "session/load", "session/prompt"])
async def test_a_client_sends_what_changes_the_lifecycle_as_a_message_of_its_own(
    store: Path, tmp_path: Path, method: str
) -> None:
    frames = [json.loads(line) for line in await everything(store, tmp_path / "stdin")]
    assert [frame for frame in frames if isinstance(frame, dict) and frame.get("method") == method]
    calls = [entry for frame in frames if isinstance(frame, list) for entry in frame if "method" in entry]
    assert calls == [], "it sends no batches by itself"


@pytest.mark.parametrize("version", [1, 2])
async def test_a_client_sends_batches_only_when_asked_and_only_in_version_2(store: Path, version: int) -> None:
    ours = Queues()
    async with Engine(store, agents=[agents.echo]) as engine, served(engine, ours.turned()):
        peer = Peer(ours, Servants())
        running = asyncio.create_task(peer.run())
        await peer.open(version, {"elicitation": {"form": {}}}, auth=None, timeout=20)
        assert peer.version == version
        await peer.new(Place("/tmp"))
        wanted = [("session/list", {}, True), ("_news", {}, False), ("_unknown", {}, True)]
        if version == 1:
            with pytest.raises(InvalidRequest, match="version 1 was agreed on"):
                await peer.batch(wanted)
        else:
            listed, failed = await peer.batch(wanted, timeout=20)
            assert len(listed["sessions"]) == 1
            assert isinstance(failed, RpcError)
            with pytest.raises(InvalidRequest, match="at least one"):
                await peer.batch([])
            for method in LIFECYCLE:
                with pytest.raises(InvalidRequest, match="goes alone"):
                    await peer.batch([("session/list", {}, True), (method, {}, True)])
        await peer.rpc.close()
        await running


class Servants:
    """Offers no files and no terminals."""

    def __call__(self, place: Place) -> Servants:
        return self

    async def serve(self, method: str, params: dict[str, Any]) -> Any:
        raise RpcError(-32601, method)

    async def close(self) -> None:
        pass


async def test_updates_in_a_batch_of_the_agents_are_taken(store: Path) -> None:
    async with mounted(store) as (eng, _):
        first = await finish(eng, AGENT, script("seen"), thread="t", create_thread=True)
        assert first.output is not None
        asked = json.loads(first.output["text"])
        session = next(params["sessionId"] for method, params in asked if method == "session/prompt")
        pieces = [
            {
                "jsonrpc": "2.0", "method": "session/update",
                "params": {"sessionId": session, "update": {
                    "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}},
            }
            for text in ("one ", "two ", "three ")
        ]  # fmt: skip
        run = await finish(eng, AGENT, script("raw " + json.dumps(pieces), "say four"), thread="t")
        assert run.output == {"text": "one two three four"}


async def test_what_an_agent_writes_to_stderr_may_be_ignored(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a log that takes it nothing is kept, and the agent is not held up by a pipe that is full."""
    caplog.set_level(logging.WARNING, "interlingua.editor.agent")
    async with mounted(store, {"stderr": 1000}) as (eng, _):
        assert (await finish(eng, AGENT, script("say here"))).output == {"text": "here"}
    assert "of the log" not in caplog.text


async def test_a_log_line_about_a_message_is_noise_and_is_not_answered(store: Path, tmp_path: Path) -> None:
    lines = ['DEBUG sent {"jsonrpc": "2.0", "id": 1, "result": {}}', "> [Object: null]", "\u001b[32m{ok}\u001b[0m"]
    path = tmp_path / "stdin"
    async with mounted(store, line=recorded(path, {"noise": lines})) as (eng, _):
        run = await finish(eng, AGENT, script("say fine"))
        assert run.output == {"text": "fine"}
        (warning,) = await bodies(eng, run.id, Warned)
        assert warning.details == {"lines": 3, "first": lines[0]}
    written = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert not [message for message in written if "error" in message]


async def test_updates_of_kinds_to_come_and_of_no_kind_are_skipped(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(
            eng, AGENT,
            script(
                "say a", update("of_the_future", content={"type": "text", "text": "x"}),
                act("update", content={}), "raw " + json.dumps({"jsonrpc": "2.0", "method": "session/update"}),
                act("update", sessionUpdate="agent_message_chunk"), act("update", sessionUpdate="plan", entries=5),
                act("update", sessionUpdate="tool_call"), "notify _vendor/news", "say b",
            ),
        )  # fmt: skip
        assert run.status is il.Status.SUCCEEDED, run.error
        assert run.output == {"text": "ab"}


async def test_what_the_examples_of_the_specification_write_is_understood(store: Path) -> None:
    """A mode under the name modeId, and a bare text block as the content of a tool call."""
    modes = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]}
    async with mounted(store, {"new": {"modes": modes}}) as (eng, _):
        ask = act(
            "call", "session/request_permission",
            toolCall={"toolCallId": "t", "title": "Switch", "content": [{"type": "text", "text": "the plan"}]},
            options=[{"optionId": "no", "name": "No", "kind": "reject_once"}],
        )  # fmt: skip
        run = await submit(
            eng, AGENT, script(act("update", sessionUpdate="current_mode_update", modeId="code"), ask), thread="t",
            create_thread=True, config={"mode": "ask"},
        )  # fmt: skip
        asked = await question(eng, run.id)
        assert asked.payload.get("content") == "the plan"
        await eng.questions.answer(asked.id, {"choice": "no"})
        await eng.runs.wait(run.id, timeout=20)
        again = await finish(eng, AGENT, script("seen"), thread="t", config={"mode": "ask"})
        assert again.output is not None
        sets = [params["modeId"] for method, params in json.loads(again.output["text"]) if method == "session/set_mode"]
        assert sets[-1] == "ask", "it had changed its mode by itself, and is told again"


async def test_a_plan_replaces_the_one_before_and_tool_calls_keep_what_is_not_said(store: Path) -> None:
    entries = [{"content": "look", "priority": "high", "status": "pending"}]
    async with mounted(store) as (eng, _):
        run = await finish(
            eng, AGENT,
            script(
                update("plan", entries=entries), update("plan", entries=[{**entries[0], "status": "completed"}]),
                update("tool_call", toolCallId="t", title="Edit", status="pending"),
                update("tool_call_update", toolCallId="t", status="completed"),
            ),
        )  # fmt: skip
        plans = await bodies(eng, run.id, Plan)
        assert [[entry.status for entry in plan.entries] for plan in plans] == [["pending"], ["completed"]]
        first, second = await bodies(eng, run.id, ToolCall)
        assert (first.title, second.title) == ("Edit", None)
