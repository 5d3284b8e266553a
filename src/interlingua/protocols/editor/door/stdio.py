"""Serves one client over pipes."""

from __future__ import annotations

from ....doors.stdio import serve_client
from ....engine.engine import Engine
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Trace
from .door import EditorDoor


async def serve_pipes(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    await serve_client(EditorDoor(engine).connect(channel, trace=trace))
