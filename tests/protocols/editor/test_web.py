"""The editor door over HTTP and WebSocket: raw requests to a real server, and our own client's channels."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import websockets.asyncio.client
import websockets.exceptions

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.model.status import Status
from interlingua.protocols.editor.config import DoorSettings
from interlingua.protocols.editor.door.http import WebDoor
from interlingua.protocols.editor.door.http_streams import StreamsChannel
from interlingua.protocols.editor.mount.http_channel import HttpChannel, open_remote
from interlingua.security.keys import make_key
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from interlingua.transports.http.event_outbox import Backlog, Missed, Outbox
from interlingua.transports.http.sse import Reader
from interlingua.transports.jsonrpc.connection import Connection, ConnectionLost
from interlingua.transports.jsonrpc.core import Call, Notice, RpcError
from tests.kit.engines import QUICK
from tests.kit.wait_for import PATIENCE, wait_for

FLOOD = 100  # pieces of 100 kB


class Approval(il.Question[il.Verdict]):
    """Shall it be done?"""

    what: str


@il.agent(asks=[Approval])
async def helper(text: str, ctx: il.Context[None, None]) -> AsyncIterator[str]:
    if text == "ask":
        verdict = await ctx.ask(Approval(what="it"))
        yield "done" if verdict.approved else "refused"
    elif text == "wait":
        yield "waiting"
        await asyncio.sleep(3600)
    elif text == "flood":
        for number in range(FLOOD):
            yield f"{number:05} " + "x" * 100_000
            await asyncio.sleep(0.003)  # or all of it is one event
    else:
        yield "grüße "
        yield text


@contextlib.asynccontextmanager
async def up(store: Path, **settings: Any) -> AsyncIterator[tuple[Server, WebDoor]]:
    doors = {"editor": DoorSettings(**settings)}
    async with (
        asyncio.timeout(60),
        serving(store, [helper], ServeSettings(port=0, engine=QUICK, doors=doors)) as server,
    ):
        web = server.app.doors["editor"][1].close_streams.__self__  # type: ignore[union-attr]
        assert isinstance(web, WebDoor)
        yield server, web


class Stream:
    """One event stream, read in the background."""

    def __init__(self, client: Client, headers: dict[str, str]) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.raw = b""
        self.status = 0
        self.last_id: str | None = None
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()
        self.comment = asyncio.Event()
        self._leave = asyncio.Event()
        self._task = asyncio.ensure_future(self._read(client, headers))

    async def _read(self, client: Client, headers: dict[str, str]) -> None:
        try:
            async with client.http.stream("GET", client.url, headers=headers, timeout=None) as answer:
                self.status = answer.status_code
                self.opened.set()
                if answer.status_code != 200:
                    return
                reader = Reader()
                pieces = answer.aiter_bytes()
                leaving = asyncio.ensure_future(self._leave.wait())
                while True:
                    piece = asyncio.ensure_future(anext(pieces))
                    await asyncio.wait({piece, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not piece.done():
                        piece.cancel()
                        await asyncio.gather(piece, return_exceptions=True)
                        return
                    try:
                        data = piece.result()
                    except StopAsyncIteration:
                        leaving.cancel()
                        return
                    self.raw += data
                    if b": keep-alive\n" in self.raw:
                        self.comment.set()
                    for event in reader.feed(data):
                        self.messages.put_nowait(json.loads(event.data))
                    self.last_id = reader.last_id
        finally:
            self.opened.set()
            self.ended.set()

    async def leave(self) -> None:
        self._leave.set()
        await self._task

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self.messages.get()

    async def until(self, id_: int | str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The answer to a request, and what came before it."""
        before = []
        while True:
            message = await self.next()
            if message.get("id") == id_ and "method" not in message:
                return message, before
            before.append(message)


