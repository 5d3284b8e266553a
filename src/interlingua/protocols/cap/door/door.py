"""Makes the door of CAP."""

from __future__ import annotations

import json

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....security.auth import Authenticator
from ...base import Door
from ..config import DoorSettings
from .http import CapDoor, routes


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    cap = CapDoor(engine, auth, settings)

    def hint(base_url: str, agent: AgentCard) -> str:
        notice = {
            "type": "delegation_notice", "task_id": "T1", "sender_id": "user",
            "recipient_id": cap.book.id_of(agent.name), "context_summary": "hello",
        }  # fmt: skip
        return f"curl -s {base_url}/messages -H 'content-type: application/json' -d '{json.dumps(notice)}'"

    return Door(routes=routes(cap), hint=hint, close_streams=cap.close)
