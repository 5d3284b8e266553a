"""What the sources that are servers share: a port of their own, an end with whoever started them, and event streams.

They are started with a pipe as their input, print their address as the first line, and end when the pipe does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn


def serve(app: Any, path: str = "") -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvicorn forgets it: each answer takes 40 ms then
    print(f"http://127.0.0.1:{listening.getsockname()[1]}{path}", flush=True)
    threading.Thread(target=_end_with_input, daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def trace_of(headers: Any) -> dict[str, str]:
    """The trace context in the headers of a request."""
    return {name: headers[name] for name in ("traceparent", "tracestate", "baggage") if name in headers}


class Feed:
    """Events in order, for any number of readers from any place on."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []  # (name, data)
        self._news = asyncio.Condition()

    async def put(self, name: str, data: dict[str, Any]) -> None:
        async with self._news:
            self.events.append((name, data))
            self._news.notify_all()

    async def read(self, after: int, last: Callable[[str, dict[str, Any]], bool]) -> AsyncIterator[str]:
        """As server-sent events whose ids are their places; until one is the last."""
        place = after
        yield ": here\n"
        while True:
            async with self._news:
                while len(self.events) <= place:
                    await self._news.wait()
                fresh = self.events[place:]
            for name, data in fresh:
                place += 1
                named = f"event: {name}\n" if name else ""
                yield f"id: {place}\n{named}data: {json.dumps(data)}\n\n"
                if last(name, data):
                    return