class Client:
    """A client over HTTP that does nothing by itself."""

    def __init__(self, http: httpx2.AsyncClient, url: str, **headers: str) -> None:
        self.http = http
        self.url = url
        self.headers = headers
        self.connection = ""
        self.streams: list[Stream] = []
        self._id = 0

    async def begin(self) -> Stream:
        answer = await self.raw({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}})
        assert answer.status_code == 200
        self.connection = answer.headers["acp-connection-id"]
        assert answer.json()["result"]["agentInfo"]["name"] == "helper"
        return await self.listen()

    async def raw(self, message: Any, **headers: str) -> httpx2.Response:
        given = {"content-type": "application/json", **self.headers}
        if self.connection:
            given["acp-connection-id"] = self.connection
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.http.post(self.url, content=content, headers=given)

    async def ask(self, method: str, params: dict[str, Any], *, header: bool = True) -> int:
        self._id += 1
        session = {"acp_session_id": params["sessionId"]} if header and "sessionId" in params else {}
        answer = await self.raw({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}, **session)
        assert (answer.status_code, answer.content) == (202, b"")
        return self._id

    async def prompt(self, session: str, text: str) -> int:
        return await self.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    async def listen(self, session: str | None = None, after: str | None = None) -> Stream:
        headers = {"accept": "text/event-stream", "acp-connection-id": self.connection, **self.headers}
        if session is not None:
            headers["acp-session-id"] = session
        if after is not None:
            headers["last-event-id"] = after
        stream = Stream(self, headers)
        self.streams.append(stream)
        async with asyncio.timeout(PATIENCE):
            await stream.opened.wait()
        return stream

    async def session(self, stream: Stream) -> str:
        id_ = await self.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        answer, _ = await stream.until(id_)
        return str(answer["result"]["sessionId"])


@contextlib.asynccontextmanager
async def clients(server: Server, **headers: str) -> AsyncIterator[Client]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=10)
    async with httpx2.AsyncClient(limits=limits, timeout=PATIENCE) as http:
        client = Client(http, server.address + "/editor", **headers)
        try:
            yield client
        finally:
            for stream in client.streams:
                await stream.leave()


