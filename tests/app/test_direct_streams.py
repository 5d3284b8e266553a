"""Streams of runs that are over with their first commit are told at once, and say what they say otherwise."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.app.direct import DirectProtocol
from interlingua.app.serve import ServeSettings, serving
from interlingua.store.base import RunFilter
from tests.app.test_direct import connected


@il.agent
async def echo(text: str) -> str:
    return text


@il.agent
async def words(text: str) -> Any:
    for word in text.split():
        yield word + " "


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each request was answered: directly, or in the usual way."""
    found: list[str] = []
    committed, start = DirectProtocol._committed, DirectProtocol._start_asgi_task

    def noted(self: Any, waiting: Any, *rest: Any) -> None:
        committed(self, waiting, *rest)
        if waiting.response_complete:
            found.append("direct")

    def started(self: Any, *rest: Any) -> None:
        found.append("usual")
        start(self, *rest)

    monkeypatch.setattr(DirectProtocol, "_committed", noted)
    monkeypatch.setattr(DirectProtocol, "_start_asgi_task", started)
    return found


def stream(host: str, agent: str, *more: str, **members: Any) -> bytes:
    body = json.dumps({"agent_id": agent, "input": {"text": "one two"}, **members}).encode()
    head = [
        "POST /connect/runs/stream HTTP/1.1", f"host: {host}", "content-type: application/json", *more,
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def told(raw: Any) -> tuple[dict[str, str], list[str]]:
    """The headers and the lines of an event stream, however it is sent."""
    async with asyncio.timeout(20):
        status, *lines = (await raw.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        assert status.split()[1] == "200"
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in headers:
            body = await raw.reader.readexactly(int(headers["content-length"]))
        else:
            body = b""
            while size := int(await raw.reader.readline(), 16):
                body += (await raw.reader.readexactly(size + 2))[:-2]
            await raw.reader.readline()
    return headers, body.decode().split("\n")


async def test_a_short_run_is_streamed_at_once_and_as_otherwise(tmp_path: Path, ways: list[str]) -> None:
    async with serving(tmp_path / "store.db", [echo, words], ServeSettings(port=0)) as server, connected(server) as raw:
        for agent in ("echo", "words"):
            for mode in ("values", "custom", ["values", "custom"]):
                found = []
                # The other way is taken where the Host has not been seen yet, or there is something to look up.
                for more in ({"webhook": "http://127.0.0.1:9/"}, {}):
                    raw.send(stream(raw.host, agent, stream_mode=mode, **more))
                    headers, lines = await told(raw)
                    run = headers["content-location"].removeprefix("/connect/runs/")
                    assert (await server.engine.run(run)).status is il.Status.SUCCEEDED
                    del headers["content-location"], headers["date"]
                    headers.pop("content-length", None)
                    headers.pop("transfer-encoding", None)
                    updates = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
                    ids = [line for line in lines if line.startswith(("id: ", "event: "))]
                    found.append((headers, ids, [{**update, "run_id": ""} for update in updates]))
                assert found[0] == found[1]
                assert ways[-1] == "direct"


async def test_the_same_key_gives_the_same_run_however_often_and_however_close(tmp_path: Path, ways: list[str]) -> None:
    async with (
        serving(tmp_path / "store.db", [echo], ServeSettings(port=0)) as server,
        connected(server) as raw,
        connected(server) as other,
    ):
        raw.send(stream(raw.host, "echo"))
        await told(raw)
        found = set()
        for _ in range(2):
            raw.send(stream(raw.host, "echo", "idempotency-key: once"))
            other.send(stream(raw.host, "echo", "idempotency-key: once"))
            for one in (raw, other):
                headers, lines = await told(one)
                found.add(headers["content-location"])
                assert any('"success"' in line for line in lines)
        assert len(found) == 1
        assert len(await server.engine.runs(RunFilter(agent="echo"))) == 2
    assert ways.count("direct") == 1
