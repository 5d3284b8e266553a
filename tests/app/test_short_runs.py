"""Short runs over HTTP, byte by byte: answers in order, clients that leave, requests in pieces, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.store.sql.dialect import Pipelined

MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


class Gate:
    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered = asyncio.Event()
        self.left = asyncio.Event()


def agents(gate: Gate) -> list[il.Agent[..., Any]]:
    @il.agent
    async def echo(text: str) -> str:
        return text

    @il.agent
    async def patient(text: str) -> str:
        gate.entered.set()
        try:
            await gate.open.wait()
        finally:
            gate.left.set()
        return text

    @il.agent
    async def broken(text: str) -> str:
        raise il.AgentError("so it is")

    return [echo, patient, broken]


class Raw:
    """One connection, and bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self.host = reader, writer, host

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), headers, json.loads(body) if body else None


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Raw]:
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer, f"{host}:{port}")
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(raw: Raw, agent: str, text: str, number: int = 1, *more: str, host: str | None = None) -> bytes:
    body = json.dumps({
        "jsonrpc": "2.0", "id": number, "method": "agents/run",
        "params": {"name": agent, "input": {"text": text}, "_meta": META},
    }).encode()  # fmt: skip
    head = [
        "POST /mcp HTTP/1.1", f"host: {host or raw.host}", "content-type: application/json",
        "accept: application/json, text/event-stream", f"mcp-protocol-version: {MODERN}", "mcp-method: agents/run",
        f"mcp-name: {agent}", *more, f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@contextlib.asynccontextmanager
async def up(folder: Path, **settings: Any) -> AsyncIterator[tuple[Server, Gate]]:
    gate = Gate()
    async with serving(folder / "s.db", agents(gate), ServeSettings(port=0, **settings)) as server:
        yield server, gate
        gate.open.set()


async def test_a_short_run_is_answered_and_is_in_the_store(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "first"))
        first = await raw.answer()
        for number in range(2, 5):
            raw.send(post(raw, "echo", "höher", number))
            status, headers, told = await raw.answer()
            assert (status, headers["content-type"], told["id"]) == (200, "application/json", number)
            assert told["result"]["output"] == {"text": "höher"}
            assert set(headers) == set(first[1])
            assert set(told["result"]) == set(first[2]["result"])
            run = await server.engine.runs.get(told["result"]["_meta"]["interlingua/run"])
            assert run.output == {"text": "höher"}


