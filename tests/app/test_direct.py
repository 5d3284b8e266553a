"""Short runs are answered without ASGI; everything that is not so simple goes the usual way, and nobody can tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.app.direct import DirectProtocol
from interlingua.app.serve import Server, ServeSettings, serving
from interlingua.engine.log import LiveLog
from interlingua.model.errors import StoreError
from interlingua.store.base import RunFilter

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


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each request was answered: directly, or in the usual way after all."""
    ways: list[str] = []
    committed, start = DirectProtocol._committed, DirectProtocol._start_asgi_task

    def noted(self: Any, waiting: Any, *rest: Any) -> None:
        committed(self, waiting, *rest)
        if waiting.response_complete:
            ways.append("direct")

    def started(self: Any, *rest: Any) -> None:
        ways.append("usual")
        start(self, *rest)

    monkeypatch.setattr(DirectProtocol, "_committed", noted)
    monkeypatch.setattr(DirectProtocol, "_start_asgi_task", started)
    return ways


@contextlib.asynccontextmanager
async def up(folder: Path, **settings: Any) -> AsyncIterator[tuple[Server, Gate]]:
    gate = Gate()
    async with serving(folder / "s.db", agents(gate), ServeSettings(port=0, **settings)) as server:
        yield server, gate
        gate.open.set()


async def test_a_short_run_is_answered_directly_and_is_in_the_store(tmp_path: Path, directly: list[str]) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "first"))  # the headers of a stranger are checked in the usual way
        first = await raw.answer()
        for number in range(2, 5):
            raw.send(post(raw, "echo", "höher", number))
            status, headers, told = await raw.answer()
            assert (status, headers["content-type"], told["id"]) == (200, "application/json", number)
            assert told["result"]["output"] == {"text": "höher"}
            assert set(headers) == set(first[1])
            assert set(told["result"]) == set(first[2]["result"])
            run = await server.engine.run(told["result"]["_meta"]["interlingua/run"])
            assert run.output == {"text": "höher"}
    assert directly == ["usual", "direct", "direct", "direct"]


async def test_requests_that_come_together_are_answered_in_order(tmp_path: Path, directly: list[str]) -> None:
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


async def test_a_run_that_takes_longer_is_answered_when_it_ends_and_begun_once(
    tmp_path: Path, directly: list[str]
) -> None:
    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        raw.send(post(raw, "patient", "slowly", 2))
        await gate.entered.wait()
        gate.open.set()
        assert (await raw.answer())[2]["result"]["output"] == {"text": "slowly"}
        assert len(await server.engine.runs(RunFilter(agent="patient"))) == 1
    assert len(directly) == 2, "one request, one answer: after the first commit, or later"


async def test_a_client_that_leaves_before_the_first_commit_takes_its_run_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = DirectProtocol._committed
    dropped = asyncio.Event()

    def late(self: Any, waiting: Any, *rest: Any) -> None:
        waiting.disconnected = True  # what uvicorn does, a moment before
        committed(self, waiting, *rest)
        dropped.set()

    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        monkeypatch.setattr(DirectProtocol, "_committed", late)
        raw.send(post(raw, "patient", "never", 2))
        async with asyncio.timeout(20):
            await dropped.wait()
            await gate.left.wait()
        (run,) = await server.engine.runs(RunFilter(agent="patient"))
        async with asyncio.timeout(20):
            assert (await server.engine.wait(run.id)).status is il.Status.CANCELLED