def text(messages: list[dict[str, Any]]) -> str:
    updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    return "".join(u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk")


async def run_of(server: Server, session: str) -> str:
    async with asyncio.timeout(PATIENCE):
        while not (runs := await server.engine.runs.search(RunFilter(thread=session))):
            await asyncio.sleep(0)
    return runs[0].id


# -- Streamable HTTP ------------------------------------------------------------------------------------------


async def test_answers_come_on_the_stream_of_what_was_asked_about(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        whole = await client.begin()
        session = await client.session(whole)
        own = await client.listen(session)
        answer, before = await own.until(await client.prompt(session, "you"))
        assert answer["result"]["stopReason"] == "end_turn"
        assert text(before) == "grüße you"
        listed, _ = await whole.until(await client.ask("session/list", {}))
        assert [entry["sessionId"] for entry in listed["result"]["sessions"]] == [session]
        assert own.messages.empty()
        assert own.raw.isascii()  # readers that decode piece by piece break on anything else


async def test_the_endpoint_answers_with_and_without_a_slash_at_its_end(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        client.url += "/"
        answer = await client.raw({"jsonrpc": "2.0", "method": "_nothing"})
        assert answer.status_code == 202


async def test_what_is_wrong_has_its_status(store: Path) -> None:
    prompt = {"jsonrpc": "2.0", "id": 5, "method": "session/prompt", "params": {"sessionId": "a", "prompt": []}}
    initialize = {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {"protocolVersion": 1}}
    async with up(store) as (server, web), clients(server) as client:
        assert (await client.raw(prompt, acp_session_id="a")).status_code == 400  # no connection
        assert (await client.raw(prompt, acp_connection_id="x", acp_session_id="a")).status_code == 404
        await client.begin()
        cases: list[tuple[Any, dict[str, str], int]] = [
            (prompt, {"content_type": "text/plain"}, 415),
            (b"{", {}, 400),
            (b"7", {}, 400),
            (b'{"jsonrpc": "2.0"}', {}, 400),
            (b'{"method": "session/list", "id": 1}', {}, 400),
            ([prompt], {}, 501),
            (prompt, {}, 400),
            (prompt, {"acp_session_id": "b"}, 400),
            (initialize, {}, 400),
            ({**initialize, "id": None}, {}, 400),
        ]
        for message, headers, status in cases:
            answer = await client.raw(message, **headers)
            assert answer.status_code == status, (message, answer.text)
            assert answer.json()["error"]["message"]
        web.settings = msgspec.structs.replace(web.settings, max_body_bytes=1000)
        assert (await client.raw({**prompt, "method": "x" * 2000})).status_code == 413

        async def get(**headers: str) -> int:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.http.get(client.url, headers=given)).status_code

        assert await get(accept="application/json", acp_connection_id=client.connection) == 406
        assert await get(accept="text/event-stream") == 400
        assert await get(accept="text/event-stream", acp_connection_id="x") == 404
        assert (await client.http.delete(client.url)).status_code == 400
        assert (await client.http.put(client.url)).status_code == 405


async def test_a_permission_may_be_answered_without_naming_the_session(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        session = await client.session(await client.begin())
        own = await client.listen(session)
        id_ = await client.prompt(session, "ask")
        while (request := await own.next()).get("method") != "session/request_permission":
            pass
        chosen = request["params"]["options"][0]["optionId"]
        result = {"outcome": {"outcome": "selected", "optionId": chosen}}
        answer = await client.raw({"jsonrpc": "2.0", "id": request["id"], "result": result})
        assert answer.status_code == 202
        ended, before = await own.until(id_)
        assert ended["result"]["stopReason"] == "end_turn"
        assert text(before) == "done"


async def test_a_turn_can_be_cancelled(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        session = await client.session(await client.begin())
        own = await client.listen(session)
        id_ = await client.prompt(session, "wait")
        while text([await own.next()]) != "waiting":
            pass
        cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
        assert (await client.raw(cancel, acp_session_id=session)).status_code == 202
        ended, _ = await own.until(id_)
        assert ended["result"]["stopReason"] == "cancelled"


async def test_a_session_is_loaded_by_a_client_that_listens_first(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client, clients(server) as other:
        session = await client.session(await client.begin())
        own = await client.listen(session)
        await own.until(await client.prompt(session, "you"))
        await other.begin()
        own = await other.listen(session)
        id_ = await other.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        loaded, before = await own.until(id_)
        assert "result" in loaded
        assert text(before) == "grüße you"


async def test_a_session_is_loaded_by_a_client_that_does_not_listen_to_it(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client, clients(server) as other:
        session = await client.session(await client.begin())
        own = await client.listen(session)
        await own.until(await client.prompt(session, "you"))
        whole = await other.begin()
        load = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
        loaded, before = await whole.until(await other.ask("session/load", load, header=False))
        assert "result" in loaded
        assert text(before) == "grüße you"
        _, before = await whole.until(await other.prompt(session, "all"))
        assert text(before) == "grüße all"
        own = await other.listen(session)  # from the next request on, it is used
        _, before = await own.until(await other.prompt(session, "two"))
        assert text(before) == "grüße two"


async def test_a_request_about_a_session_that_nobody_opened_is_answered_on_the_connection(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        whole = await client.begin()
        answer, _ = await whole.until(await client.prompt("nobody", "you"))
        assert answer["error"]["code"] == -32002


async def test_messages_wait_until_their_stream_is_opened(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        session = await client.session(await client.begin())
        id_ = await client.prompt(session, "you")
        await server.engine.runs.wait(await run_of(server, session))
        own = await client.listen(session)
        _, before = await own.until(id_)
        assert text(before) == "grüße you"


async def test_a_dropped_stream_is_taken_up_where_it_broke(store: Path) -> None:
    async with up(store, keep_bytes=100_000) as (server, _), clients(server) as client:
        session = await client.session(await client.begin())
        own = await client.listen(session)
        assert own.last_id == "0" or own.last_id is None
        id_ = await client.prompt(session, "you")
        ended, before = await own.until(id_)
        await own.leave()
        again = await client.listen(session, after="1")
        repeated, some = await again.until(id_)
        assert repeated == ended
        assert some == before[1:]
        await again.leave()
        fresh = await client.listen(session)  # without an id: from now on
        _, later = await fresh.until(await client.prompt(session, "all"))
        assert text(later) == "grüße all"
        for lost in ("999", "x", "-1"):
            assert (await client.listen(session, after=lost)).status == 409
        await fresh.until(await client.prompt(session, "flood"))
        assert (await client.listen(session, after="1")).status == 409  # no longer kept


async def test_the_newest_reader_has_the_stream(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        session = await client.session(await client.begin())
        old = await client.listen(session)
        new = await client.listen(session)
        async with asyncio.timeout(PATIENCE):
            await old.ended.wait()
        _, before = await new.until(await client.prompt(session, "you"))
        assert text(before) == "grüße you"


async def test_a_silent_stream_gets_comments(store: Path) -> None:
    async with up(store, keep_alive=0.02) as (server, _), clients(server) as client:
        whole = await client.begin()
        async with asyncio.timeout(PATIENCE):
            await whole.comment.wait()
        assert whole.messages.empty()


async def test_a_session_that_nobody_reads_holds_up_no_other(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        whole = await client.begin()
        silent, lively = await client.session(whole), await client.session(whole)
        id_ = await client.prompt(silent, "flood")
        done = await server.engine.runs.wait(await run_of(server, silent))  # the run itself goes on
        assert done.status is Status.SUCCEEDED
        own = await client.listen(lively)
        _, before = await own.until(await client.prompt(lively, "you"))
        assert text(before) == "grüße you"
        (connection,) = web.sessions
        assert connection.channel.backlog.bytes < FLOOD * 100_000 / 2  # far from all of it
        late = await client.listen(silent)
        _, before = await late.until(id_)
        assert len(text(before)) == FLOOD * 100_006


async def keys(store: Path, *names: str) -> list[str]:
    """Keys of the store, and what to send."""
    kept = open_store(store)
    await kept.open()
    secrets = []
    for name in names:
        secret, record = make_key(name, ["*"], 0)
        await StoredKeys(kept.keys).put(record)
        secrets.append(secret)
    await kept.close()
    return secrets


async def test_a_connection_is_its_callers_own(store: Path) -> None:
    secrets = await keys(store, "one", "two")
    async with (
        up(store) as (server, _),
        clients(server, authorization=f"Bearer {secrets[0]}") as client,
        clients(server, authorization=f"Bearer {secrets[1]}") as other,
        clients(server) as nobody,
    ):
        whole = await client.begin()
        session = await client.session(whole)
        other.connection = nobody.connection = client.connection
        assert (await other.raw({"jsonrpc": "2.0", "method": "_x"})).status_code == 404
        assert (await other.listen(session)).status == 404
        deleted = await other.http.delete(other.url, headers={**other.headers, "acp-connection-id": client.connection})
        assert deleted.status_code == 404
        refused = await nobody.raw({"jsonrpc": "2.0", "method": "_x"})
        assert refused.status_code == 401
        assert "www-authenticate" in refused.headers
        with pytest.raises(websockets.exceptions.InvalidStatus) as raised:
            await websockets.asyncio.client.connect(client.url.replace("http", "ws"))
        assert raised.value.response.status_code == 401
        await client.ask("session/list", {})
        assert (await whole.next())["result"]["sessions"]


async def test_delete_ends_the_streams_but_not_the_runs(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        whole = await client.begin()
        session = await client.session(whole)
        own = await client.listen(session)
        await client.prompt(session, "wait")
        while text([await own.next()]) != "waiting":
            pass
        headers = {"acp-connection-id": client.connection}
        assert (await client.http.delete(client.url, headers=headers)).status_code == 202
        async with asyncio.timeout(PATIENCE):
            await whole.ended.wait()
            await own.ended.wait()
        assert not web.sessions
        assert (await client.http.delete(client.url, headers=headers)).status_code == 404
        (run,) = await server.engine.runs.search(RunFilter(thread=session))
        assert run.status is Status.RUNNING


async def test_a_client_that_vanishes_is_forgotten_and_its_run_goes_on(store: Path) -> None:
    async with up(store, idle=0.05) as (server, web), clients(server) as client:
        whole = await client.begin()
        session = await client.session(whole)
        await client.prompt(session, "ask")
        (connection,) = web.sessions
        async with asyncio.timeout(PATIENCE):
            while not server.engine.workspaces:
                await asyncio.sleep(0)
            assert web.sessions  # its stream is open
            await whole.leave()
            while not connection.rpc.lost or server.engine.workspaces:
                await asyncio.sleep(0.01)
        assert not web.sessions
        (run,) = await server.engine.runs.search(RunFilter(thread=session))
        assert not run.status.final


async def test_a_connection_with_too_much_unread_is_closed(store: Path) -> None:
    async with up(store, max_buffered_bytes=50_000) as (server, web), clients(server) as client:
        session = await client.session(await client.begin())
        assert web.sessions
        await client.prompt(session, "flood")
        await wait_for(lambda: not web.sessions)
        assert (await client.raw({"jsonrpc": "2.0", "method": "_x"})).status_code == 404


async def test_connections_and_streams_are_limited(store: Path) -> None:
    async with up(store, max_connections=1, max_streams=1) as (server, _), clients(server) as client:
        await client.begin()
        assert (await client.listen("a")).status == 200
        assert (await client.listen("b")).status == 429
        client.connection = ""
        initialize = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
        assert (await client.raw(initialize)).status_code == 503


async def test_one_caller_cannot_have_all_connections(store: Path) -> None:
    mine, yours = await keys(store, "mine", "yours")
    async with (
        up(store, max_connections=2) as (server, _),
        clients(server, authorization=f"Bearer {mine}") as client,
        clients(server, authorization=f"Bearer {yours}") as other,
    ):
        await client.begin()
        client.connection = ""
        initialize = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
        assert (await client.raw(initialize)).status_code == 429
        with pytest.raises(websockets.exceptions.InvalidStatus) as raised:
            await websockets.asyncio.client.connect(
                client.url.replace("http", "ws"), additional_headers={"authorization": f"Bearer {mine}"}
            )
        assert raised.value.response.status_code == 429
        await other.begin()


async def test_who_asks_without_reading_answers_is_told_to_read(store: Path) -> None:
    async with up(store, stall=0.05) as (server, web), clients(server) as client:
        session = await client.session(await client.begin())
        await client.prompt(session, "flood")
        (connection,) = web.sessions
        await wait_for(lambda: connection.channel.sessions[session].waiting > 1024 * 1024)
        again = {
            "jsonrpc": "2.0",
            "id": "n",
            "method": "session/prompt",
            "params": {"sessionId": session, "prompt": []},
        }
        assert (await client.raw(again, acp_session_id=session)).status_code == 429


# -- WebSocket ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def socket(server: Server, **given: Any) -> AsyncIterator[websockets.asyncio.client.ClientConnection]:
    url = server.address.replace("http", "ws") + "/editor"
    async with websockets.asyncio.client.connect(url, max_size=None, **given) as connection:
        yield connection


INITIALIZE = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}})


async def test_a_websocket_carries_everything(store: Path) -> None:
    async with up(store) as (server, _), socket(server) as ws:
        assert ws.response is not None
        assert ws.response.headers["acp-connection-id"]
        await ws.send(b"binary frames are no messages")
        await ws.send(INITIALIZE)
        assert json.loads(await ws.recv())["result"]["protocolVersion"] == 1
        params = {"cwd": "/tmp", "mcpServers": []}
        await ws.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params}))
        session = json.loads(await ws.recv())["result"]["sessionId"]
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "you"}]}
        await ws.send(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt}))
        before = []
        while (message := json.loads(await ws.recv())).get("id") != 2:
            before.append(message)
        assert text(before) == "grüße you"
        await ws.send("no JSON")
        assert json.loads(await ws.recv())["error"]["code"] == -32700
        await ws.send('[{"jsonrpc": "2.0", "id": 3, "method": "session/list"}, 1]')
        answers = json.loads(await ws.recv())
        assert sorted(answer["id"] is None for answer in answers) == [False, True]


