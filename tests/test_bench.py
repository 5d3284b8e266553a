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

from bench.__main__ import BENCHMARKS
from bench.editor_client import check, expected
from bench.load import Found, Job, Load, token
from bench.mcp_client import HANDSHAKE, MODERN, Asks, counting, echo
from bench.mcp_client import check as check_mcp
from bench.mcp_posts import Job as Posts
from bench.mcp_posts import Load as PostsLoad
from bench.mcp_posts import messages
from bench.peer import Arrivals
from bench.peer_node import Done, Tally
from bench.peer_streams import Heard, finish, read
from bench.peer_streams import Job as StreamsJob

ROOT = Path(__file__).parent.parent


ENGINE = {
    "throughput": ["durable runs"], "alone": ["p50 of a whole run"], "streaming": ["through one run"],
    "joining": ["one array"], "waiting": ["waits"], "beside-cpu": ["in a process"],
    "teams": ["through the gate, 16 at once", "one inquiry", "delegations of one run at once"],
    "serving": ["create and wait over HTTP, 64 clients", "the same without a key"],
    "sse": ["p99 delay of a token", "memory of a stream", "first event, p99"],
}  # fmt: skip
DOORS = {
    "editor": ["16 sessions at once", "while a client reads slowly", "one long answer"],
    "mcp": [
        "until initialize is answered", "memory after 100 runs", "stdio: agents/run, 16 at once", "HTTP, 2025-11-25",
        "HTTP, 2026-07-28",
    ],
    "peer": ["/message:send over HTTP, 200 clients", "WebSocket, 1,000 under way", "readers of /stream, p99"],
    "bridge": ["editor → hub → cap", "p50: connect → hub → peer", "bridged runs at once", "memory of the hub"],
}  # fmt: skip


