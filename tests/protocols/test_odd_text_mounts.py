"""Text that is not clean, from every kind of mounted server over every transport: split characters are joined, a result
that is fine stays one, and an answer that cannot be read ends its run at once."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.events import OutputDelta, Thought
from interlingua.model.whole_text import has_halves
from interlingua.protocols.peer.relay.app import RelaySettings, relay_app
from interlingua.protocols.peer.wire import links
from interlingua.protocols.targets import parse
from interlingua.server.app import ServeSettings, serving
from interlingua.server.loading.target import load_all
from tests.kit.clients.rpc import INTERLINGUA
from tests.kit.engines import QUICK, engine, finish, log
from tests.kit.peer_nodes import listening, running_node
from tests.kit.wait_for import PATIENCE

from . import tampering

SOURCE = '''
from typing import Any

import interlingua as il


@il.agent
async def odd(text: str, ctx: il.Context[None, None]):
    """Says what it is told, in pieces."""
    for number, piece in enumerate(text.split("|")):
        await ctx.step(f"pause {number}", lambda: None)
        yield piece


@il.agent
async def thinker(text: str, ctx: il.Context[None, None]) -> str:
    """Thinks what it is told, in pieces."""
    for number, piece in enumerate(text.split("|")):
        await ctx.step(f"pause {number}", lambda: None)
        await ctx.thought(piece, id="t")
    return "thought"


@il.agent
async def counts(text: str) -> dict[str, Any]:
    """Gives back what it is told as a value, beside a number of 70 bits."""
    return {"n": text, "large": 2**70}


@il.agent
async def measures(text: str) -> str:
    """Says how long it is, what it is told."""
    return str(len(text))
'''


def agents() -> list[il.Agent[..., Any]]:
    made: dict[str, Any] = {}
    exec(SOURCE, made)
    return [made["odd"], made["thinker"], made["counts"], made["measures"]]


def _address(scheme: str, path: str) -> Any:
    @contextlib.asynccontextmanager
    async def made(folder: Path) -> AsyncIterator[str]:
        async with (
            serving(folder / "there.db", agents(), ServeSettings(port=0, engine=QUICK)) as server,
            tampering.proxy(server.address.removeprefix("http://")) as address,
        ):
            yield f"{scheme}://{address}/{path}"

    return made


def _process(kind: str) -> Any:
    @contextlib.asynccontextmanager
    async def made(folder: Path) -> AsyncIterator[str]:
        file = folder / "agents.py"
        file.write_text(SOURCE)
        stdio = [INTERLINGUA, "stdio", "--as", kind]
        command = [
            sys.executable,
            str(Path(tampering.__file__)),
            *stdio,
            *([f"{file}:AGENT"] if kind == "cap" else [str(file)]),
        ]
        yield f"{kind}:{shlex.join(command)}"

    return made


def _node(scheme: str) -> Any:
    @contextlib.asynccontextmanager
    async def made(folder: Path) -> AsyncIterator[str]:
        tcp = {"tcp_port": 0} if scheme == "tcp" else {}
        async with running_node("There", agents=agents(), store=folder / "there.db", **tcp) as node:
            link = str(node.node.tcp_link if scheme == "tcp" else node.node.link)
            port = links.parse(link).port
            async with tampering.proxy(f"127.0.0.1:{port}") as address:
                yield link.replace(f"127.0.0.1:{port}", address)

    return made


@contextlib.asynccontextmanager
async def _relay(folder: Path) -> AsyncIterator[str]:
    """A node at a relay that is odd itself: between the two, the relay reads all that it carries."""
    async with (
        listening(relay_app(RelaySettings())) as base,
        tampering.proxy(base.removeprefix("http://")) as address,
        running_node("There", agents=agents(), store=folder / "there.db", relay=f"acp+ws://{address}") as node,
    ):
        assert node.node.relay is not None
        await node.node.relay.ready()
        yield str(node.node.relay_link(node.node.token))


SERVERS: dict[str, Any] = {
    "connect": _address("connect+http", "connect"),
    "mcp, HTTP": _address("mcp+http", "mcp"),
    "mcp, SSE": _address("mcp+http", "mcp/sse"),
    "mcp, stdio": _process("mcp"),
    "editor, HTTP": _address("editor+http", "editor"),
    "editor, WebSocket": _address("editor+ws", "editor"),
    "editor, stdio": _process("editor"),
    "peer, HTTP": _address("peer+http", "peer"),
    "peer, WebSocket": _node("acp"),
    "peer, TCP": _node("tcp"),
    "peer, relay": _relay,
    "cap, HTTP": _address("cap+http", "cap"),
    "cap, stdio": _process("cap"),
}
DIRECT = [server for server in SERVERS if "relay" not in server]  # what a relay cannot read does not come through it
TOLD = {
    "a pair in two pieces": ("a@HALF1|@HALF2b", "a\U0001f600b"),
    "a first half at the end of a piece": ("a@HALF1|b", "a\ufffdb"),
    "a first half at the end": ("a|b@HALF1", "ab\ufffd"),
    "a second half": ("a|@HALF2b", "a\ufffdb"),
    "invalid UTF-8": ("a @BYTES b", "a @BYT\ufffd\ufffd b"),
}


@contextlib.asynccontextmanager
async def mounted(store: Path, folder: Path, server: str, agent: str) -> AsyncIterator[tuple[il.Engine, str]]:
    """An engine with the agents of that server, and what the one that is meant is called."""
    folder.mkdir()
    async with SERVERS[server](folder) as target:
        found = await load_all(parse(target.replace("AGENT", agent)))
        try:
            async with engine(store, *found) as eng:
                names = [one.card.name for one in found]
                yield eng, agent if agent in names else names[0]
        finally:
            for let_go in {one.let_go for one in found if one.let_go is not None}:
                await let_go()


@pytest.mark.parametrize("server", SERVERS)
async def test_what_a_server_says_in_halves_is_shown_in_whole_characters(
    store: Path, tmp_path: Path, server: str
) -> None:
    async with mounted(store, tmp_path / "there", server, "odd") as (eng, name):
        for case, (text, said) in TOLD.items():
            if "WebSocket" in server and "UTF-8" in case:
                continue  # such a frame ends the connection, by the rules of WebSockets
            if "relay" in server and "pair" in case:
                continue  # frames travel as texts within a text, which has whole characters
            run = await finish(eng, name, {"text": text})
            assert (run.error, run.output) == (None, {"text": said}), case
            joined, pieces = Joiner(), 0
            for event in await log(eng, run.id):
                if isinstance(event.body, OutputDelta):
                    assert not has_halves(event.body.delta)
                    joined.add(event.body.delta)
                    pieces += 1
            assert not pieces or joined.value == {"text": said}, case
            assert await eng.runs.verify(run.id) is None


@pytest.mark.parametrize("server", [server for server in SERVERS if not server.startswith("peer")])
async def test_thoughts_in_halves_are_shown_in_whole_characters(store: Path, tmp_path: Path, server: str) -> None:
    async with mounted(store, tmp_path / "there", server, "thinker") as (eng, name):
        if name != "thinker":
            pytest.skip("one agent is behind this")
        run = await finish(eng, name, {"text": "a@HALF1|@HALF2b"})
        assert run.error is None
        thoughts = [event.body.text for event in await log(eng, run.id) if isinstance(event.body, Thought)]
        assert "".join(thoughts) in ("a\U0001f600b", "")
        assert not has_halves(thoughts)


@pytest.mark.parametrize("server", [server for server in DIRECT if not server.startswith("editor")])
async def test_numbers_that_json_does_not_have_fail_no_run_whose_result_is_fine(
    store: Path, tmp_path: Path, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with mounted(store, tmp_path / "there", server, "counts") as (eng, name):
        for word in ("@NAN-------", "@INFINITY--", "@LARGE-----"):
            run = await finish(eng, name, {"text": word})
            assert (run.error, run.output) == (None, {"n": None, "large": 2**70}), word
    assert "NaN became null" in caplog.text


@pytest.mark.parametrize("server", DIRECT)
async def test_an_answer_that_cannot_be_read_ends_its_run_at_once_and_the_next_one_works(
    store: Path, tmp_path: Path, server: str
) -> None:
    agent = "counts" if not server.startswith("editor") else "odd"
    async with mounted(store, tmp_path / "there", server, agent) as (eng, name):
        run = await finish(eng, name, {"text": "@BREAK"})
        if server.startswith("editor"):
            # What cannot be read there is a piece of the stream; the answer tells only that the turn has ended.
            assert run.status.final
        else:
            assert run.error is not None, run
            assert "cannot be read: " in run.error.message
            assert " at byte " in run.error.message
        fine = await finish(eng, name, {"text": "fine"})
        assert fine.error is None


CODER = r"""
import json, sys

