"""A refusal arrives also where the client sends its whole body before it reads, and closes the connection then."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.protocols.test_memory_of_callers import MIB, PATIENCE, memory, served

REQUESTS: dict[str, dict[str, Any]] = {
    "/connect/runs": {"agent_id": "echo", "input": {"text": ""}},
    "/mcp": {"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": {"name": "echo", "text": ""}},
    "/editor": {"jsonrpc": "2.0", "id": "long", "method": "initialize", "params": {"text": ""}},
    "/cap/messages": {"type": "delegation_notice", "task_id": "long", "context_summary": ""},
    "/peer/message:send": {"role": "user", "message_id": "long", "parts": [{"type": "text", "content": ""}]},
}
NAMED = {"/mcp": '"id":"long"', "/editor": '"id":"long"', "/cap/messages": '"task_id":"long"', "/peer/message:send":
         '"failed_message_id":"long"'}  # fmt: skip
SIZE = 33 * MIB


def _asked(port: int, path: str, body: Iterable[bytes] | bytes) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"content-type": "application/json", "connection": "close"}
    connection.request("POST", path, body, headers)  # in chunks, where it is not of one piece
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


async def test_a_body_over_the_limit_is_answered_413_on_every_door(tmp_path: Path) -> None:
    async with served(tmp_path) as (started, _, port):
        before = memory(started.pid)
        for path, request in REQUESTS.items():
            began, quote, rest = json.dumps(request).rpartition('"')
            body = (began + "x" * SIZE + quote + rest).encode()
            for sent in (body, [body[at : at + MIB] for at in range(0, len(body), MIB)]):
                status, answer = await asyncio.to_thread(_asked, port, path, sent)
                assert status == 413, (path, answer)
                assert "larger than" in answer
                assert NAMED.get(path, "") in answer
        status, _ = await asyncio.to_thread(_asked, port, "/nothing", b"x" * SIZE)
        assert status == 404
        assert memory(started.pid) - before < 4 * SIZE
