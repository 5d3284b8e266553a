"""CAP: agents that work as a team, with manifests, delegation and oversight."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..base import Door, Protocol

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...security.auth import Authenticator
    from ...transports.channel import Channel
    from ...transports.jsonrpc.connection import Trace


def _door(engine: Engine, auth: Authenticator, settings: Any = None) -> Door:
    from .door.http import CapDoor

    door = CapDoor(engine, auth, settings)

    def hint(base: str, agent: str) -> str:
        notice = {
            "type": "delegation_notice",
            "task_id": "T1",
            "sender_id": "user",
            "recipient_id": door.book.id_of(agent),
            "context_summary": "hello",
        }
        return f"curl -s {base}/cap/messages -H 'content-type: application/json' -d '{json.dumps(notice)}'"

    return Door(door.routes(), hint, door.close)


async def _stdio(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    from .door.stdio import StdioDoor

    await StdioDoor(engine, channel, trace).run()


async def _mount(target: Any) -> list[Any]:
    from .mount.server import load

    return list(await load(target))


_KINDS = ("cap", "cap+http", "cap+https")

protocol = Protocol(
    "cap", "CAP: agent teams", prefix="/cap", door=_door, stdio=_stdio, loaders=dict.fromkeys(_KINDS, _mount)
)
