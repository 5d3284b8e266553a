"""Writes agents as manifests, and reads manifests back as cards. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...engine.agents import mount_path
from ...model.card import AgentCard, ErrorDefinition, QuestionType, Schema, Skill
from ...model.errors import InvalidRequest
from ...model.team import manifest as team
from ...model.team.manifest import OURS

_CARD = ("input", "output", "config", "input_text", "output_text", "streams", "questions", "errors", "skills")


def manifest(
    card: AgentCard, id_: str, entry: team.Manifest | None = None, *, prompt: bool = False, via: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the manifest of an agent, with its card in a member of our own. `entry` is the agent with which a team
    begins; `via` lists the servers that the agent has come by, this one last.

    The inside of the agent (prompt, handler, command of a mount) belongs to its owner: it is added only with `prompt`.
    """
    said = entry.system_prompt if entry is not None and prompt else card.description
    told: dict[str, Any] = {
        "id": id_, "system_prompt": said, "allowed_agents": [], "delegate_rules": {}, "overseer": None,
        "mcp_bindings": [],
    }  # fmt: skip
    if entry is not None:
        whole = entry.to_json()
        told |= {name: whole[name] for name in ("allowed_agents", "delegate_rules", "overseer", "mcp_bindings")}
    plain = msgspec.to_builtins(card)
    ours = {"name": card.name, "version": card.version, "description": card.description, "team": entry is not None}
    known = {name: plain[name] for name in _CARD if plain.get(name) is not None}
    return {**told, OURS: {**ours, **known, **({"via": list(via)} if via else {})}}


class _Ours(msgspec.Struct):
    name: str | None = None
    version: str | None = None
    description: str | None = None
    input: Schema | None = None
    output: Schema | None = None
    config: Schema | None = None
    input_text: str | None = None
    output_text: str | None = None
    streams: bool = False
    questions: list[QuestionType] = []
    errors: list[ErrorDefinition] = []
    skills: list[Skill] = []
    via: list[str] = []


TEXT: Schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ANY_TEXT: Schema = {"type": "object", "properties": {"text": {"type": "string"}}}


def card_of(told: dict[str, Any]) -> AgentCard:
    """Returns the card of an agent from its manifest. An agent of a foreign server takes and gives text."""
    id_ = told.get("id")
    if not isinstance(id_, str) or not team.is_id(id_):
        raise InvalidRequest(f"{str(id_)[:80]!r} is not the id of an agent", path="/id")
    try:
        ours = msgspec.convert(told.get(OURS) or {}, _Ours)
    except msgspec.ValidationError:
        ours = _Ours()
    prompt = told.get("system_prompt")
    try:
        name = team.agent_name(id_)
    except InvalidRequest:
        name = id_
    knows = ours.input is not None and ours.output is not None
    return AgentCard(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", ours.name or name).strip("-._") or "agent",
        version=ours.version or "0.0.0",
        description=ours.description if ours.description is not None else prompt if isinstance(prompt, str) else "",
        input=ours.input if knows and ours.input is not None else dict(TEXT),
        output=ours.output if knows and ours.output is not None else dict(ANY_TEXT),
        config=ours.config,
        input_text=ours.input_text if knows else "text",
        output_text=ours.output_text if knows else "text",
        streams=ours.streams,
        questions=ours.questions,
        errors=ours.errors,
        skills=ours.skills,
        metadata=mount_path.metadata(ours.via),
    )
