"""Servers at an address: where the server by hand is found there, and what is said of one that is no server at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua_conform.base import Roles, Subject

from ..common import failures, findings
from . import broken

# method and path, and the body: status, headers and body of the answer; None hangs up
Answering = Callable[[str, bytes], tuple[int, dict[str, str], bytes] | None]

NOT_FOUND: tuple[int, dict[str, str], bytes] = (404, {}, b"")


@contextlib.asynccontextmanager
async def web(answering: Answering) -> AsyncIterator[str]:
    """A server that answers one request per connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length" in line), 0
            )
            answer = answering(head.partition(" HTTP/1.1")[0], await reader.readexactly(length))
            if answer is not None:
                status, headers, body = answer
                lines = [f"HTTP/1.1 {status} So", *(f"{name}: {value}" for name, value in headers.items())]
                lines += [f"content-length: {len(body)}", "connection: close", "", ""]
                writer.write("\r\n".join(lines).encode() + body)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/mcp"


def by_hand(body: bytes, written: list[dict[str, Any]], kind: str) -> tuple[int, dict[str, str], bytes]:
    """What the server by hand says to a POST."""
    written.clear()
    try:
        broken.take(json.loads(body))
    except ValueError:
        return 400, {}, b"that is no JSON"
    if not written:
        return 202, {}, b""
    if kind == "text/event-stream":
        return 200, {"content-type": kind}, b"".join(b"data: %s\n\n" % json.dumps(m).encode() for m in written)
    return 200, {"content-type": kind}, json.dumps(written[-1]).encode()


@pytest.mark.parametrize(("kind", "shows"), [("application/json", False), ("text/event-stream", True)])
async def test_a_server_whose_path_has_moved_is_followed(
    monkeypatch: pytest.MonkeyPatch, kind: str, shows: bool
) -> None:
    """With answers of plain JSON there is no room for progress, nor for telling of agents that come and go."""
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(broken, "write", lambda **message: written.append({"jsonrpc": "2.0", **message}))

    def answering(line: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if line == "POST /mcp":
            return 307, {"location": "/mcp/"}, b""
        return by_hand(body, written, kind) if line == "POST /mcp/" else NOT_FOUND

    async with web(answering) as address:
        found = await findings("mcp", Subject(address=address, roles=Roles(agent="gpa"), quiet=0.05))
    assert set(failures(found)) == (set() if shows else {"mcp.door.list-changed"})
    assert found["mcp.running.method"].verdict == "pass"
    assert (found["mcp.progress.deltas-make-output"].verdict == "pass") is shows


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "RemoteProtocolError"),
        ((200, {"content-type": "text/html"}, b"<html>"), "is no event stream"),
        ((200, {"content-type": "application/json"}, b"[1, 2"), "ended without one to the request"),
        ((500, {}, b"oops"), "HTTP 500: oops"),
        ((307, {"location": "http://elsewhere.invalid/"}, b""), "HTTP 307"),
        ((307, {"location": "/mcp"}, b""), "HTTP 307"),
        ((200, {"content-type": "text/event-stream"}, b"data: hello\n\n"), "before the event endpoint came"),
        ((200, {"content-type": "text/event-stream"}, b"event: endpoint\ndata: /gone\n\n"), "the event stream ended"),
    ],
)
async def test_what_is_no_server_is_told_and_not_judged(answer: Any, said: str) -> None:
    async with web(lambda line, body: answer) as address:
        with pytest.raises(Unavailable, match="no MCP server answers there") as caught:
            await findings("mcp", Subject(address=address, patience=2.0))
    assert said in caught.value.message


async def test_where_nothing_listens_that_is_said() -> None:
    async with web(lambda line, body: None) as address:
        pass
    with pytest.raises(Unavailable, match="nothing answers at"):
        await findings("mcp", Subject(address=address, patience=2.0))


async def test_a_command_that_is_no_server_is_told() -> None:
    with pytest.raises(Unavailable, match="the process ended"):
        await findings("mcp", Subject(command=("true",), patience=2.0))
    with pytest.raises(Unavailable, match="cannot be started"):
        await findings("mcp", Subject(command=("/no/such/command",)))
    with pytest.raises(InvalidRequest, match="a command, or at an address"):
        await findings("mcp", Subject(address="ws://localhost"))
