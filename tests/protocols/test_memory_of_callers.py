"""What a caller can make a server hold: streams that nobody reads, and requests that are refused. Processes, sockets
and pipes are real; memory is what the system says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from tests.kit.clients.rpc import INTERLINGUA
from tests.kit.ports import free_port
from tests.kit.wait_for import wait_for

PATIENCE = 60.0
STEADY = 10  # looks at a memory that does not change
MIB = 1024 * 1024

AGENTS = """
import interlingua as il

@il.agent
async def echo(text: str):
    yield text

@il.agent
async def flood(text: str):
    for number in range(int(text)):
        yield f"{number:08d}" + "x" * 250_000
"""


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled_memory(pid: int) -> int:
    """The memory of a process, once it stays the same for half a second."""
    seen = [memory(pid)]
    async with asyncio.timeout(PATIENCE):
        while len(seen) <= STEADY or max(seen[-STEADY:]) - min(seen[-STEADY:]) > MIB:
            await asyncio.sleep(0.05)
            seen.append(memory(pid))
    return seen[-1]


@contextlib.contextmanager
def process(folder: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "agents.py").write_text(AGENTS)
    with (folder / "stderr").open("wb") as stderr:
        started = subprocess.Popen(
            [INTERLINGUA, *args, "--store", str(folder / "s.db")], cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "INTERLINGUA_PROJECT": "memory"},
        )  # fmt: skip
    try:
        yield started
    finally:
        started.terminate()
        with contextlib.suppress(OSError):
            started.communicate(timeout=20)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx2.AsyncClient, int]]:
    port = free_port()
    with process(folder, "serve", "agents.py", "--port", str(port), "--log", "off") as started:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:

            async def is_up() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    return (await http.get("/healthz")).is_success
                return False

            await wait_for(is_up, PATIENCE)
            yield started, http, port


def read(reader: socket.socket, size: int) -> bytes:
    """Take so many bytes of a stream. Gives the first of them."""
    began = b""
    while size > 0:
        piece = reader.recv(MIB)
        assert piece, "the stream ended"
        began, size = began or piece[:12], size - len(piece)
    return began


async def _peer(http: httpx2.AsyncClient) -> str:
    for number in range(40):
        said = {"role": "user", "message_id": f"m{number}", "sync": True, "skill_id": "echo"}
        parts = [{"type": "text", "content": f"{number}" + "x" * 500_000}]
        answer = await http.post("/peer/message:send", json={**said, "parts": parts})
        assert answer.is_success, answer.text
    return "/peer/stream?since=1"


async def _cap(http: httpx2.AsyncClient) -> str:
    notice = {"type": "delegation_notice", "task_id": "T1", "sender_id": "user", "recipient_id": "flood"}
    answer = await http.post("/cap/messages", json={**notice, "context_summary": "40", "attachments": []})
    assert answer.is_success, answer.text

    async def has_ended() -> bool:
        tasks = (await http.get("/cap/tasks")).json()["tasks"]
        return bool(tasks[0]["status"] == "succeeded")

    await wait_for(has_ended, PATIENCE)
    return "/cap/tasks/T1/events"


async def _connect(http: httpx2.AsyncClient) -> str:
    made = {"agent_id": "flood", "stream_mode": "custom", "input": {"text": "40"}}
    run = (await http.post("/connect/runs", json=made)).json()["run_id"]
    assert (await http.get(f"/connect/runs/{run}/wait")).is_success
    return f"/connect/runs/{run}/stream"


async def _connect_values(http: httpx2.AsyncClient) -> str:
    made = {"agent_id": "flood", "stream_mode": "values", "input": {"text": "40"}}
    run = (await http.post("/connect/runs", json=made)).json()["run_id"]
    assert (await http.get(f"/connect/runs/{run}/wait")).is_success
    return f"/connect/runs/{run}/stream"


@pytest.mark.parametrize("fill", [_peer, _cap, _connect, _connect_values])
async def test_streams_that_nobody_reads_cost_little_and_give_it_back(tmp_path: Path, fill: Any) -> None:
    async with served(tmp_path) as (started, http, port):
        path = await fill(http)
        before = memory(started.pid)
        request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n"
        request += "last-event-id: 1\r\n\r\n" if fill is _connect else "\r\n"
        readers = []
        try:
            for _ in range(40):
                reader = socket.create_connection(("127.0.0.1", port))
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.sendall(request.encode())
                readers.append(reader)
            # While this one takes megabytes, the others are given all that they are ever given.
            last = socket.create_connection(("127.0.0.1", port))
            readers.append(last)
            last.settimeout(PATIENCE)
            last.sendall(request.encode())
            assert await asyncio.to_thread(read, last, 9 * MIB) == b"HTTP/1.1 200"
            # What one is given is made at once, and is let go where its reader takes long for a piece of it.
            await wait_for(lambda: memory(started.pid) - before < 160 * MIB, PATIENCE)
            held = memory(started.pid) - before
        finally:
            for reader in readers:
                reader.close()
        # What they held is given back to the system.
        await wait_for(lambda: memory(started.pid) - before <= max(held // 2, 64 * MIB), PATIENCE)


async def _finished(http: httpx2.AsyncClient, count: int) -> None:
    """Wait until so many runs of `flood` have succeeded."""
    line = f'interlingua_runs_finished_total{{agent="flood",status="succeeded"}} {count}'

    async def have_finished() -> bool:
        return line in (await http.get("/metrics")).text.splitlines()

    await wait_for(have_finished, PATIENCE)


def _slow_reader(port: int) -> socket.socket:
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", port))
    return reader


async def _prompt_over_a_socket(http: httpx2.AsyncClient, port: int) -> Any:
    """A prompt whose answer nobody reads."""
    socket_ = await connect(f"ws://127.0.0.1:{port}/editor", max_size=None, max_queue=1, sock=_slow_reader(port))

    async def asked(id_: int, method: str, params: Any) -> Any:
        await socket_.send(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}))
        while "result" not in (told := json.loads(await socket_.recv())):
            pass
        return told["result"]

    await asked(0, "initialize", {"protocolVersion": 1})
    session = (await asked(1, "session/new", {"cwd": "/", "mcpServers": []}))["sessionId"]
    await asked(2, "session/set_mode", {"sessionId": session, "modeId": "flood@0.1.0"})
    params = {"sessionId": session, "prompt": [{"type": "text", "text": "40"}]}
    await socket_.send(json.dumps({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params}))
    return socket_.transport


async def _run_over_a_stream(http: httpx2.AsyncClient, port: int, *, deltas: bool = True) -> Any:
    """A run over MCP whose deltas nobody reads."""
    able = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": able}
    answer = await http.post("/mcp/", json=first, headers=headers)
    headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await http.post("/mcp/", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    params = {"name": "flood", "input": {"text": "40"}, "_meta": {"progressToken": "t"} if deltas else {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "agents/run", "params": params})
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    reader = _slow_reader(port)
    reader.sendall(
        f"POST /mcp/ HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{head}content-length: {len(body)}\r\n\r\n{body}".encode()
    )
    return reader


async def _result_over_a_stream(http: httpx2.AsyncClient, port: int) -> Any:
    """A run over MCP whose result nobody reads."""
    return await _run_over_a_stream(http, port, deltas=False)


async def _load_of_a_session(http: httpx2.AsyncClient, port: int) -> Any:
    """A session of an editor over HTTP that is opened again, while nobody reads its stream."""

    async def asked(id_: int, method: str, params: Any) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        answer = await http.post("/editor", json=message, headers=headers)
        assert answer.is_success, answer.text
        return answer

    headers: dict[str, str] = {}
    headers["acp-connection-id"] = (await asked(0, "initialize", {"protocolVersion": 1})).headers["acp-connection-id"]
    listed = {"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}}
    socket_ = await connect(f"ws://127.0.0.1:{port}/editor", max_size=None)
    try:

        async def told(id_: int, method: str, params: Any) -> Any:
            await socket_.send(json.dumps({**listed, "id": id_, "method": method, "params": params}))
            while "result" not in (answer := json.loads(await socket_.recv())):
                pass
            return answer["result"]

        await told(0, "initialize", {"protocolVersion": 1})
        session = (await told(1, "session/new", {"cwd": "/", "mcpServers": []}))["sessionId"]
        await told(2, "session/set_mode", {"sessionId": session, "modeId": "flood@0.1.0"})
        await told(3, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "40"}]})
    finally:
        await socket_.close()
    reader = _slow_reader(port)
    head = f"acp-connection-id: {headers['acp-connection-id']}\r\nacp-session-id: {session}\r\n"
    reader.sendall(
        f"GET /editor HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n{head}\r\n".encode()
    )
    headers["acp-session-id"] = session
    await asked(5, "session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
    return reader


FEW, MANY = 6, 24  # clients that do not read
SLACK = 10 * MIB  # of a process, whoever its clients are
crowds = pytest.mark.parametrize("crowd", [FEW, pytest.param(MANY, marks=pytest.mark.faults)])


@crowds
@pytest.mark.parametrize(
    ("ask", "each", "left"),
    [
        (_prompt_over_a_socket, 4 * MIB, 2 * MIB),
        (_load_of_a_session, 5 * MIB, 5 * MIB),  # a client may come back to its stream
        (_run_over_a_stream, 6 * MIB, 6 * MIB),  # the same
        (_result_over_a_stream, 17 * MIB, 3 * MIB),
    ],
    ids=["editor", "editor http", "mcp", "mcp result"],
)
async def test_runs_whose_output_their_own_client_does_not_read_cost_little(
    tmp_path: Path, ask: Any, each: int, left: int, crowd: int
) -> None:
    """Each client has a run of its own here: nothing that they are sent can be shared."""
    async with served(tmp_path) as (started, http, port):
        for number in range(3):  # what is kept of ended runs fills its limits
            warm = await ask(http, port)
            await _finished(http, number + 1)
            warm.close()
        before = memory(started.pid)
        readers = []
        try:
            for number in range(crowd):
                readers.append(await ask(http, port))
                await _finished(http, number + 4)
            assert await settled_memory(started.pid) - before < SLACK + crowd * each
        finally:
            for reader in readers:
                reader.close()
        await wait_for(lambda: memory(started.pid) - before <= SLACK + crowd * left, PATIENCE)


@crowds
async def test_peers_that_do_not_read_what_their_runs_say_cost_little(tmp_path: Path, crowd: int) -> None:
    """Each has a run of its own. What all of these runs need while they work is the runs' own; a crowd takes no more
    than the one before has left."""
    ports = [free_port() for _ in range(3)]
    names = ("--port", "--http-port", "--tcp-port")
    options = [text for name, port in zip(names, ports, strict=True) for text in (name, str(port))]
    with process(tmp_path, "peer", "agents.py", "--name", "Host", *options) as started:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{ports[1]}", timeout=PATIENCE) as http:

            async def link() -> str | None:
                with contextlib.suppress(httpx2.HTTPError):
                    return str((await http.get("/link")).json()["link"])
                return None

            token = str(await wait_for(link, PATIENCE)).rpartition("/")[2]

            async def is_answered(name: str) -> bool:
                """Whether a message was sent to the peer."""
                peers = (await http.get("/peers")).json()["peers"]
                return any(peer["messages_sent"] for peer in peers if peer["name"] == name)

            async def memory_with(name: str) -> int:
                """So many peers with a run that none of them reads. Gives what the process has while they stay."""
                url, peers = f"ws://127.0.0.1:{ports[0]}/{token}", []
                try:
                    for number in range(crowd):
                        sock = _slow_reader(ports[0])
                        peer = await connect(url, max_size=None, max_queue=1, compression=None, sock=sock)
                        peers.append(peer)
                        who = f"{name}{number}"
                        card = {"name": who, "capabilities": {"task_delegation": True}}
                        await peer.send(json.dumps({"type": "acp.agent_card", "card": card}))
                        said = {"type": "acp.message", "message_id": who, "correlation_id": who, "from": who}
                        said |= {"ts": "2026-11-15T00:00:00Z", "role": "user", "skill_id": "flood"}
                        await peer.send(json.dumps({**said, "parts": [{"type": "text", "content": "40"}]}))
                        await wait_for(lambda who=who: is_answered(who), PATIENCE)
                    return memory(started.pid)
                finally:
                    for peer in peers:
                        peer.transport.abort()

            await memory_with("warm-up")  # what the process keeps for all runs is filled once
            first = await memory_with("first")
            second = await memory_with("second")
            assert second - first < SLACK + crowd * 3 * MIB


@pytest.mark.parametrize("kind", ["editor", "mcp", "cap", "peer"])
def test_a_prompt_that_is_refused_for_its_size_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    text = "x" * 40_000_000
    with process(tmp_path, "stdio", "--as", kind, "agents.py:echo") as started:
        assert started.stdin is not None
        assert started.stdout is not None

        def told(message: Any) -> dict[str, Any]:
            assert started.stdin is not None
            assert started.stdout is not None
            started.stdin.write(json.dumps(message).encode() + b"\n")
            started.stdin.flush()
            while True:
                answer: dict[str, Any] = json.loads(started.stdout.readline())
                if "id" in answer or answer.get("type") in ("error_response", "error"):
                    return answer

        def asked(method: str, params: Any) -> dict[str, Any]:
            return told({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

        if kind == "cap":
            notice = {"type": "delegation_notice", "task_id": "T", "sender_id": "user", "recipient_id": "echo"}
            large: Any = {**notice, "context_summary": text, "attachments": []}
            told({**large, "context_summary": None})
        elif kind == "peer":
            card = {"name": "Odd", "capabilities": {"task_delegation": True}}
            started.stdin.write(json.dumps({"type": "acp.agent_card", "card": card}).encode() + b"\n")
            frame = {"type": "acp.message", "ts": "2026-11-15T00:00:00Z", "from": "Odd", "role": "user"}
            large = {**frame, "message_id": "m", "parts": [{"type": "text", "content": text}]}
            told({**large, "parts": "none"})
        elif kind == "mcp":
            able = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
            asked("initialize", able)
            params: Any = {"name": "echo", "input": {"text": text}}
            large = {"jsonrpc": "2.0", "id": 2, "method": "agents/run", "params": params}
        else:
            asked("initialize", {"protocolVersion": 1})
            session = asked("session/new", {"cwd": "/", "mcpServers": []})["result"]["sessionId"]
            params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
            large = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": params}
        before = memory(started.pid)
        for _ in range(3):
            said = json.dumps(told(large))
            assert "larger than 16777216 bytes" in said or "at most 1 MiB" in said
        assert memory(started.pid) - before < 24 * MIB
