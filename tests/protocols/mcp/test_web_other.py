"""The MCP door over HTTP, for the revision without sessions and for the older HTTP+SSE."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlingua.model.filters import RunFilter
from interlingua.model.status import Status
from interlingua.protocols.mcp import wire
from interlingua.server.app import Server
from tests.kit.clients.mcp_http import FLOOD, WAIT, Answer, Client, clients, ended, joined, only_run, up
from tests.kit.wait_for import wait_for

# -- the revision without sessions ----------------------------------------------------------------------------


async def test_a_request_without_a_session_is_complete_in_itself(store: Path) -> None:
    async with up(store, patience=WAIT) as (server, web), clients(server) as client:
        answer = await client.modern("server/discover")
        assert (answer.status, answer.kind) == (200, "application/json")
        assert wire.MODERN in (await answer.json())["result"]["supportedVersions"]
        assert "mcp-session-id" not in answer.response.headers
        answer = await client.modern("agents/run", {"name": "helper", "input": {"text": "you"}})
        result = (await answer.json())["result"]
        assert (result["output"], result["resultType"]) == ({"text": "grüße you"}, "complete")
        assert not web.singles
        assert not web.sessions


async def test_progress_without_a_session_is_a_stream_that_cannot_be_taken_up(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        params = {"name": "helper", "arguments": {"text": "you"}, "_meta": {"progressToken": 7}}
        answer = await client.modern("tools/call", params, mcp_name="helper")
        assert answer.kind == "text/event-stream"
        *progress, last = await answer.rest()
        assert {message["method"] for message in progress} == {"notifications/progress"}
        assert last["result"]["structuredContent"] == {"text": "grüße you"}
        assert answer.last_id is None
        while web.singles:  # the server forgets the stream in the turn after its last byte
            await asyncio.sleep(0)


async def test_what_is_wrong_without_a_session_has_its_status_and_code(store: Path) -> None:
    call = {"name": "helper", "arguments": {"text": "you"}}
    whole = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    modern = {"mcp_protocol_version": wire.MODERN, "mcp_method": "ping"}
    async with up(store) as (server, _), clients(server) as client:

        async def told(answer: Answer) -> tuple[int, int]:
            return answer.status, (await answer.json())["error"]["code"]

        assert await told(await client.modern("no/such")) == (404, -32601)
        assert await told(await client.modern("agents/run", {"name": "helper"})) == (400, -32602)
        assert await told(await client.modern("agents/list", mcp_method="tools/list")) == (400, wire.HEADER_MISMATCH)
        assert await told(await client.modern("agents/list", mcp_method=None)) == (400, wire.HEADER_MISMATCH)
        assert await told(await client.modern("agents/list", mcp_protocol_version=None)) == (400, wire.HEADER_MISMATCH)
        assert await told(await client.modern("tools/call", dict(call))) == (400, wire.HEADER_MISMATCH)
        assert await told(await client.modern("tools/call", dict(call), mcp_name="x")) == (400, wire.HEADER_MISMATCH)
        assert await told(await client.modern("tools/call", dict(call), mcp_name="=?base64?%?=")) == (
            400,
            wire.HEADER_MISMATCH,
        )
        assert (await client.modern("tools/call", dict(call), mcp_name="=?base64?aGVscGVy?=")).status == 200
        future = {"_meta": {wire.META_VERSION: "2099-01-01"}}
        answer = await client.modern("agents/list", future, mcp_protocol_version="2099-01-01")
        assert answer.status == 400
        assert (await answer.json())["error"]["data"] == {"requested": "2099-01-01", "supported": [wire.MODERN]}
        assert await told(await client.post(whole, **modern)) == (400, -32602)
        assert await told(await client.post([whole], **modern)) == (400, -32600)
        assert await told(await client.post({"jsonrpc": "2.0", "id": 1, "result": {}}, **modern)) == (400, -32600)
        for method in ("GET", "DELETE"):
            refused = await client.send(method, accept="text/event-stream", mcp_protocol_version=wire.MODERN)
            assert (refused.status, refused.response.headers["allow"]) == (405, "POST")


async def test_notifications_without_a_session_are_accepted_and_do_nothing(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        answer = await client.modern(
            "agents/run", {"name": "helper", "input": {"text": "wait"}, "_meta": {"progressToken": 1}}
        )
        await answer.next()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client.id}}
        assert (await client.post(cancel, mcp_protocol_version=wire.MODERN)).status == 202
        assert (await client.post(cancel, mcp_protocol_version="2099-01-01")).status == 400
        assert (await server.engine.runs.get(await only_run(server))).status is Status.RUNNING


@pytest.mark.parametrize("text", ["wait", "nothing"])
async def test_who_leaves_without_a_session_cancels_the_run(store: Path, text: str) -> None:
    async with up(store) as (server, web), clients(server) as client:
        answer = await client.modern(
            "agents/run", {"name": "helper", "input": {"text": text}, "_meta": {"progressToken": 1}}
        )
        await only_run(server)
        await answer.leave()
        assert await ended(server) is Status.CANCELLED
        assert not web.singles


# -- HTTP+SSE -------------------------------------------------------------------------------------------------


async def pair(client: Client, server: Server) -> tuple[Answer, str]:
    stream = await client.send("GET", url=client.url + "/sse", accept="text/event-stream")
    assert (stream.status, stream.kind) == (200, "text/event-stream")
    first = await stream.event()
    assert first is not None
    assert first.event == "endpoint"
    path, _, session = first.data.partition("?session_id=")
    assert path == "/mcp/messages/"
    replica, _, secret = session.partition(".")
    assert replica == server.engine.cluster.membership.id
    assert len(secret) == 32
    assert int(secret, 16)
    return stream, server.address + first.data


async def test_the_older_transport_answers_on_its_one_stream(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        stream, where = await pair(client, server)

        async def send(message: Any) -> None:
            answer = await client.send("POST", message, where, content_type="application/json")
            assert answer.status == 202

        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
        await send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert (await stream.next())["result"]["protocolVersion"] == "2024-11-05"
        await send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        run = {"name": "helper", "input": {"text": "you"}, "_meta": {"progressToken": 0}}
        await send({"jsonrpc": "2.0", "id": 1, "method": "agents/run", "params": run})
        messages = [await stream.next()]
        while messages[-1].get("id") != 1:
            messages.append(await stream.next())
        assert messages[-1]["result"]["output"] == joined(messages) == {"text": "grüße you"}
        assert {(event.event, event.id) for event in stream.events[1:]} == {("message", None)}
        run["input"] = {"text": "wait"}
        await send({"jsonrpc": "2.0", "id": 2, "method": "agents/run", "params": run})
        await stream.next()
        await send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        statuses = {
            (await server.engine.runs.wait(r.id, timeout=WAIT)).status
            for r in await server.engine.runs.search(RunFilter())
        }
        assert statuses == {Status.SUCCEEDED, Status.CANCELLED}
        await web.close()
        assert await stream.rest() == []


async def test_who_does_not_read_the_older_stream_gets_all_of_it_later(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        stream, where = await pair(client, server)
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
        run = {"name": "helper", "input": {"text": "flood"}, "_meta": {"progressToken": 0}}
        for id_, method, told in ((0, "initialize", params), (1, "agents/run", run)):
            message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": told}
            assert (await client.send("POST", message, where, content_type="application/json")).status == 202
        assert await ended(server) is Status.SUCCEEDED
        (session,) = web.sessions
        assert session.channel.backlog.bytes < FLOOD * 100_000 / 2
        messages = [await stream.next()]
        while messages[-1].get("id") != 1:
            messages.append(await stream.next())
        assert joined(messages) == messages[-1]["result"]["output"]


async def test_what_is_wrong_on_the_older_transport_has_its_status(store: Path) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with up(store) as (server, web), clients(server) as client:
        stream, where = await pair(client, server)
        messages, kind = client.url + "/messages/", "application/json"
        assert (await client.send("POST", ping, messages, content_type=kind)).status == 400
        assert (await client.send("POST", ping, messages + "?session_id=x", content_type=kind)).status == 404
        assert (await client.send("POST", ping, where, content_type="text/plain")).status == 415
        assert (await client.send("POST", b"{", where, content_type=kind)).status == 400
        assert (await client.send("POST", ping, client.url + "/sse", content_type=kind)).status == 405
        assert (await client.send("HEAD", url=client.url + "/sse", accept="text/event-stream")).status == 405
        assert (await client.send("GET", url=client.url + "/sse", accept=kind)).status == 406
        session = where.rpartition("=")[2]
        assert (await client.post(ping, mcp_session_id=session)).status == 404  # it is none of the other transport
        await stream.leave()
        await wait_for(lambda: not web.sessions)
        assert (await client.send("POST", ping, where, content_type=kind)).status == 404
