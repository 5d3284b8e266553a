"""Runs a node by itself: assembles engine, node and ports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from ...bus.port import BusSettings
from ...engine.agents.agent import Agent
from ...engine.engine import Engine
from ...engine.settings import Settings
from ...model.errors import InvalidRequest
from ...server.http_server import OwnPorts
from .config import NodeSettings
from .node.hosting import Hosting
from .node.node import Node


@contextlib.asynccontextmanager
async def hosting(
    store: Path | str,
    agents: Iterable[Agent[..., Any]],
    settings: NodeSettings,
    engine: Settings | None = None,
    bus: BusSettings | None = None,
    project: str = "",
    root: Path | None = None,
) -> AsyncIterator[Hosting]:
    """Runs a node with its ports, until the context ends."""
    if settings.default_agent is not None:
        agents = list(agents)
        names = [name for agent in agents for name in (agent.card.name, agent.card.key)]
        if settings.default_agent not in names:
            raise InvalidRequest(f"--default-agent: there is no agent {settings.default_agent!r} among those given")
    ports = OwnPorts()
    made = Engine(store, agents=agents, bus=bus, settings=engine or Settings(), project=project, root=root)
    made.reminders.serves = True
    async with made as running:
        host = Hosting(Node(running, settings))
        await host.hold()
        try:
            await host.start(ports.serve)
            yield host
        finally:
            await host.close()
            await ports.close()
            await host.stop()
