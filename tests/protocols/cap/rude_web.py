"""An address that answers the handshake of a tool server, and then does to calls whatever a test wants. Knows nothing
of ours, and nothing of the library."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]

INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
               "serverInfo": {"name": "rude", "version": "1"}}  # fmt: skip


class Web:
    def __init__(self, answer: Answer, first: Answer | None) -> None:
        self._answer = answer
        self._first = first
        self.url = ""
        self.takes_back = asyncio.Event()  # until then, nothing that is taken back is taken
        self.takes_back.set()
        self.methods: list[str] = []

    async def connected(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reads.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                body = json.loads(await reads.readexactly(size) or b"{}")
                self.methods.append(body.get("method", head.split()[0]))
                if body.get("method") == "initialize" and self._first is None:
                    await respond(writes, {"jsonrpc": "2.0", "id": body["id"], "result": INITIALIZED})
                elif body.get("method") == "initialize":
                    await (self._first or self._answer)(body, writes)
                elif body.get("method") == "tools/call":
                    await self._answer(body, writes)
                elif head.startswith("get"):
                    await respond(writes, None, "405 Method Not Allowed")
                else:
                    if body.get("method") == "notifications/cancelled":
                        await self.takes_back.wait()
                    await respond(writes, None, "202 Accepted")
        writes.close()


@contextlib.asynccontextmanager
async def web(answer: Answer, first: Answer | None = None) -> AsyncIterator[Web]:
    """`first` answers the handshake, where it shall not be answered well."""
    made = Web(answer, first)
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield made
    finally:
        server.close()


async def respond(writes: asyncio.StreamWriter, value: Any, status: str = "200 OK", *headers: str) -> None:
    body = b"" if value is None else json.dumps(value).encode()
    kind = ("content-type: application/json",) if value is not None else ()
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *kind, *headers, "", ""]
    writes.write("\r\n".join(head).encode() + body)
    await writes.drain()


async def done(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
    result = {"content": [{"type": "text", "text": "done"}]}
    await respond(writes, {"jsonrpc": "2.0", "id": message["id"], "result": result})