HALVES = (
    r'{"toolCallId":"t","title":"cut \ud83d",'
    r'"content":[{"type":"content","content":{"type":"text","text":"x\ude00"}}]'
)
NEWS = '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":%s}}'
OPTIONS = (
    r'[{"optionId":"y","name":"Allow \ud83d","kind":"allow_once"},'
    r'{"optionId":"n","name":"No","kind":"reject_once"}]'
)

def say(line):
    print(line, flush=True)

for line in sys.stdin:
    told = json.loads(line)
    id_, method = told.get("id"), told.get("method")
    if method == "initialize":
        say('{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]}}' % id_)
    elif method == "session/new":
        say('{"jsonrpc":"2.0","id":%s,"result":{"sessionId":"s"}}' % id_)
    elif method == "session/prompt":
        prompt = id_
        say(NEWS % ('{"sessionUpdate":"tool_call",' + HALVES[1:] + "}"))
        say('{"jsonrpc":"2.0","id":77,"method":"session/request_permission","params":{"sessionId":"s","toolCall":'
            '{"toolCallId":"t"},"options":%s}}' % OPTIONS)
    elif id_ == 77:
        said = json.dumps("chosen: " + told["result"]["outcome"]["optionId"])
        say(NEWS % '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%s}}' % said)
        say('{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}' % prompt)
"""


async def test_a_permission_for_a_tool_call_that_was_told_in_halves_is_asked(store: Path, tmp_path: Path) -> None:
    """The question shows what was told of the call before: nothing joins its halves."""
    program = tmp_path / "coder.py"
    program.write_text(CODER)
    [agent] = await load_all(parse(f"editor:{shlex.join([sys.executable, str(program)])}"))
    try:
        async with engine(store, agent) as eng:
            run = await eng.runs.submit(il.RunRequest(agent.card.name, None, {"text": "go"}))
            waiting = await eng.runs.wait(run.id, settled=True, timeout=PATIENCE)
            assert waiting.status is il.Status.WAITING, waiting
            [question] = waiting.questions
            assert "cut \ufffd" in str(question.prompt) + str(question.payload)
            assert [option.label for option in question.options] == ["Allow \ufffd", "No"]
            await eng.questions.answer(question.id, {"choice": "y"})
            ended = await eng.runs.wait(run.id, timeout=PATIENCE)
            assert (ended.error, ended.output) == (None, {"text": "chosen: y"})
    finally:
        if agent.let_go is not None:
            await agent.let_go()
