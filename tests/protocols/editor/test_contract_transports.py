"""One protocol over any transport: our own three and one that is made here, with the same conversation on each."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from interlingua.engine.engine import Engine
from interlingua.protocols.editor.door.connection import EditorConnection
from interlingua.protocols.editor.door.door import EditorDoor
from interlingua.protocols.editor.mount.http_channel import open_remote
from interlingua.server.app import ServeSettings, serving
from interlingua.transports.channel import Channel
from interlingua.transports.jsonrpc.connection import Connection
from interlingua.transports.jsonrpc.core import INVALID_REQUEST, PARSE_ERROR, Call, Notice, RpcError
from interlingua.transports.process.pipes import PipeChannel
from tests.kit.clients.editor import check_frame, in_process, selected, stdio
from tests.kit.engines import QUICK

from . import agents

DOCS = Path(__file__).parents[3] / "docs"
SOON = 20.0


class Queues:
    """A transport of our own: two queues in memory. `turned` is the other end."""

    def __init__(self, incoming: asyncio.Queue[bytes] | None = None, outgoing: asyncio.Queue[bytes] | None = None):
        self._in = incoming or asyncio.Queue()
        self._out = outgoing or asyncio.Queue()

    def turned(self) -> Queues:
        return Queues(self._out, self._in)

    async def receive(self) -> list[bytes]:
        frame = await self._in.get()
        return [frame] if frame else []

    def send(self, frame: bytes) -> None:
        self._out.put_nowait(frame)

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        self._out.put_nowait(b"")

    async def next(self) -> Any:
        """The next message, at the end where no connection reads."""
        async with asyncio.timeout(SOON):
            return json.loads(await self._in.get())

    def say(self, message: Any) -> None:
        self.send(message if isinstance(message, bytes) else json.dumps(message).encode())


class Editor:
    """A client that allows everything, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def called(self, call: Call) -> Any:
        self.heard.append([call.method, call.params])
        return selected(call.params["options"][0]["optionId"])

    def noticed(self, notice: Notice) -> None:
        self.heard.append([notice.method, notice.params])

    def failure(self, error: Exception) -> RpcError:
        raise error


@contextlib.asynccontextmanager
async def served(engine: Engine, channel: Channel) -> AsyncIterator[EditorConnection]:
    """The door over a channel, until the client hangs up."""
    connection = EditorDoor(engine).connect(channel)
    serving_ = asyncio.create_task(connection.rpc.run())
    try:
        yield connection
    finally:
        async with asyncio.timeout(SOON):
            await serving_
        connection.gone()


