"""Serves one peer over stdin and stdout: the engine, a channel and a protocol, from start to graceful end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..bus.port import BusSettings
from ..engine.agents.agent import Agent
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..model.errors import InvalidRequest
from ..protocols.installed import protocols
from ..transports.process.pipes import PipeChannel
from .wire_trace import WireTrace


async def serve_stdio(
    protocol: str,
    store: Path | str,
    agents: Iterable[Agent[..., Any]],
    pipes: tuple[int, int],
    *,
    trace: Path | None = None,
    settings: Settings | None = None,
    bus: BusSettings | None = None,
    project: str = "",
    root: Path | None = None,
) -> None:
    """Serves agents until the peer closes stdin, or a signal asks the process to end."""
    speaking = {p.name: p for p in protocols() if p.stdio}
    if protocol not in speaking:
        raise InvalidRequest(f"{protocol!r} is not spoken over stdio; known are {', '.join(sorted(speaking))}")
    wire = WireTrace(trace, protocol) if trace is not None else None
    # A client that has hung up waits some seconds for this process, then kills it; the next one goes on with the rest.
    settings = settings or Settings(shutdown_grace=2.0)
    async with Engine(store, agents=agents, bus=bus, settings=settings, project=project, root=root) as engine:
        channel = PipeChannel(*pipes)
        serving = asyncio.ensure_future(speaking[protocol].load("stdio")(engine, channel, wire))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        try:
            await asyncio.wait({serving})
            if not serving.cancelled():
                serving.result()
        finally:
            await channel.close()
            if wire is not None:
                wire.close()
