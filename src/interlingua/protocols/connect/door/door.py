"""Makes the door of the Agent Connect Protocol."""

from __future__ import annotations

import json
from typing import Any

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....security.auth import Authenticator
from ...base import Door
from .. import translate
from ..config import DoorSettings
from .http import ConnectDoor, routes


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    connect = ConnectDoor(engine, auth, settings)
    return Door(
        routes=routes(connect), hint=_hint, close_streams=connect.close, callback_body=connect.callback_body,
        refuses=translate.refused,
    )  # fmt: skip


def _hint(base_url: str, agent: AgentCard) -> str:
    body = json.dumps({"agent_id": agent.name, "input": _example(agent)})
    return f"curl -s {base_url}/runs/wait -H 'content-type: application/json' -d '{body}'"


def _example(card: AgentCard) -> Any:
    """Returns an input that the agent takes, as far as its schema shows one."""
    if card.input_text is not None:
        return "hello"
    samples = {"string": "hello", "integer": 1, "number": 1.5, "boolean": True, "array": []}
    fields = card.input.get("properties", {})
    return {name: samples.get(fields.get(name, {}).get("type"), {}) for name in card.input.get("required", [])}