@pytest.mark.parametrize(
    "benchmarks", [pytest.param(ENGINE, id="engine"), pytest.param(DOORS, id="doors", marks=pytest.mark.faults)]
)
def test_every_benchmark_runs(benchmarks: dict[str, list[str]]) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "250"}  # no line is broken
    chosen = [word for name in benchmarks for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", *chosen], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for lines in benchmarks.values():
        for line in lines:
            assert line in done.stdout


def test_no_benchmark_is_left_out() -> None:
    assert sorted({**ENGINE, **DOORS}) == sorted(BENCHMARKS)


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


# -- agents over MCP ------------------------------------------------------------------------------------------


def _progress(text: str, token: int = 1, **more: str) -> bytes:
    params = {"progressToken": token, "delta": {"text": text, **more}}
    return json.dumps({"method": "notifications/agents/run/progress", "params": params}).encode()


def _result(text: str, id_: int = 1) -> bytes:
    return json.dumps({"id": id_, "result": {"output": {"text": text}}}).encode()


def test_the_mcp_client_counts_the_deltas_of_every_run() -> None:
    lines = [
        _progress("token0 "),
        _progress("token0 token1 ", 2),
        _progress("token1 "),
        _result("token0 token1 ", 2),
        _result("token0 token1 "),
    ]
    assert check_mcp(lines, [1, 2], counting(2)) == 3
    assert check_mcp([_result(echo().says)], [1], echo()) == 0


@pytest.mark.parametrize(
    "lines",
    [
        [_result("token0 token1 ")],
        [_progress("token0 "), _result("token0 token1 ")],
        [_progress("token1 "), _progress("token0 "), _result("token0 token1 ")],
        [_progress("token0 token1 "), _progress("token1 "), _result("token0 token1 ")],
        [_progress("token0 "), _result("token0 token1 "), _progress("token1 ")],
        [_progress("token0 token1 ", 3), _result("token0 token1 ")],
        [_progress("token0 token1 ", more="x"), _result("token0 token1 ")],
        [_progress("token0 token1 "), _result("token0 ")],
        [_progress("token0 token1 "), _result("token0 token1 ", 2)],
        [_progress("token0 token1 "), _result("token0 token1 "), _result("token0 token1 ")],
        [_progress("token0 token1 "), b'{"id": 1, "error": {"code": -1}}'],
        [_progress("token0 token1 "), b'{"method": "notifications/message"}', _result("token0 token1 ")],
        [_progress("token0 token1 ")],
        [],
    ],
)
def test_the_mcp_client_fails_where_a_run_lost_something(lines: list[bytes]) -> None:
    with pytest.raises(RuntimeError):
        check_mcp(lines, [1], counting(2))


def test_the_mcp_client_fails_where_deltas_come_that_nobody_wanted() -> None:
    text = echo().says
    with pytest.raises(RuntimeError):
        check_mcp([_progress(text), _result(text)], [1], echo())


async def _posts(job: Posts, *answers: bytes) -> int:
    """How many messages with deltas the client gets of a server that gives these answers, in the smallest pieces."""
    left = list(answers)
    asked: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                asked.append(head + await reader.readexactly(size))
                for byte in left.pop(0):
                    writer.write(bytes([byte]))
                    await writer.drain()
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        job.port = server.sockets[0].getsockname()[1]
        try:
            found = await PostsLoad(job).run()
        finally:
            await over.wait()
    assert b'"agents/run"' in asked[-1]
    return found.messages


def _json(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    told = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, told, len(body), body)


def _events(*lines: bytes, end: bytes = b"\n") -> bytes:
    chunks = [b"id: 1%sdata:%s" % (end, end * 2), *(b"data: %s%s" % (line, end * 2) for line in lines), b""]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + sent


FIRST, SECOND = 1_000_000, 1_000_001


def test_the_mcp_client_over_http_reads_json_and_streams() -> None:
    asks = counting(2)
    whole = [_progress("token0 ", FIRST), _progress("token1 ", FIRST), _result(asks.says, FIRST)]
    again = [_progress("token0 token1 ", SECOND), _result(asks.says, SECOND)]
    posts = Posts(0, MODERN, asks, 2, 1)
    assert asyncio.run(_posts(posts, _events(*whole), _events(*again, end=b"\r\n"))) == 3
    assert asyncio.run(_posts(Posts(0, MODERN, echo(), 1, 1), _json(_result(echo().says, FIRST)))) == 0


def test_the_mcp_client_over_http_makes_a_session_first() -> None:
    hello = json.dumps({"id": 0, "result": {"protocolVersion": HANDSHAKE}}).encode()
    answers = [
        _json(hello, b"Mcp-Session-Id: s"),
        _json(b"", status=b"202 Accepted"),
        _json(_result(echo().says, FIRST)),
    ]
    assert asyncio.run(_posts(Posts(0, HANDSHAKE, echo(), 1, 1), *answers)) == 0


@pytest.mark.parametrize(
    ("asks", "answer"),
    [
        (echo(), _json(_result("something else", FIRST))),
        (echo(), _json(_result(echo().says, SECOND))),
        (echo(), _json(_result(echo().says, FIRST), status=b"500 Internal Server Error")),
        (counting(2), _events(_progress("token0 ", FIRST), _result("token0 token1 ", FIRST))),
        (counting(2), _events(_progress("token0 token1 ", FIRST))),
    ],
)
def test_the_mcp_client_over_http_fails_where_an_answer_is_wrong(asks: Asks, answer: bytes) -> None:
    with pytest.raises(RuntimeError):
        asyncio.run(_posts(Posts(0, MODERN, asks, 1, 1), answer))


def test_a_stream_that_is_cut_is_not_taken_for_whole() -> None:
    with pytest.raises(ValueError, match="not found"):
        messages(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream", b"5\r\ndata:\r\n")


# -- nodes ----------------------------------------------------------------------------------------------------


async def _listens(*seqs: int, events: list[int]) -> Heard:
    """What a reader of /stream hears of a node that tells these events after event 7, in the smallest pieces."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        told = [b": keepalive\nevent: acp.ready\ndata: " + b'{"type":"ready","seq":7}' + b"\n\n: ...\n"]
        told += [b"id: %d\ndata: " % seq + b'{"type":"message"}' + b"\n\n" for seq in seqs]
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for byte in b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in told):
                writer.write(bytes([byte]))
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        readers = await read(StreamsJob(server.sockets[0].getsockname()[1], 1))
        try:
            return (await finish(readers, events))[0]
        finally:
            readers[0].transport.abort()


def test_the_reader_of_a_stream_notes_when_each_event_came() -> None:
    heard = asyncio.run(_listens(8, 9, 10, events=[9, 10]))
    assert [seq for seq, _ in heard] == [9, 10]
    assert heard[0][1] <= heard[1][1]


@pytest.mark.parametrize("seqs", [(8, 10), (8, 8, 9, 10), (9, 10), (8, 9), ()])
def test_the_reader_of_a_stream_fails_where_an_event_is_missing_or_comes_twice(seqs: tuple[int, ...]) -> None:
    with pytest.raises((RuntimeError, ConnectionError)):
        asyncio.run(_listens(*seqs, events=[8, 9, 10]))


class _Counted:
    """A node that tells these counts, one after another."""

    def __init__(self, *told: Done) -> None:
        self._told = list(told)

    async def say(self, what: Tally, answer: type[Done]) -> Done:
        return self._told.pop(0)


def test_messages_that_came_are_counted_since_the_last_time() -> None:
    async def count() -> None:
        arrivals = Arrivals(_Counted(Done(), Done()), _Counted(Done(letters=5), Done(letters=8)))
        await arrivals.check(5)
        await arrivals.check(3)

    asyncio.run(count())


@pytest.mark.parametrize("told", [Done(letters=4), Done(letters=6), Done(letters=5, again=1)])
def test_a_message_that_is_missing_or_came_twice_is_noticed(told: Done) -> None:
    with pytest.raises(RuntimeError):
        asyncio.run(Arrivals(_Counted(Done()), _Counted(told)).check(5))
