"""Makes the door of the Agent Client Protocol."""

from __future__ import annotations

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....security.auth import Authenticator
from ...base import Door
from .connection import EditorSettings
from .http import WebDoor
from .http_streams import WebSettings


def door(engine: Engine, auth: Authenticator, settings: tuple[WebSettings, EditorSettings] | None) -> Door:
    web = WebDoor(engine, auth, *(settings or ()))

    def hint(base_url: str, agent: AgentCard) -> str:
        name = f"#{agent.name}" if len(list(engine.agents)) > 1 else ""
        return f"interlingua run 'editor+{base_url}{name}' hello"

    return Door(routes=web.routes(), hint=hint, close_streams=web.close, affinity=web.sessions)
