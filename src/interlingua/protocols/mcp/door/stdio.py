"""Serves one client over pipes."""

from __future__ import annotations

from ....engine.engine import Engine
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Trace
from .door import McpDoor


async def serve_pipes(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    connection = McpDoor(engine).connect(channel, trace=trace)
    try:
        await connection.rpc.run(linger=1.0)
    finally:
        connection.gone()
