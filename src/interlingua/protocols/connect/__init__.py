"""Agent Connect Protocol: runs, threads and interrupts over REST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import Door, Protocol

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...security.auth import Authenticator


def _door(engine: Engine, auth: Authenticator) -> Door:
    from .server import ConnectDoor

    door = ConnectDoor(engine, auth)
    engine.callbacks.formats["connect"] = door.callback_body

    def hint(base: str, agent: str) -> str:
        body = f'{{"agent_id": "{agent}", "input": "hello"}}'
        return f"curl -s {base}/connect/runs/wait -H 'content-type: application/json' -d '{body}'"

    return Door(door.routes(), hint)


async def _mount(target: Any) -> list[Any]:
    from .client import load

    return list(await load(target))


protocol = Protocol(
    "connect",
    "Agent Connect Protocol",
    prefix="/connect",
    door=_door,
    loaders={"connect+http": _mount, "connect+https": _mount},
)