async def test_requests_that_come_together_are_answered_in_order(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        raw.send(
            post(raw, "echo", "a", 2) + post(raw, "patient", "b", 3) + post(raw, "echo", "c", 4)
            + post(raw, "broken", "d", 5) + post(raw, "echo", "e", 6)
        )  # fmt: skip
        assert (await raw.answer())[2]["id"] == 2
        await gate.entered.wait()
        gate.open.set()
        told = [(await raw.answer())[2] for _ in range(4)]
        assert [one["id"] for one in told] == [3, 4, 5, 6]
        assert told[0]["result"]["output"] == {"text": "b"}
        assert told[2]["error"]["message"] == "so it is"
        assert told[3]["result"]["output"] == {"text": "e"}


async def test_a_run_that_takes_longer_is_answered_when_it_ends_and_begun_once(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        raw.send(post(raw, "patient", "slowly", 2))
        await gate.entered.wait()
        gate.open.set()
        assert (await raw.answer())[2]["result"]["output"] == {"text": "slowly"}
        assert len(await server.engine.runs.search(RunFilter(agent="patient"))) == 1


async def test_a_client_that_leaves_takes_its_run_along(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, gate):
        async with connected(server) as raw:
            raw.send(post(raw, "echo", "x"))
            await raw.answer()
            raw.send(post(raw, "patient", "never", 2))
            await gate.entered.wait()
        async with asyncio.timeout(20):
            await gate.left.wait()
        (run,) = await server.engine.runs.search(RunFilter(agent="patient"))
        async with asyncio.timeout(20):
            assert (await server.engine.runs.wait(run.id)).status is il.Status.CANCELLED


@pytest.mark.parametrize("cut", [1, 50, 200, -1])
async def test_a_request_may_come_in_pieces(tmp_path: Path, cut: int) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        data = post(raw, "echo", "in pieces", 2)
        cut = cut if cut > 0 else len(data) + cut
        raw.send(data[:cut])
        await raw.writer.drain()
        raw.writer.get_extra_info("socket")
        await server.engine.runs.search(RunFilter())  # the server has had its turn, more than once
        raw.send(data[cut:])
        assert (await raw.answer())[2]["result"]["output"] == {"text": "in pieces"}


async def test_what_must_be_checked_is_checked(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        assert (await raw.answer())[0] == 200
        for data, wanted in [
            (post(raw, "echo", "x", host="evil.example"), 403),
            (post(raw, "echo", "x", 1, "origin: http://evil.example"), 403),
            (post(raw, "echo", "x", 1, "x-api-key: nobody"), 401),
            (post(raw, "echo", "x", 1, "authorization: Bearer nobody"), 401),
            (post(raw, "echo", "x", 1, "mcp-name: other"), 400),
            (post(raw, "echo", "x").replace(b"application/json\r\naccept", b"text/plain\r\naccept"), 415),
            (post(raw, "echo", "x").replace(b"application/json, text/event-stream", b"text/html"), 406),
            (post(raw, "echo", "x").replace(b'{"jsonrpc"', b'["jsonrpc"'), 400),
        ]:
            raw.send(data)
            assert (await raw.answer())[0] == wanted


async def test_a_server_with_keys_asks_for_them(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        assert (await raw.answer())[0] == 200
        server.app._auth.open_to_all = False
        raw.send(post(raw, "echo", "x"))
        assert (await raw.answer())[0] == 401


async def test_who_wants_the_connection_closed_or_waits_for_100_gets_that(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _):
        async with connected(server) as raw:
            raw.send(post(raw, "echo", "x"))
            await raw.answer()
            raw.send(post(raw, "echo", "x", 2, "connection: close"))
            assert (await raw.answer())[2]["id"] == 2
            assert await raw.reader.read() == b""
        async with connected(server) as raw:
            head, _, body = post(raw, "echo", "x", 3, "expect: 100-continue").partition(b"\r\n\r\n")
            raw.send(head + b"\r\n\r\n")
            assert await raw.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            raw.send(body)
            assert (await raw.answer())[2]["id"] == 3


async def test_a_short_request_is_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlingua.access")
    async with up(tmp_path) as (server, _), connected(server) as raw:
        for number in (1, 2):
            raw.send(post(raw, "echo", "x", number))
            await raw.answer()
    assert [record.getMessage() for record in caplog.records] == ["POST /mcp/ 200", "POST /mcp/ 200"]


@pytest.mark.parametrize("door", ["mcp", "connect", "peer"])
async def test_where_the_store_refuses_the_run_the_agent_is_not_called(tmp_path: Path, door: str) -> None:
    async with up(tmp_path) as (server, gate), connected(server) as raw:
        make = {"mcp": post, "connect": create, "peer": message}[door]
        raw.send(make(raw, "echo", "x"))
        assert (await raw.answer())[0] == 200
        with refusing(server.engine.core.store):
            raw.send(make(raw, "patient", "x"))
            status, _, told = await raw.answer()
        assert status == 503 or "error" in told
        assert "the store could not write" in json.dumps(told)
        raw.send(make(raw, "echo", "x"))
        assert (await raw.answer())[0] == 200
        assert not gate.entered.is_set()
        assert await server.engine.runs.search(RunFilter(agent="patient")) == []


@contextlib.contextmanager
def refusing(store: Any) -> Iterator[None]:
    """A store that cannot write any row of a new run."""
    transaction = store.database.writer._transaction

    def refuse(sealed: Any, calls: Any, results: Any) -> None:
        if any(isinstance(call, Pipelined) for call, *_ in calls):
            raise OSError("the disk is full")
        transaction(sealed, calls, results)

    store.database.writer._transaction = refuse
    try:
        yield
    finally:
        store.database.writer._transaction = transaction


def message(raw: Raw, agent: str, text: str) -> bytes:
    body = json.dumps({"role": "user", "text": text, "skill_id": agent, "sync": True}).encode()
    head = [
        "POST /peer/message:send HTTP/1.1", f"host: {raw.host}", "content-type: application/json",
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


# -- Agent Connect --------------------------------------------------------------------------------------------


def create(raw: Raw, agent: str, text: str, *more: str, **members: Any) -> bytes:
    body = json.dumps({"agent_id": agent, "input": {"text": text}, **members}).encode()
    head = [
        "POST /connect/runs/wait HTTP/1.1", f"host: {raw.host}", "content-type: application/json", *more,
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def test_a_run_is_created_and_waited_for_in_one_request(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(create(raw, "echo", "a"))
        first = await raw.answer()
        raw.send(create(raw, "echo", "a", metadata={"colour": "blue"}))
        status, headers, told = await raw.answer()
        assert (status, set(headers)) == (200, set(first[1]))
        assert told["output"] == first[2]["output"]
        assert told["run"]["status"] == "success"
        assert (await server.engine.runs.get(told["run"]["run_id"])).metadata == {"colour": "blue"}
        raw.send(create(raw, "broken", "a"))
        assert (await raw.answer())[2]["output"]["description"] == "so it is"


async def test_a_run_with_something_to_look_up_is_answered_or_refused(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(create(raw, "echo", "a"))
        await raw.answer()
        for data, wanted in [
            (create(raw, "echo", "a", on_completion="keep"), 200),
            (create(raw, "echo", "a", webhook="http://127.0.0.1:9/"), 200),
            (create(raw, "nobody", "a"), 404),
            (create(raw, "echo", "a", input={"text": 3}), 422),
            (create(raw, "echo", "a", agent_id=3), 422),
        ]:
            raw.send(data)
            assert (await raw.answer())[0] == wanted


async def test_who_leaves_a_run_that_takes_longer_cancels_it_as_it_said(tmp_path: Path) -> None:
    for choice, ends in (("cancel", il.Status.CANCELLED), ("continue", il.Status.SUCCEEDED)):
        (folder := tmp_path / choice).mkdir()
        async with up(folder) as (server, gate):
            async with connected(server) as raw:
                raw.send(create(raw, "echo", "a"))
                await raw.answer()
                raw.send(create(raw, "patient", "a", on_disconnect=choice))
                await gate.entered.wait()
            async with asyncio.timeout(20):
                (run,) = await server.engine.runs.search(RunFilter(agent="patient"))
                if choice == "continue":
                    gate.open.set()
                assert (await server.engine.runs.wait(run.id)).status is ends


def stream(host: str, agent: str, *more: str, **members: Any) -> bytes:
    body = json.dumps({"agent_id": agent, "input": {"text": "one two"}, **members}).encode()
    head = [
        "POST /connect/runs/stream HTTP/1.1", f"host: {host}", "content-type: application/json", *more,
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def told(raw: Raw) -> tuple[dict[str, str], list[str]]:
    """The headers and the lines of an event stream."""
    async with asyncio.timeout(20):
        status, *lines = (await raw.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        assert status.split()[1] == "200"
        body = b""
        while size := int(await raw.reader.readline(), 16):
            body += (await raw.reader.readexactly(size + 2))[:-2]
        await raw.reader.readline()
    return dict(line.lower().split(": ", 1) for line in lines), body.decode().split("\n")


async def test_the_same_key_gives_the_same_run_however_often_and_however_close(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw, connected(server) as other:
        found = set()
        for _ in range(3):
            for one in (raw, other):
                one.send(stream(raw.host, "echo", "idempotency-key: once"))
            for one in (raw, other):
                headers, lines = await told(one)
                found.add(headers["content-location"])
                assert any('"success"' in line for line in lines)
        assert len(found) == 1
        assert len(await server.engine.runs.search(RunFilter(agent="echo"))) == 1
