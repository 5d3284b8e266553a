"""Makes the door of agents over MCP."""

from __future__ import annotations

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....security.auth import Authenticator
from ...base import Door
from ..config import DoorSettings
from .http import WebDoor


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    web = WebDoor(engine, auth, settings)

    def hint(base_url: str, agent: AgentCard) -> str:
        name = f"#{agent.name}" if len(list(engine.agents)) > 1 else ""
        return f"interlingua run 'mcp+{base_url}{name}' hello"

    return Door(routes=web.routes(), hint=hint, close_streams=web.close, affinity=web.sessions)
