"""Makes the door of CAP, and serves one client over pipes."""

from __future__ import annotations

import json

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....security.auth import Authenticator
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Trace
from ...base import Door
from ..config import DoorSettings
from .http import CapDoor
from .stdio import StdioDoor


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    cap = CapDoor(engine, auth, settings)

    def hint(base_url: str, agent: AgentCard) -> str:
        notice = {
            "type": "delegation_notice", "task_id": "T1", "sender_id": "user",
            "recipient_id": cap.book.id_of(agent.name), "context_summary": "hello",
        }  # fmt: skip
        return f"curl -s {base_url}/messages -H 'content-type: application/json' -d '{json.dumps(notice)}'"

    return Door(routes=cap.routes(), hint=hint, close_streams=cap.close)


async def stdio(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    await StdioDoor(engine, channel, trace).run()
