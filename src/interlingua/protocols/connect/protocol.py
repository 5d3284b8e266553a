"""Agent Connect Protocol: runs, threads and interrupts over REST."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..base import Door, Protocol

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...model.card import AgentCard
    from ...security.auth import Authenticator
    from .door.api import ConnectSettings


def _door(engine: Engine, auth: Authenticator, settings: ConnectSettings | None = None) -> Door:
    from .door.http import ConnectDoor, routes

    door = ConnectDoor(engine, auth, settings)
    engine.callbacks.formats["connect"] = door.callback_body

    def hint(base: str, agent: str) -> str:
        known = engine.agents.find(agent, None)
        body = json.dumps({"agent_id": agent, "input": _example(known.card) if known is not None else {}})
        return f"curl -s {base}/connect/runs/wait -H 'content-type: application/json' -d '{body}'"

    return Door(routes(door), hint, door.close)


def _example(card: AgentCard) -> Any:
    """Returns an input that the agent takes, as far as its schema shows one."""
    if card.input_text is not None:
        return "hello"
    samples = {"string": "hello", "integer": 1, "number": 1.5, "boolean": True, "array": []}
    fields = card.input.get("properties", {})
    return {name: samples.get(fields.get(name, {}).get("type"), {}) for name in card.input.get("required", [])}


async def _mount(target: Any) -> list[Any]:
    from .mount.server import load

    return list(await load(target))


protocol = Protocol(
    "connect",
    "Agent Connect Protocol",
    prefix="/connect",
    door=_door,
    loaders={"connect+http": _mount, "connect+https": _mount},
)
