"""Makes the door of the Agent Communication Protocol: a node, here or at another replica."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....security.auth import Authenticator
from ...base import Door, Opening
from ..config import DoorSettings
from ..node.failover import Standby
from ..node.hosting import Hosting
from ..node.node import Node
from ..node_flags import settings_of
from .http import PeerDoor, routes


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    settings = settings or DoorSettings()
    wanted = settings_of(settings)
    node = Node(engine, wanted)
    api = PeerDoor(node, auth)
    standby = Standby(api, Hosting(node), lambda: Node(engine, wanted))

    @contextlib.asynccontextmanager
    async def lifespan(opening: Opening) -> AsyncIterator[list[str]]:
        if opening.base_url is not None:
            node.files.offer_at(opening.base_url)
        try:
            yield await standby.start(opening.serve if settings.ports else None)
        finally:
            await standby.stop()

    return Door(
        routes=routes(api), hint=_hint, lifespan=lifespan, close_streams=standby.close, affinity=standby
    )  # fmt: skip


def _hint(base_url: str, agent: AgentCard) -> str:
    body = json.dumps({"role": "user", "text": "hello", "skill_id": agent.name, "sync": True})
    return f"curl -s {base_url}/message:send -H 'content-type: application/json' -d '{body}'"