@pytest.mark.parametrize("first", ['{"jsonrpc": "2.0", "id": 1, "method": "session/list"}', "[]", "no JSON", "7"])
async def test_a_websocket_begins_with_initialize(store: Path, first: str) -> None:
    async with up(store) as (server, _), socket(server) as ws:
        await ws.send(first)
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            await ws.recv()
        assert ws.close_code == 1002


async def test_a_web_page_of_another_site_cannot_open_a_websocket(store: Path) -> None:
    async with up(store) as (server, _):
        with pytest.raises(websockets.exceptions.InvalidStatus) as raised:
            async with socket(server, origin="https://evil.example"):
                pass
        assert raised.value.response.status_code == 403
        with pytest.raises(websockets.exceptions.InvalidStatus):
            async with socket(server, additional_headers={"host": "evil.example"}):
                pass
        async with socket(server, origin=server.address) as ws:
            await ws.send(INITIALIZE)
            assert "result" in json.loads(await ws.recv())


async def test_a_message_beyond_the_limit_ends_the_websocket(store: Path) -> None:
    settings = ServeSettings(port=0, engine=QUICK, max_message_bytes=10_000)
    async with serving(store, [helper], settings) as server, socket(server) as ws:
        await ws.send(INITIALIZE)
        await ws.recv()
        await ws.send("x" * 20_000)
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            await ws.recv()
        assert ws.close_code == 1009


