"""Where a test and the agents of a source meet: a small HTTP server in the test's own event loop.

An agent waits at `/pass/NAME` until the test opens it, and leaves word at `/note/NAME`; the test waits for either.
Files that a wire carries by address only are at `/file/NAME`. Nothing here waits for time to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from typing import Any


class Gate:
    """`async with Gate() as gate`: its `url` goes into the text that an agent is told."""

    def __init__(self) -> None:
        self.url = ""
        self._open: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._reached: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._notes: dict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self._files: dict[str, tuple[str, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # -- for the test -------------------------------------------------------------------------------------

    def open(self, name: str) -> None:
        """Let pass whoever waits there, and whoever comes."""
        self._open[name].set()

    async def reached(self, name: str) -> None:
        """Until somebody waits there."""
        await self._reached[name].wait()

    async def note(self, name: str) -> Any:
        """The next word that somebody left."""
        return await self._notes[name].get()

    def noted(self, name: str) -> bool:
        """Whether there is one."""
        return not self._notes[name].empty()

    def offer(self, name: str, media_type: str, body: bytes) -> str:
        """The address of a file."""
        self._files[name] = (media_type, body)
        return f"{self.url}/file/{name}"

    # -- the server ---------------------------------------------------------------------------------------

    async def _accept(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._answer(reads, writes)
        finally:
            writes.close()

    async def _answer(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        head = (await reads.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        sent = await reads.readexactly(size)
        method, path, _ = head.split(" ", 2)
        _, kind, name = path.split("/", 2)
        status, media_type, body = "200 OK", "application/json", b"{}"
        match method, kind:
            case "GET", "pass":
                self._reached[name].set()
                await self._open[name].wait()
            case "POST", "note":
                self._notes[name].put_nowait(json.loads(sent) if sent else None)
            case "GET", "file" if name in self._files:
                media_type, body = self._files[name]
            case _:
                status = "404 Not Found"
        top = f"HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {len(body)}\r\n"
        writes.write(f"{top}connection: close\r\n\r\n".encode() + body)
        await writes.drain()
