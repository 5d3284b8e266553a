"""Runs a relay by itself: the app of the peer protocol on a port of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from ....server.http_server import OwnPorts
from .app import RelaySettings, relay_app

__all__ = ["RelaySettings", "relaying"]


@contextlib.asynccontextmanager
async def relaying(
    host: str, port: int, settings: RelaySettings, tls: tuple[Path, Path | None] | None = None
) -> AsyncIterator[str]:
    """Runs a relay until the context ends. Yields its address."""
    ports = OwnPorts()
    try:
        yield await ports.serve(relay_app(settings), host, [port], tls=tls)
    finally:
        await ports.close()
