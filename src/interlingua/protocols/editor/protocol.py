"""Agent Client Protocol: our agents inside editors, and coding agents as ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Door, Protocol

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...security.auth import Authenticator
    from ...transports.channel import Channel
    from ...transports.jsonrpc.connection import Trace
    from .door.connection import EditorSettings
    from .door.http_streams import WebSettings


def _door(
    engine: Engine, auth: Authenticator, settings: WebSettings | None = None, editor: EditorSettings | None = None
) -> Door:
    from .door.http import WebDoor

    door = WebDoor(engine, auth, settings, editor)

    def hint(base: str, agent: str) -> str:
        which = f"#{agent}" if len(list(engine.agents)) > 1 else ""
        return f"interlingua run 'editor+{base}/editor{which}' hello"

    return Door(door.routes(), hint, door.close, bound=door.sessions)


async def _stdio(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    from .door.connection import EditorDoor

    connection = EditorDoor(engine).connect(channel, trace=trace)
    try:
        await connection.rpc.run(linger=1.0)
    finally:
        connection.gone()


async def _mount(target: Any) -> list[Any]:
    from .mount.server import load

    return list(await load(target))


_KINDS = ("editor", "editor+http", "editor+https", "editor+ws", "editor+wss")

protocol = Protocol(
    "editor", "Agent Client Protocol", prefix="/editor", door=_door, stdio=_stdio, loaders=dict.fromkeys(_KINDS, _mount)
)
