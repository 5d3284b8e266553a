"""The MCP door over HTTP says in every refusal which request it is about, and reads headers as HTTP means them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from interlingua.model.filters import RunFilter
from interlingua.protocols.mcp import wire
from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from tests.kit.clients.mcp_http import BOTH, WAIT, Answer, Client, Message, clients, up

from .test_web_other import pair

LISTING = {"jsonrpc": "2.0", "id": "mine", "method": "agents/list"}
META = {wire.META_VERSION: wire.MODERN, wire.META_CAPABILITIES: {}}
MODERN = {**LISTING, "params": {"_meta": META}}
VERSION: dict[str, str | None] = {"mcp_protocol_version": wire.MODERN, "mcp_method": "agents/list"}

Case = tuple[Any, dict[str, str | None], int]
WITHOUT_A_SESSION: dict[str, Case] = {
    "no session": (LISTING, {}, 400),
    "another's session": (LISTING, {"mcp_session_id": "x"}, 404),
    "another content type": (LISTING, {"content_type": "text/plain"}, 415),
    "no content type": (LISTING, {"content_type": None}, 415),
    "no stream accepted": (LISTING, {"accept": "application/json"}, 406),
    "an unknown revision": (LISTING, {"mcp_protocol_version": "1999-01-01"}, 400),
    "no revision of JSON-RPC": ({"id": "mine", "method": "agents/list"}, {}, 400),
    "a number that JSON does not have": (b'{"jsonrpc":"2.0","id":"mine","method":"ping","params":{"x":NaN}}', {}, 400),
    "cut off": (b'{"jsonrpc":"2.0","id":"mine","method":"pi', {}, 400),
    "too long": ({**LISTING, "params": {"x": "x" * 5000}}, {}, 413),
    "modern, no _meta": (LISTING, VERSION, 400),
    "modern, no method header": (MODERN, {**VERSION, "mcp_method": None}, 400),
    "modern, another method": (MODERN, {**VERSION, "mcp_method": "tools/list"}, 400),
    "modern, another revision": (MODERN, {**VERSION, "mcp_protocol_version": "2099-01-01"}, 400),
    "modern, an unknown method": (
        {**MODERN, "method": "no/such"}, {"mcp_protocol_version": wire.MODERN, "mcp_method": "no/such"}, 404,
    ),
    "modern, another name": (
        {**LISTING, "method": "tools/call", "params": {"name": "helper", "_meta": META}},
        {"mcp_protocol_version": wire.MODERN, "mcp_method": "tools/call", "mcp_name": "other"}, 400,
    ),
}  # fmt: skip


async def refused(answer: Answer, status: int) -> Message:
    """The error of an answer that has this status and is about the request `mine`."""
    assert (answer.status, answer.kind) == (status, "application/json")
    told: Message = await answer.json()
    assert told["id"] == "mine", told
    error: Message = told["error"]
    return error


@pytest.mark.parametrize("case", WITHOUT_A_SESSION)
async def test_a_refusal_has_the_id_of_its_request(store: Path, case: str) -> None:
    message, headers, status = WITHOUT_A_SESSION[case]
    async with up(store, max_body_bytes=4000) as (server, _), clients(server) as client:
        assert (await refused(await client.post(message, **headers), status))["message"]


async def test_a_refusal_for_want_of_room_has_the_id(store: Path) -> None:
    async with up(store, max_sessions=0, max_requests=0) as (server, _), clients(server) as client:
        begin = {**LISTING, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {}}}
        for message, headers in ((begin, {}), (MODERN, VERSION)):
            await refused(await client.post(message, **headers), 503)


async def test_a_refusal_of_who_shows_no_key_has_the_id(store: Path) -> None:
    kept = open_store(store)
    await kept.open()
    await StoredKeys(kept.keys).put(make_key("ann", ["*"], 0)[1])
    await kept.close()
    async with up(store) as (server, _), clients(server) as client:
        answer = await client.post(LISTING)
        await refused(answer, 401)
        assert answer.response.headers["www-authenticate"]
        answer = await client.send("POST", LISTING, client.url + "/messages/?session_id=x")
        await refused(answer, 401)


async def test_a_refusal_on_the_older_transport_has_the_id(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        _, where = await pair(client, server)
        kind, messages = "application/json", client.url + "/messages/"
        cut = b'{"jsonrpc":"2.0","id":"mine","method":"pi'
        await refused(await client.send("POST", LISTING, messages, content_type=kind), 400)
        await refused(await client.send("POST", LISTING, messages + "?session_id=x", content_type=kind), 404)
        await refused(await client.send("POST", LISTING, where, content_type="text/plain"), 415)
        await refused(await client.send("POST", cut, where, content_type=kind), 400)


async def test_an_answer_and_a_batch_have_no_id_to_carry(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        for message in ({"jsonrpc": "2.0", "id": "mine", "result": {}}, [LISTING]):
            answer = await client.post(message, **VERSION)
            assert (answer.status, (await answer.json())["id"]) == (400, None)


# -- blanks around the values of headers ----------------------------------------------------------------------


async def raw(client: Client, message: Any, headers: dict[str, str]) -> tuple[int, dict[str, str], Any]:
    """Post with headers as they are written here, which clients of HTTP would tidy up: status, headers, body."""
    place = urlsplit(client.url)
    body = json.dumps(message).encode()
    lines = [f"POST {place.path} HTTP/1.1", f"host:{place.netloc}", "content-type:application/json", f"accept:{BOTH}"]
    lines += [f"{name}:{value}" for name, value in headers.items()]
    lines += [f"content-length:{len(body)}", "connection:close", "", ""]
    async with asyncio.timeout(WAIT):
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write("\r\n".join(lines).encode("latin-1") + body)
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    first, *others = head.decode().split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in others)}
    return int(first.split()[1]), found, json.loads(rest) if rest.startswith(b"{") else rest


BLANKS = ["{}", " {}", "{} ", " \t {} \t "]


@pytest.mark.parametrize("form", BLANKS, ids=repr)
async def test_blanks_around_a_header_are_no_part_of_it(store: Path, form: str) -> None:
    async with up(store) as (server, _), clients(server) as client:
        call = {**LISTING, "method": "tools/call", "params": {"name": "helper", "arguments": {"text": "you"}}}
        call["params"]["_meta"] = META  # type: ignore[index]
        told = {"Mcp-Protocol-Version": wire.MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "helper"}
        status, _, body = await raw(client, call, {name: form.format(value) for name, value in told.items()})
        assert (status, body["id"]) == (200, "mine"), body
        coded = {**told, "Mcp-Name": form.format("=?base64?aGVscGVy?=")}
        assert (await raw(client, call, coded))[0] == 200
        other = {**told, "Mcp-Name": form.format("help er")}
        status, _, body = await raw(client, call, other)
        assert (status, body["error"]["code"]) == (400, wire.HEADER_MISMATCH)


@pytest.mark.parametrize("form", BLANKS, ids=repr)
async def test_blanks_around_a_session_are_no_part_of_it(store: Path, form: str) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        told = {"Mcp-Session-Id": client.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        status, _, body = await raw(client, LISTING, {name: form.format(value) for name, value in told.items()})
        assert (status, body["id"]) == (200, "mine"), body


# -- clients that cannot be asked -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tools/call", "agents/run"])
async def test_who_cannot_be_asked_is_told_which_capability_is_missing(store: Path, method: str) -> None:
    params = {"name": "helper", "arguments" if method == "tools/call" else "input": {"text": "ask"}}
    async with up(store, patience=WAIT) as (server, _), clients(server) as client:
        runs = set()
        for _ in range(3):
            answer = await client.modern(method, dict(params), mcp_name="helper")
            assert (answer.status, answer.kind) == (400, "application/json")
            told = await answer.json()
            assert told["id"] == client.id
            assert told["error"]["code"] == wire.MISSING_CAPABILITY
            assert told["error"]["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
            runs.add(told["error"]["data"]["run"])
        assert len(runs) == len(await server.engine.runs.search(RunFilter())) == 1


async def test_a_changed_state_is_a_bad_request(store: Path) -> None:
    params = {"name": "helper", "input": {"text": "ask"}}
    able = {"_meta": {wire.META_CAPABILITIES: {"elicitation": {"form": {}}}}}
    async with up(store, patience=WAIT) as (server, _), clients(server) as client:
        asked = (await (await client.modern("agents/run", {**params, **able})).json())["result"]
        bent = {"requestState": asked["requestState"][:-8] + "AAAAAAA=", "inputResponses": {}}
        answer = await client.modern("agents/run", {**params, **able, **bent})
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, -32602)
