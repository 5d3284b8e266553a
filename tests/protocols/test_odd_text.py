"""Text that is not clean, at every door over every transport: what can be read is, and what cannot is answered with its
id and with what is wrong. Connections and processes are real; afterwards each still serves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.asyncio.client import connect

import interlingua as il
from interlingua.protocols.cap.door.stdio import StdioDoor
from interlingua.protocols.peer.bindings.stdio import serve_pipes
from interlingua.protocols.peer.relay.app import RelaySettings, relay_app
from interlingua.protocols.peer.wire import links
from interlingua.server.app import ServeSettings, serving
from interlingua.transports.process.pipes import PipeChannel
from tests.kit.clients import editor as editor_common
from tests.kit.clients import mcp as mcp_common
from tests.kit.engines import QUICK, engine
from tests.kit.peer_nodes import listening, running_node
from tests.kit.wait_for import PATIENCE

from .editor import test_web as editor_web
from .peer.reference import Reference


@il.agent
async def echo(text: str) -> AsyncIterator[str]:
    """Repeats what it hears."""
    yield text


class Answer(msgspec.Struct):
    """What a door says to one message."""

    text: str | None = None
    error: str | None = None
    id: Any = None  # of an error: the one that it carries


TAKEN = {
    "a first half": (rb'"a\ud83d"', "a\ufffd"),
    "a second half": (rb'"\ude00a"', "\ufffda"),
    "a pair": (rb'"\ud83d\ude00"', "\U0001f600"),
    "halves in the wrong order": (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
    "invalid UTF-8": (b'"a\xffb"', "a\ufffdb"),
    "half of it in UTF-8": (b'"a\xf0\x9f"', "a\ufffd"),
    "both": (b'"a\\ud83d\xc3"', "a\ufffd\ufffd"),
}
REFUSED = {
    "NaN": (b'"a","x":NaN', "NaN is no number of JSON"),
    "Infinity": (b'"a","x":-Infinity', "-Infinity is no number of JSON"),
    "a number beyond doubles": (b'"a","x":1e999', "1e999 is no number of JSON"),
    "a word": (b'"a","x":nope', "is not JSON: expecting value at byte "),
    "a control character": (b'"a\tb"', "is not JSON: invalid control character at byte "),
    "nesting": (b'"a","x":' + b"[" * 20_000 + b"]" * 20_000, "nested too deeply"),
}
Talk = Callable[[bytes, str], Awaitable[Answer]]
"""Sends a message that says this literal, with this id, and gives what it is answered."""


def filled(template: str, said: bytes, id_: str) -> bytes:
    return template.replace("ID", id_).encode().replace(b'"TEXT"', said)


async def posted(http: httpx2.AsyncClient, path: str, body: bytes, **headers: str) -> httpx2.Response:
    return await http.post(path, content=body, headers={"content-type": "application/json", **headers})


@contextlib.asynccontextmanager
async def served(store: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving(store, [echo], ServeSettings(port=0, engine=QUICK)) as server,
        httpx2.AsyncClient(base_url=server.address, timeout=PATIENCE) as http,
    ):
        yield http


def events_of(body: str) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith("data:") and line[5:].strip()]


@contextlib.asynccontextmanager
async def connect_wait(store: Path) -> AsyncIterator[Talk]:
    async with served(store) as http:

        async def talk(said: bytes, id_: str) -> Answer:
            body = filled('{"agent_id":"echo","metadata":{"id":"ID"},"input":{"text":"TEXT"}}', said, id_)
            answer = await posted(http, "/connect/runs/wait", body)
            told = answer.json()
            return Answer(told["output"]["values"]["text"]) if answer.is_success else Answer(error=answer.text, id=id_)

        yield talk


@contextlib.asynccontextmanager
async def connect_stream(store: Path) -> AsyncIterator[Talk]:
    async with served(store) as http:

        async def talk(said: bytes, id_: str) -> Answer:
            body = filled('{"agent_id":"echo","stream_mode":"values","input":{"text":"TEXT"}}', said, id_)
            answer = await posted(http, "/connect/runs/stream", body)
            if not answer.is_success:
                return Answer(error=answer.text, id=id_)
            return Answer(events_of(answer.text)[-1]["values"]["text"])

        yield talk


def _rpc(told: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> Answer:
    error = told.get("error")
    return Answer(error=error["message"], id=told["id"]) if error else Answer(text(told["result"]))


MCP_RUN = '{"jsonrpc":"2.0","id":"ID","method":"agents/run","params":{"name":"echo","input":{"text":"TEXT"}META}}'


def _mcp_http(token: str) -> Any:
    @contextlib.asynccontextmanager
    async def made(store: Path) -> AsyncIterator[Talk]:
        async with served(store) as http:
            able = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
            both = {"accept": "application/json, text/event-stream"}
            first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": able}
            answer = await posted(http, "/mcp/", json.dumps(first).encode(), **both)
            both |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            await posted(http, "/mcp/", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', **both)

            async def talk(said: bytes, id_: str) -> Answer:
                template = MCP_RUN.replace("META", f',"_meta":{{"progressToken":"{token}ID"}}' if token else "")
                answer = await posted(http, "/mcp/", filled(template, said, id_), **both)
                streamed = "text/event-stream" in answer.headers["content-type"]
                return _rpc(
                    events_of(answer.text)[-1] if streamed else answer.json(), lambda result: result["output"]["text"]
                )

            yield talk

    return made


@contextlib.asynccontextmanager
async def mcp_sse(store: Path) -> AsyncIterator[Talk]:
    """The older pair: what is taken is answered on the one stream, and what is refused by the post itself."""
    async with served(store) as http, http.stream("GET", "/mcp/sse", headers={"accept": "text/event-stream"}) as stream:
        lines = stream.aiter_lines()

        async def data() -> str:
            async with asyncio.timeout(PATIENCE):
                while True:
                    line = await anext(lines)
                    if line.startswith("data:") and line[5:].strip():
                        return line[5:].strip()

        where = await data()

        async def answered(message: bytes, id_: Any) -> dict[str, Any]:
            answer = await posted(http, where, message)
            told: dict[str, Any] = answer.json() if answer.is_error else {}
            while "method" in told or told.get("id") != id_:
                told = json.loads(await data())
            return told

        able = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": able}
        await answered(json.dumps(first).encode(), 0)
        await posted(http, where, b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

        async def talk(said: bytes, id_: str) -> Answer:
            told = await answered(filled(MCP_RUN.replace("META", ""), said, id_), id_)
            return _rpc(told, lambda result: str(result["output"]["text"]))

        yield talk


async def _answered(client: Any, line: bytes, id_: str, text: Callable[[dict[str, Any]], str]) -> Answer:
    after = len(client.messages)
    await client.raw(line + b"\n")
    told = await client.wait_for(lambda message: "method" not in message and message.get("id") == id_, after=after)
    return _rpc(told, text)


@contextlib.asynccontextmanager
async def mcp_stdio(store: Path) -> AsyncIterator[Talk]:
    async with mcp_common.in_process(store, echo) as (client, _):
        await client.initialize()

        async def talk(said: bytes, id_: str) -> Answer:
            line = filled(MCP_RUN.replace("META", ""), said, id_)
            return await _answered(client, line, id_, lambda result: str(result["output"]["text"]))

        yield talk


PROMPT = (
    '{"jsonrpc":"2.0","id":"ID","method":"session/prompt","params":{"sessionId":"SESSION","prompt":'
    '[{"type":"text","text":"TEXT"}]}}'
)


@contextlib.asynccontextmanager
async def editor_stdio(store: Path) -> AsyncIterator[Talk]:
    async with editor_common.in_process(store, echo) as client:
        await client.initialize()
        session = (await client.ask("session/new", {"cwd": "/", "mcpServers": []}))["sessionId"]

        async def talk(said: bytes, id_: str) -> Answer:
            before = client.text(session)
            answer = await _answered(client, filled(PROMPT.replace("SESSION", session), said, id_), id_, lambda _: "")
            if answer.error is None:
                answer.text = client.text(session).removeprefix(before)
            return answer

        yield talk


@contextlib.asynccontextmanager
async def editor_socket(store: Path) -> AsyncIterator[Talk]:
    async with served(store) as http:
        url = str(http.base_url).rstrip("/").replace("http", "ws") + "/editor"
        async with connect(url, max_size=None) as socket:
            heard: list[dict[str, Any]] = []

            async def answered(message: bytes, id_: Any) -> dict[str, Any]:
                heard.clear()
                await socket.send(message.decode())
                async with asyncio.timeout(PATIENCE):
                    while True:
                        heard.append(json.loads(await socket.recv()))
                        if "method" not in heard[-1] and heard[-1].get("id") == id_:
                            return heard[-1]

            first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
            await answered(json.dumps(first).encode(), 1)
            new = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}
            session = (await answered(json.dumps(new).encode(), 2))["result"]["sessionId"]

            async def talk(said: bytes, id_: str) -> Answer:
                told = await answered(filled(PROMPT.replace("SESSION", session), said, id_), id_)
                updates = [one["params"]["update"] for one in heard if one.get("method") == "session/update"]
                said_back = [one["content"]["text"] for one in updates if one["sessionUpdate"] == "agent_message_chunk"]
                return _rpc(told, lambda _: "".join(said_back))

            yield talk


@contextlib.asynccontextmanager
async def editor_http(store: Path) -> AsyncIterator[Talk]:
    async with served(store) as http:
        client = editor_web.Client(http, "/editor")
        try:
            first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
            client.connection = (await client.raw(first)).headers["acp-connection-id"]
            session = await client.session(await client.listen())
            stream = await client.listen(session)

            async def talk(said: bytes, id_: str) -> Answer:
                body = filled(PROMPT.replace("SESSION", session), said, id_)
                answer = await client.raw(body, acp_session_id=session)
                if answer.status_code != 202:
                    return _rpc(answer.json(), lambda _: "")
                told, before = await stream.until(id_)
                return _rpc(told, lambda _: editor_web.text(before))

            yield talk
        finally:
            for stream in client.streams:
                await stream.leave()


NOTICE = (
    '{"type":"delegation_notice","task_id":"ID","sender_id":"user","recipient_id":"echo","context_summary":"TEXT",'
    '"attachments":[]}'
)


def _cap(told: dict[str, Any]) -> Answer:
    if told["type"] == "error_response":
        return Answer(error=told["error_message"], id=told["task_id"])
    return Answer(told["content"])


@contextlib.asynccontextmanager
async def cap_http(store: Path) -> AsyncIterator[Talk]:
    async with served(store) as http:

        async def talk(said: bytes, id_: str) -> Answer:
            answer = await posted(http, "/cap/messages", filled(NOTICE, said, id_), accept="text/event-stream")
            if not answer.is_success:
                return _cap(answer.json())
            return _cap([one for one in events_of(answer.text) if one.get("type") == "message"][-1])

        yield talk


@contextlib.asynccontextmanager
async def cap_stdio(store: Path) -> AsyncIterator[Talk]:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    async with engine(store, echo) as eng:
        channel, peer = PipeChannel(theirs_in, theirs_out), PipeChannel(ours_in, ours_out)
        serving_ = asyncio.ensure_future(StdioDoor(eng, channel).run())

        async def talk(said: bytes, id_: str) -> Answer:
            peer.send(filled(NOTICE, said, id_))
            async with asyncio.timeout(PATIENCE):
                while True:
                    for frame in await peer.receive():
                        if (told := json.loads(frame)).get("task_id") == id_:
                            return _cap(told)

        yield talk
        await peer.close_writing()
        await serving_
        await peer.close()
        await channel.close()


MESSAGE = '{"role":"user","message_id":"ID","sync":true,"parts":[{"type":"text","content":"TEXT"}]}'


@contextlib.asynccontextmanager
async def peer_http(store: Path) -> AsyncIterator[Talk]:
    async with served(store) as http:

        async def talk(said: bytes, id_: str) -> Answer:
            answer = await posted(http, "/peer/message:send", filled(MESSAGE, said, id_))
            told = answer.json()
            if not answer.is_success:
                return Answer(error=told["error"], id=id_)  # HTTP says which request it answers
            return Answer(told["reply"]["parts"][0]["content"])

        yield talk


FRAME = (
    '{"type":"acp.message","message_id":"ID","correlation_id":"ID","ts":"2026-11-15T00:00:00Z","from":"Odd",'
    '"role":"user","parts":[{"type":"text","content":"TEXT"}]}'
)


def _frames(send: Callable[[bytes], Awaitable[None]], receive: Callable[[], Awaitable[Any]]) -> Talk:
    async def talk(said: bytes, id_: str) -> Answer:
        await send(filled(FRAME, said, id_))
        async with asyncio.timeout(PATIENCE):
            while True:
                frame = json.loads(await receive())
                if frame["type"] == "error":
                    return Answer(error=frame["message"], id=frame.get("message_id"))
                if frame["type"] == "acp.reply" and frame["correlation_id"] == id_:
                    return _replied(frame)

    return talk


def _replied(frame: dict[str, Any]) -> Answer:
    if (error := frame.get("error")) is not None:  # the reference is told so: it knows no error frames
        return Answer(error=error["message"], id=frame["correlation_id"])
    return Answer(frame["parts"][0]["content"])


def introduction() -> str:
    """The card of one that knows error frames."""
    return json.dumps({"type": "acp.agent_card", "card": {"name": "Odd", "capabilities": {"task_delegation": True}}})


@contextlib.asynccontextmanager
async def peer_socket(store: Path) -> AsyncIterator[Talk]:
    async with (
        running_node("Host", agents=[echo], store=store) as host,
        connect(str(host.node.link).replace("acp://", "ws://"), max_size=None) as socket,
    ):
        await socket.send(introduction())
        yield _frames(lambda frame: socket.send(frame, text=True), socket.recv)


@contextlib.asynccontextmanager
async def peer_lines(store: Path) -> AsyncIterator[Talk]:
    async with running_node("Host", agents=[echo], store=store, tcp_port=0) as host:
        link = links.parse(str(host.node.tcp_link))
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(json.dumps({"type": "acp.hello", "token": link.token}).encode() + b"\n")
        writer.write(Reference("Odd").introduction().encode() + b"\n")

        async def send(frame: bytes) -> None:
            writer.write(frame + b"\n")
            await writer.drain()

        yield _frames(send, reader.readline)
        writer.close()


@contextlib.asynccontextmanager
async def peer_stdio(store: Path) -> AsyncIterator[Talk]:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    async with engine(store, echo) as eng:
        channel, peer = PipeChannel(theirs_in, theirs_out), PipeChannel(ours_in, ours_out)
        serving_ = asyncio.ensure_future(serve_pipes(eng, channel, None))
        waiting: list[bytes] = []

        async def send(frame: bytes) -> None:
            peer.send(frame)

        async def receive() -> bytes:
            while not waiting:
                waiting.extend(await peer.receive())
            return waiting.pop(0)

        await send(introduction().encode())
        yield _frames(send, receive)
        await peer.close_writing()
        await serving_
        await peer.close()


@contextlib.asynccontextmanager
async def peer_relay(store: Path) -> AsyncIterator[Talk]:
    """The reference behind a relay, which reads what it posts and refuses what it cannot read."""
    async with (
        listening(relay_app(RelaySettings())) as base,
        running_node("Host", agents=[echo], store=store, relay=base.replace("http://", "acp+ws://")) as host,
        httpx2.AsyncClient(base_url=f"{base}/acp/{host.node.token}", timeout=PATIENCE) as http,
    ):
        assert host.node.relay is not None
        await host.node.relay.ready()
        await posted(http, "/join", json.dumps({"name": "Odd", "card": Reference("Odd").card()}).encode())

        async def talk(said: bytes, id_: str) -> Answer:
            answer = await posted(http, "/send", filled(FRAME, said, id_))
            if not answer.is_success:
                return Answer(error=answer.json()["hint"], id=id_)  # HTTP says which request it answers
            last = str(answer.json()["id"])
            async with asyncio.timeout(PATIENCE):
                while True:
                    polled = (await http.get(f"/poll?wait=5&after_id={last}")).json()
                    for frame in polled["messages"]:
                        if frame["type"] == "acp.reply" and frame["correlation_id"] == id_:
                            return _replied(frame)
                    last = polled["last_id"]

        yield talk


DOORS: dict[str, Any] = {
    "connect, wait": connect_wait,
    "connect, stream": connect_stream,
    "mcp, HTTP": _mcp_http(""),
    "mcp, event stream": _mcp_http("t"),
    "mcp, SSE": mcp_sse,
    "mcp, stdio": mcp_stdio,
    "editor, stdio": editor_stdio,
    "editor, HTTP": editor_http,
    "editor, WebSocket": editor_socket,
    "cap, HTTP": cap_http,
    "cap, stdio": cap_stdio,
    "peer, HTTP": peer_http,
    "peer, WebSocket": peer_socket,
    "peer, TCP": peer_lines,
    "peer, stdio": peer_stdio,
    "peer, relay": peer_relay,
}
_numbers = itertools.count(1)


def fresh() -> str:
    return f"m-{next(_numbers)}"


@pytest.mark.parametrize("door", DOORS)
async def test_text_that_is_not_clean_is_taken(store: Path, door: str, caplog: pytest.LogCaptureFixture) -> None:
    async with DOORS[door](store) as talk:
        for name, (said, heard) in TAKEN.items():
            if "WebSocket" in door and not said.isascii():
                continue  # such a frame ends the connection, by the rules of WebSockets
            assert await talk(said, fresh()) == Answer(heard), name
        assert "a message was not clean" in caplog.text


@pytest.mark.parametrize("door", DOORS)
async def test_what_cannot_be_read_is_answered_with_its_id_and_what_is_wrong(store: Path, door: str) -> None:
    async with DOORS[door](store) as talk:
        for name, (said, why) in REFUSED.items():
            if door.startswith("peer") and "HTTP" not in door and "is no number" in why:
                continue  # a peer's frame has null there instead
            id_ = fresh()
            answer = await talk(said, id_)
            assert (answer.text, answer.id) == (None, id_), (name, answer)
            assert answer.error is not None
            assert why in json.dumps(answer.error, ensure_ascii=False), (name, answer)
            assert "truncated" not in answer.error
            assert await talk(b'"still there"', fresh()) == Answer("still there")


async def test_a_line_over_the_limit_is_answered_with_its_id_and_the_connection_goes_on(store: Path) -> None:
    line = filled(MCP_RUN.replace("META", ""), b'"' + b"x" * 2000 + b'"', "long")
    last = b'{"method":"agents/run","params":{"input":{"text":"' + b"x" * 2000 + b'"}},"jsonrpc":"2.0","id":"last"}'
    async with mcp_common.in_process(store, echo, max_frame_bytes=1024) as (client, _):
        await client.initialize()
        for sent, id_ in ((line, "long"), (last, "last")):
            answer = await _answered(client, sent, id_, str)
            assert (answer.id, answer.error) == (id_, "message longer than 1 KiB")
        assert await client.run("echo", {"text": "short"}) == {"text": "short"}


async def test_a_body_over_the_limit_is_answered_with_the_id_that_it_begins_with(store: Path) -> None:
    body = b'{"jsonrpc":"2.0","id":"long","method":"ping","params":{"x":"' + b"x" * (33 << 20) + b'"}}'
    both = {"accept": "application/json, text/event-stream"}
    async with served(store) as http:
        answer = await posted(http, "/mcp/", body, **both)
        assert (answer.status_code, answer.json()["id"]) == (413, "long")
        assert answer.json()["error"]["message"] == "the body is larger than 32 MiB"
        notice = filled(NOTICE, b'"' + b"x" * (17 << 20) + b'"', "T-long")
        answer = await posted(http, "/cap/messages", notice)
        assert (answer.status_code, answer.json()["task_id"]) == (413, "T-long")


async def test_a_last_message_that_is_cut_off_is_answered_before_the_end(store: Path) -> None:
    async with mcp_common.in_process(store, echo) as (client, _):
        await client.initialize()
        await client.raw(b'{"jsonrpc":"2.0","id":"cut","method":"agents/run","params":{"na')
        await client.end_input()
        told = await client.wait_for(lambda message: message.get("id") == "cut")
        assert told["error"]["message"] == "the message is cut off at byte 63"
