"""Holds a bare connection to the address of a mount, and sends nothing on it: its end is the first sign that the server
there is gone. It shows nothing else, and no protocol knows of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from ...protocols.targets import Target

_PORTS = {"https": 443, "wss": 443}
_LASTS = 10.0  # seconds; a server that closes a connection sooner closes every silent one


def place_of(target: Target) -> tuple[str, int] | None:
    """The host and the port of an address that is written KIND+URL; None for all others."""
    at = urlsplit(target.rest.partition("+")[2])
    if at.hostname is None or at.scheme not in ("http", "https", "ws", "wss"):
        return None
    return at.hostname, at.port or _PORTS.get(at.scheme, 80)


class Line:
    """Tells when the connection has ended. One that is closed soon is not made again before `rest` seconds are over:
    many servers close what says nothing."""

    def __init__(self, ended: Callable[[], None], rest: float) -> None:
        self._ended = ended
        self._rest = rest
        self._task: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def hold(self, target: Target) -> None:
        """Opens a connection, if there is none and the address allows one."""
        place = place_of(target)
        if place is not None and self._task is None and time.monotonic() >= self._not_before:
            self._task = asyncio.get_running_loop().create_task(self._wait(*place))

    async def _wait(self, host: str, port: int) -> None:
        began = time.monotonic()
        writer: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                while await reader.read(4096):
                    pass  # nothing was asked
        finally:
            if writer is not None:
                writer.transport.abort()
        if time.monotonic() - began < _LASTS:
            self._not_before = time.monotonic() + self._rest
        self._task = None
        self._ended()

    async def drop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
