"""A network that can be broken: a TCP proxy that passes everything on, or holds it, or loses it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

Mode = Literal["pass", "hold", "lose"]


class Proxy:
    """`hold` is a cut cable that is mended before anybody gives up: what was sent arrives then. `lose` is one whose
    other end never hears anything, while this end believes that it does; what was lost breaks the connection later."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self._mode: Mode = "pass"
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: set[asyncio.Task[None]] = set()  # connections that have lost something

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def set(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "lose":
            self._broken |= self._tasks
        elif mode == "pass":
            for task in self._broken:
                task.cancel()
            self._broken = set()
        (self._passes.clear if mode == "hold" else self._passes.set)()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self._mode == "lose":
            self._broken.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)
            self._broken.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [asyncio.ensure_future(self._pipe(reader, back)), asyncio.ensure_future(self._pipe(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            back.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            await self._passes.wait()
            if self._mode != "lose":
                writer.write(piece)
                await writer.drain()