async def test_a_client_that_leaves_its_websocket_is_forgotten(store: Path) -> None:
    async with up(store) as (server, web):
        async with socket(server) as ws:
            await ws.send(INITIALIZE)
            await ws.recv()
            params = {"cwd": "/tmp", "mcpServers": []}
            await ws.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params}))
            await ws.recv()
            assert len(server.engine.workspaces) == 1
        await wait_for(lambda: not (server.engine.workspaces or web.sessions))


async def test_a_server_that_stops_ends_streams_and_sockets_at_once(store: Path) -> None:
    patient = ServeSettings(port=0, engine=QUICK, shutdown_grace=90)
    async with contextlib.AsyncExitStack() as stack:
        async with serving(store, [helper], patient) as server:
            client = await stack.enter_async_context(clients(server))
            whole = await client.begin()
            ws = await stack.enter_async_context(socket(server))
            await ws.send(INITIALIZE)
            await ws.recv()
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 60  # nothing waited for the grace to pass
        async with asyncio.timeout(PATIENCE):
            await whole.ended.wait()
            with pytest.raises(websockets.exceptions.ConnectionClosed):
                await ws.recv()
        assert ws.close_code == 1001


# -- our client -----------------------------------------------------------------------------------------------


class Editor:
    """A client that allows everything."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.news = asyncio.Event()

    async def called(self, call: Call) -> Any:
        return {"outcome": {"outcome": "selected", "optionId": call.params["options"][0]["optionId"]}}

    def noticed(self, notice: Notice) -> None:
        self.messages.append({"method": notice.method, "params": notice.params})
        self.news.set()

    def failure(self, error: Exception) -> RpcError:
        raise error


@contextlib.asynccontextmanager
async def connected(url: str, **headers: str) -> AsyncIterator[tuple[Connection, Editor]]:
    editor = Editor()
    connection = Connection(await open_remote(url, headers), editor)
    running = asyncio.ensure_future(connection.run())
    try:
        yield connection, editor
    finally:
        await connection.close()
        await running


async def begun(connection: Connection) -> str:
    await connection.request("initialize", {"protocolVersion": 1}, timeout=PATIENCE)
    made = await connection.request("session/new", {"cwd": "/tmp", "mcpServers": []}, timeout=PATIENCE)
    return str(made["sessionId"])


def prompt(session: str, said: str) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": said}]}


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_our_client_prompts_answers_and_loads(store: Path, scheme: str) -> None:
    async with up(store) as (server, web):
        url = server.address.replace("http", scheme) + "/editor"
        async with connected(url) as (connection, editor):
            session = await begun(connection)
            for said, heard in (("you", "grüße you"), ("ask", "done")):
                editor.messages.clear()
                ended = await connection.request("session/prompt", prompt(session, said), timeout=PATIENCE)
                assert ended["stopReason"] == "end_turn"
                assert text(editor.messages) == heard
        async with asyncio.timeout(PATIENCE):
            while web.sessions:  # it said goodbye
                await asyncio.sleep(0)
        async with connected(url) as (connection, editor):
            await connection.request("initialize", {"protocolVersion": 1}, timeout=PATIENCE)
            load = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
            await connection.request("session/load", load, timeout=PATIENCE)
            assert text(editor.messages) == "grüße youdone"
            with pytest.raises(RpcError, match="no thread"):
                await connection.request("session/load", {**load, "sessionId": "nobody"}, timeout=PATIENCE)


async def test_our_client_takes_a_broken_stream_up_again(store: Path) -> None:
    async with up(store) as (server, web), connected(server.address + "/editor") as (connection, editor):
        session = await begun(connection)
        await connection.request("session/prompt", prompt(session, "you"), timeout=PATIENCE)
        (kept,) = web.sessions
        for outbox in (kept.channel.sessions[session], kept.channel.whole):
            reader = outbox.reader
            assert reader is not None
            reader.end()
            await wait_for(lambda outbox=outbox, reader=reader: outbox.reader not in (reader, None))
        editor.messages.clear()
        await connection.request("session/prompt", prompt(session, "all"), timeout=PATIENCE)
        assert text(editor.messages) == "grüße all"
        assert (await connection.request("session/list", {}, timeout=PATIENCE))["sessions"]


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_our_client_notices_that_the_server_is_gone(store: Path, scheme: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with up(store) as (server, _):
            url = server.address.replace("http", scheme) + "/editor"
            connection, editor = await stack.enter_async_context(connected(url))
            session = await begun(connection)
            waiting = asyncio.ensure_future(connection.request("session/prompt", prompt(session, "wait")))
            async with asyncio.timeout(PATIENCE):
                while text(editor.messages) != "waiting":
                    editor.news.clear()
                    await editor.news.wait()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConnectionLost):
                await waiting


async def test_our_client_tells_why_it_was_refused(store: Path) -> None:
    async with up(store) as (server, _):
        address = server.address
        async with connected(address + "/editor", authorization="Bearer wrong") as (connection, _):
            with pytest.raises(RpcError, match="401") as raised:
                await connection.request("initialize", {"protocolVersion": 1}, timeout=PATIENCE)
            assert raised.value.code == -32000
        async with connected(address + "/nowhere") as (connection, _):
            with pytest.raises(RpcError, match="404"):
                await connection.request("initialize", {"protocolVersion": 1}, timeout=PATIENCE)
        with pytest.raises(ConnectionError, match="401"):
            await open_remote(address.replace("http", "ws") + "/editor", {"authorization": "Bearer wrong"})
    async with connected(address + "/editor") as (connection, _):
        with pytest.raises(ConnectionLost):
            await connection.request("initialize", {"protocolVersion": 1}, timeout=PATIENCE)
        assert isinstance(connection.channel, HttpChannel)
        assert connection.channel.reason
    with pytest.raises(ConnectionError, match="cannot be reached"):
        await open_remote(address.replace("http", "ws") + "/editor", {})
    with pytest.raises(ValueError, match="no address"):
        await open_remote("ftp://x", {})


# -- the parts ------------------------------------------------------------------------------------------------


async def test_an_outbox_gives_back_what_a_reader_has_missed_and_no_more_than_it_keeps() -> None:
    held = Backlog()
    outbox = Outbox(70, held)
    for number in range(1, 6):
        outbox.put(b'{"n":%d}' % number)
    assert held.bytes == outbox.waiting > 0
    outbox.open()
    assert outbox.take().count(b"data:") == 5
    assert held.bytes == 0
    with pytest.raises(Missed):
        outbox.open("1")
    assert outbox.open("3").after == 3
    assert outbox.take() == b'id: 4\ndata: {"n":4}\n\nid: 5\ndata: {"n":5}\n\n'
    assert held.bytes == 0


async def test_a_request_is_taken_back_on_the_stream_where_it_was_made() -> None:
    channel = StreamsChannel(DoorSettings())
    own = channel.add("s")
    channel.send(b'{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s"}}')
    channel.send(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}')
    assert own.take().count(b"data:") == 2
    assert channel.whole.take() == b""


async def test_a_channel_to_a_server_forgets_nothing_when_it_is_closed_twice() -> None:
    channel = HttpChannel("http://127.0.0.1:9/editor", {})
    await channel.close()
    await channel.close()
    channel.send(b"{}")
    assert await channel.receive() == []