@contextlib.asynccontextmanager
async def channel_over(kind: str, store: Path) -> AsyncIterator[Channel]:
    """The client's end of a transport, with the door and its agents at the other."""
    if kind in ("http", "ws"):
        settings = ServeSettings(port=0, engine=QUICK)
        async with serving(store, [agents.careful], settings) as server:
            yield await open_remote(server.address.replace("http", kind) + "/editor", {})
        return
    async with Engine(store, agents=[agents.careful], settings=QUICK) as engine:
        if kind == "queues":
            ours: Any = Queues()
            theirs: Any = ours.turned()
        else:
            (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
            ours, theirs = PipeChannel(from_read, to_write), PipeChannel(to_read, from_write)
        async with served(engine, theirs):
            yield ours


async def conversation(channel: Channel) -> list[Any]:
    """What a client hears when it does the usual, with whatever differs from time to time replaced."""
    editor = Editor()
    connection = Connection(channel, editor)
    running = asyncio.ensure_future(connection.run())
    heard = editor.heard
    try:
        async with asyncio.timeout(SOON):
            heard.append(await connection.request("initialize", {"protocolVersion": 1}))
            made = await connection.request("session/new", {"cwd": "/tmp", "mcpServers": []})
            heard.append(made)
            session = made["sessionId"]
            said = {"sessionId": session, "prompt": [{"type": "text", "text": "it"}]}
            heard.append(await connection.request("session/prompt", said))
            for method, params in (
                ("session/set_mode", {"sessionId": session, "modeId": "none"}),
                ("session/list", {}),
                ("session/close", {"sessionId": session}),
                ("session/close", {"sessionId": session}),
                ("_unknown", {}),
            ):
                try:
                    heard.append(await connection.request(method, params))
                except RpcError as error:
                    heard.append(error.plain())
    finally:
        await connection.close()
        await running
    return normal(heard)


def normal(heard: list[Any]) -> list[Any]:
    """Without times; and with ids numbered in the order in which they appear."""
    text = re.sub(r'"\d{4}-\d\d-\d\dT[^"]*Z"', '"then"', json.dumps(heard))
    names: dict[str, str] = {}
    uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
    return list(json.loads(uuid.sub(lambda m: names.setdefault(m[0], f"id{len(names)}"), text)))


async def test_the_same_conversation_is_the_same_over_every_transport(tmp_path: Path) -> None:
    heard: dict[str, list[Any]] = {}
    for kind in ("queues", "pipes", "ws", "http"):
        async with channel_over(kind, tmp_path / f"{kind}.db") as channel:
            heard[kind] = await conversation(channel)
    assert any("session/request_permission" in entry for entry in heard["queues"] if isinstance(entry, list))
    assert any("end_turn" in json.dumps(entry) for entry in heard["queues"])
    for kind in ("pipes", "ws", "http"):
        assert heard[kind] == heard["queues"], kind


async def test_a_transport_of_ones_own_carries_the_messages_as_they_are(store: Path) -> None:
    ours = Queues()
    async with Engine(store, agents=[agents.echo]) as engine, served(engine, ours.turned()):
        ours.say({"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": {"protocolVersion": 2}})
        answer = await ours.next()
        check_frame(answer)
        assert (answer["id"], answer["result"]["protocolVersion"]) == ("a", 2)
        ours.say(b"{")
        assert (await ours.next())["error"]["code"] == PARSE_ERROR
        ours.say([{"jsonrpc": "2.0", "id": 1, "method": "session/list"}, 7])
        answers = await ours.next()
        check_frame(answers)
        assert sorted(str(one["id"]) for one in answers) == ["1", "None"]
        ours.say({"jsonrpc": "2.0", "method": "_unknown"})
        ours.say({"jsonrpc": "2.0", "id": 5, "result": {}})
        ours.say({"jsonrpc": "2.0", "id": 2, "method": "session/list"})
        assert (await ours.next())["id"] == 2, "neither a notification nor a response is answered"
        await ours.close()


async def test_a_transport_of_ones_own_keeps_the_lifecycle(store: Path) -> None:
    ours = Queues()
    new = {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/tmp", "mcpServers": []}}
    initialize = {"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {"protocolVersion": 1}}
    async with Engine(store, agents=[agents.echo]) as engine:
        async with served(engine, ours.turned()) as connection:
            ours.say(new)
            assert (await ours.next())["error"]["code"] == INVALID_REQUEST, "nothing comes before initialize"
            ours.say(initialize)
            assert (await ours.next())["result"]["protocolVersion"] == 1
            ours.say(initialize)
            assert (await ours.next())["error"]["code"] == INVALID_REQUEST, "and it comes once"
            ours.say(
                {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": {"sessionId": "x", "prompt": []}}
            )
            assert "error" in await ours.next(), "a prompt needs a session"
            ours.say(new)
            session = (await ours.next())["result"]["sessionId"]
            assert engine.workspaces.find(session) is not None
            await ours.close()
        assert connection.rpc.lost, "a client that has gone ends its connection"
        assert engine.workspaces.find(session) is None
        assert (await engine.threads.get(session)).id == session, "and its session stays"


# -- how it is documented -------------------------------------------------------------------------------------


def section(title: str) -> str:
    page = (DOCS / "editors.md").read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/editors.md has no section {title!r}"
    return found[1]


async def test_the_documented_way_to_establish_a_connection_over_a_transport_of_ones_own_works(store: Path) -> None:
    (code,) = re.findall(r"```python[^\n]*\n(.*?)```", section("A transport of your own"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/editors.md", "exec"), names)
    ours = Queues()
    async with Engine(store, agents=[agents.echo]) as engine:
        running = asyncio.create_task(names["serve"](engine, ours.turned()))
        ours.say({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}})
        assert (await ours.next())["result"]["agentInfo"]["name"] == "echo"
        await ours.close()
        async with asyncio.timeout(SOON):
            await running


def test_how_messages_are_exchanged_on_a_transport_of_ones_own_is_documented() -> None:
    methods = {name for name, _ in inspect.getmembers(Channel, inspect.isfunction) if not name.startswith("_")}
    told = section("A transport of your own")
    for name in ("receive", "send", "drain", "close"):
        assert name in methods
        assert f"`{name}`" in told
        assert inspect.getdoc(getattr(Channel, name)), f"{name} does not say what it owes"
    assert "whole messages in order" in told
    contract = inspect.getdoc(inspect.getmodule(Channel)) or ""
    for promise in ("whole message", "in the order", "never waits", "once the peer has gone"):
        assert promise in contract


# -- bytes ----------------------------------------------------------------------------------------------------


async def test_messages_are_written_in_utf_8_and_read_in_nothing_else(tmp_path: Path) -> None:
    text = "grüße \u2028 \U0001f600 \u00e9"
    pieces: list[bytes] = []
    async with stdio(tmp_path, Path(agents.__file__)) as client:
        reader = client._reader
        read = reader.read

        async def reads(size: int = -1) -> bytes:
            data = await read(size)
            pieces.append(data)
            return data

        reader.read = reads  # type: ignore[method-assign]
        initialize = {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": {"protocolVersion": 1}}
        for wrong in ("utf-16", "utf-16-le", "utf-32-be", "utf-8-sig"):
            before = len(client.messages)
            line = json.dumps(initialize).encode(wrong).replace(b"\n", b"") + b"\n"
            await client.raw(line)
            refused = await client.wait_for(lambda m: "id" in m, after=before)
            assert (refused["id"], refused["error"]["code"]) == (None, PARSE_ERROR), wrong
        before = len(client.messages)
        await client.raw(b'{"jsonrpc":"2.0","id":"l","method":"gr\xfc\xdfe"}\n')  # Latin-1
        refused = await client.wait_for(lambda m: "id" in m, after=before)
        assert (refused["id"], refused["error"]["code"]) == ("l", INVALID_REQUEST)
        assert "gr\ufffd\ufffde" in refused["error"]["message"]
        await client.raw(json.dumps({**initialize, "id": text}, ensure_ascii=False).encode("utf-8") + b"\n")
        assert (await client.answer(text))["id"] == text
        session = await client.new_session()
        await client.prompt(session, *[text])
        assert client.text(session).split() == text.split()
        written = b"".join(pieces)
        assert written.decode("utf-8", "strict")
        assert "grüße".encode() in written, "as itself, not escaped"


async def test_every_message_in_both_directions_is_json_rpc_2(store: Path) -> None:
    """The client checks each line that comes: version, members, kinds. Here all kinds are seen to come."""
    async with in_process(store, agents.careful) as client:
        await client.initialize()
        session = await client.new_session()
        client.allow()
        await client.prompt(session, "it")
        await client.call("_nothing")
        kinds = set()
        for message in client.messages:
            assert message["jsonrpc"] == "2.0"
            if "method" in message:
                kinds.add("request" if "id" in message else "notification")
            else:
                kinds.add("error" if "error" in message else "result")
        assert kinds == {"request", "notification", "result", "error"}
