"""The benchmarks still run. What they find is for `make bench`, on a quiet machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.editor_client import check, expected
from bench.load import Found, Job, Load, token

ROOT = Path(__file__).parent.parent


def test_every_benchmark_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (
        "durable runs", "p50 of a whole run", "through one run", "one array", "waits", "in a process",
        "create and wait over HTTP, 64 clients", "p99 delay of a token", "memory of a stream", "first event, p99",
        "until initialize is answered", "16 sessions at once", "while a client reads slowly", "one long answer",
    ):  # fmt: skip
        assert name in done.stdout


async def _answers(*answers: bytes) -> Found:
    """What the load finds at a server that gives these answers, one after another."""
    left, over = list(answers), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                for byte in left.pop(0):  # in the smallest pieces there are
                    writer.write(bytes([byte]))
                    await writer.drain()
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        try:
            return await Load(Job(port, "/", {}, 1, len(answers), streams=True, tokens=2)).run()
        finally:
            await over.wait()


def _stream(*tokens: str, result: str | None = None) -> bytes:
    made = "".join(tokens) if result is None else result
    updates = [{"type": "custom", "status": "pending", "update": {"delta": {"text": token}}} for token in tokens]
    updates.append({"type": "values", "status": "success", "values": {"text": made}})
    chunks = [b"data: %s\n\n" % json.dumps(update).encode() for update in updates]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + sent


def test_the_load_counts_every_token_of_every_stream() -> None:
    found = asyncio.run(_answers(_stream(token(0), token(1)), _stream(token(0) + token(1))))
    assert len(found.delays) == 4
    assert len(found.firsts) == 2
    assert found.events == 5
    assert all(0 <= delay < 60 for delay in found.delays)


@pytest.mark.parametrize(
    "stream",
    [
        _stream(token(0)),
        _stream(token(0), token(2)),
        _stream(token(0), token(0)),
        _stream(token(1), token(0)),
        _stream(token(0), token(1), result="something else"),
        _stream(token(0), token(1)).replace(b'"success"', b'"timeout"'),
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_the_load_fails_where_a_stream_lost_something(stream: bytes) -> None:
    with pytest.raises(RuntimeError):
        asyncio.run(_answers(stream))


def _chunk(text: str, session: str = "s") -> bytes:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return json.dumps({"method": "session/update", "params": {"sessionId": session, "update": update}}).encode()


def _ended(id_: int, reason: str = "end_turn") -> bytes:
    return json.dumps({"id": id_, "result": {"stopReason": reason}}).encode()


def test_the_editor_client_counts_the_updates_of_every_turn() -> None:
    one, two = _chunk("token0 "), _chunk("token1 ")
    other = _chunk("token0 token1 ", "t")
    note = json.dumps({"method": "session/update", "params": {"update": {"sessionUpdate": "plan"}}}).encode()
    lines = [one, other, note, _ended(2), two, _ended(1), one, two, _ended(3)]
    assert check(lines, {1: "s", 2: "t", 3: "s"}, expected(2)) == 5


@pytest.mark.parametrize(
    "lines",
    [
        [_chunk("token0 "), _ended(1)],
        [_chunk("token1 "), _chunk("token0 "), _ended(1)],
        [_chunk("token0 token1 "), _chunk("token1 "), _ended(1)],
        [_chunk("token0 "), _ended(1), _chunk("token1 ")],
        [_chunk("token0 token1 "), _ended(1), _chunk("token2 ")],
        [_chunk("token0 token1 "), _ended(1, "cancelled")],
        [_chunk("token0 token1 "), b'{"id": 1, "error": {"code": -1}}'],
        [_chunk("token0 token1 "), _ended(1), _chunk("token0 token1 "), _ended(1)],
        [_chunk("token0 token1 ")],
        [],
    ],
)
def test_the_editor_client_fails_where_a_turn_lost_something(lines: list[bytes]) -> None:
    with pytest.raises(RuntimeError):
        check(lines, {1: "s"}, expected(2))
