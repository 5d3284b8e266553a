"""Forwards the connections of a port to another place, byte by byte, without a look at the bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

_MOST = 1000  # connections
_CONNECT = 5.0  # seconds
_PIECE = 65_536


class Pipe:
    def __init__(self, where: Callable[[], Awaitable[tuple[str, int] | None]]) -> None:
        """`where`: returns the host and the port to go to, called for each connection; None: there is no such place
        now."""
        self._where = where
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> None:
        """Raises OSError where the port cannot be had."""
        self._server = await asyncio.start_server(self._came, host or None, port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= _MOST:
            writer.close()
            return
        self._open.add(task)
        try:
            await self._carry(reader, writer)
        except (asyncio.CancelledError, OSError, TimeoutError):
            pass  # a client finds its connection closed, and tries again
        finally:
            self._open.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = await self._where()
        if place is None:
            return
        async with asyncio.timeout(_CONNECT):
            there, back = await asyncio.open_connection(*place)
        ways = [asyncio.ensure_future(_copy(reader, back)), asyncio.ensure_future(_copy(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            back.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