async def test_a_client_that_leaves_before_its_request_is_read_takes_its_run_along(
    tmp_path: Path, directly: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = DirectProtocol._usual

    def gone(self: DirectProtocol, *args: Any) -> None:
        usual(self, *args)
        self.connection_lost(None)  # the loop has not come to what the usual way does first
        self.transport.abort()

    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        monkeypatch.setattr(DirectProtocol, "_usual", gone)
        raw.send(post(raw, "patient", "never", 2))
        async with asyncio.timeout(20):
            await gate.left.wait()
            (run,) = await server.engine.runs(RunFilter(agent="patient"))
            assert (await server.engine.wait(run.id)).status is il.Status.CANCELLED


async def test_a_client_that_leaves_takes_its_run_along(tmp_path: Path, directly: list[str]) -> None:
    async with up(tmp_path) as (server, gate):
        async with connected(server) as raw:
            raw.send(post(raw, "echo", "x"))
            await raw.answer()
            raw.send(post(raw, "patient", "never", 2))
            await gate.entered.wait()
        async with asyncio.timeout(20):
            await gate.left.wait()
        (run,) = await server.engine.runs(RunFilter(agent="patient"))
        async with asyncio.timeout(20):
            assert (await server.engine.wait(run.id)).status is il.Status.CANCELLED


@pytest.mark.parametrize("cut", [1, 50, 200, -1])
async def test_a_request_that_comes_in_pieces_goes_the_usual_way(tmp_path: Path, directly: list[str], cut: int) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        data = post(raw, "echo", "in pieces", 2)
        cut = cut if cut > 0 else len(data) + cut
        raw.send(data[:cut])
        await raw.writer.drain()
        raw.writer.get_extra_info("socket")
        await server.engine.runs(RunFilter())  # the server has had its turn, more than once
        raw.send(data[cut:])
        assert (await raw.answer())[2]["result"]["output"] == {"text": "in pieces"}


async def test_what_must_be_checked_is_checked(tmp_path: Path, directly: list[str]) -> None:
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
    assert "direct" not in directly


async def test_a_server_with_keys_asks_for_them(tmp_path: Path, directly: list[str]) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        assert (await raw.answer())[0] == 200
        raw.send(post(raw, "echo", "x"))
        assert (await raw.answer())[0] == 200
        server.app._auth.open_to_all = False
        raw.send(post(raw, "echo", "x"))
        assert (await raw.answer())[0] == 401
    assert directly == ["usual", "direct", "usual"]


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


async def test_a_request_that_is_answered_directly_is_one_line_of_the_log_as_any_other(
    tmp_path: Path, directly: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "interlingua.access")
    async with up(tmp_path) as (server, _), connected(server) as raw:
        for number in (1, 2):
            raw.send(post(raw, "echo", "x", number))
            await raw.answer()
    assert directly == ["usual", "direct"]
    assert [record.getMessage() for record in caplog.records] == ["POST /mcp/ 200", "POST /mcp/ 200"]
    usual, direct = (record.__dict__["fields"] for record in caplog.records)
    assert direct.pop("ms") >= 0
    del usual["ms"]
    assert {**usual, "caller": direct["caller"]} == direct  # who asks is noted by servers that log from the start


async def test_what_the_store_would_not_have_is_told_as_an_error(
    tmp_path: Path, directly: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(post(raw, "echo", "x"))
        await raw.answer()
        refuse = partialmethod(LiveLog.refused, error=StoreError("the disk is full"))
        monkeypatch.setattr(LiveLog, "committed", refuse)
        raw.send(post(raw, "echo", "x", 2))
        _, _, told = await raw.answer()
        assert (told["id"], told["error"]["message"]) == (2, "the disk is full")
    assert directly == ["usual", "usual"]


# -- Agent Connect --------------------------------------------------------------------------------------------


def create(raw: Raw, agent: str, text: str, *more: str, **members: Any) -> bytes:
    body = json.dumps({"agent_id": agent, "input": {"text": text}, **members}).encode()
    head = [
        "POST /connect/runs/wait HTTP/1.1", f"host: {raw.host}", "content-type: application/json", *more,
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def test_a_run_that_is_created_and_waited_for_is_answered_directly(tmp_path: Path, directly: list[str]) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(create(raw, "echo", "a"))
        first = await raw.answer()
        raw.send(create(raw, "echo", "a", metadata={"colour": "blue"}))
        status, headers, told = await raw.answer()
        assert (status, set(headers)) == (200, set(first[1]))
        assert told["output"] == first[2]["output"]
        assert told["run"]["status"] == "success"
        assert (await server.engine.run(told["run"]["run_id"])).metadata == {"colour": "blue"}
        raw.send(create(raw, "broken", "a"))
        assert (await raw.answer())[2]["output"]["description"] == "so it is"
    assert directly == ["usual", "direct", "direct"]


async def test_a_run_with_something_to_look_up_goes_the_usual_way(tmp_path: Path, directly: list[str]) -> None:
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
    assert directly == ["usual"] * 6


async def test_who_leaves_a_run_that_takes_longer_cancels_it_as_it_said(tmp_path: Path, directly: list[str]) -> None:
    for choice, ends in (("cancel", il.Status.CANCELLED), ("continue", il.Status.SUCCEEDED)):
        (folder := tmp_path / choice).mkdir()
        async with up(folder) as (server, gate):
            async with connected(server) as raw:
                raw.send(create(raw, "echo", "a"))
                await raw.answer()
                raw.send(create(raw, "patient", "a", on_disconnect=choice))
                await gate.entered.wait()
            async with asyncio.timeout(20):
                while not (runs := await server.engine.runs(RunFilter(agent="patient"))):
                    pass  # it began before its first commit
                (run,) = runs
                if choice == "continue":
                    gate.open.set()
                assert (await server.engine.wait(run.id)).status is ends
