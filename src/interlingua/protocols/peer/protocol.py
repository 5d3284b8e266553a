"""Agent Communication Protocol: nodes that reach each other by acp:// links, with our agents behind them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..base import Door, Opening, Protocol

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...security.auth import Authenticator
    from ...transports.channel import Channel
    from ...transports.jsonrpc.connection import Trace
    from .config import NodeSettings


def _door(engine: Engine, auth: Authenticator, settings: NodeSettings | None = None) -> Door:
    from .door.http import PeerDoor, routes
    from .node.failover import Standby
    from .node.hosting import Hosting
    from .node.node import Node

    node = Node(engine, settings)
    door = PeerDoor(node, auth)
    standby = Standby(door, Hosting(node), lambda: Node(engine, settings))

    async def start(opening: Opening) -> list[str]:
        node.files.offer_at(f"{opening.address}/peer")
        return await standby.start(opening.serve if opening.listeners else None)

    def hint(base: str, agent: str) -> str:
        body = json.dumps({"role": "user", "text": "hello", "skill_id": agent, "sync": True})
        return f"curl -s {base}/peer/message:send -H 'content-type: application/json' -d '{body}'"

    return Door(routes(door), hint, standby.close, start, standby.stop, bound=standby)


async def _stdio(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    from .bindings.stdio import serve_pipes

    await serve_pipes(engine, channel, trace)


async def _mount(target: Any) -> list[Any]:
    from .mount.server import load

    return list(await load(target))


_KINDS = ("acp", "acps", "acp+ws", "acp+wss", "tcp", "peer+http", "peer+https")

protocol = Protocol(
    "peer",
    "Agent Communication Protocol",
    prefix="/peer",
    door=_door,
    stdio=_stdio,
    loaders=dict.fromkeys(_KINDS, _mount),
)
