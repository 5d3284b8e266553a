"""A remote agent as its server describes it: the card of its local agent, and the abilities of its wire."""

from __future__ import annotations

from typing import Any

from ....engine.agents.agent import text_field
from ....model.card import AgentCard, QuestionType, Schema
from ....mounts.agent_card import origin, plain_name, plain_version, usable
from .answers import object_or_empty


class Remote:
    """One agent of a server."""

    def __init__(self, base: str, identity: str, metadata: dict[str, Any], specs: dict[str, Any]) -> None:
        self.base = base
        self.id = identity
        able = object_or_empty(specs.get("capabilities"))
        streaming = object_or_empty(able.get("streaming"))
        update = object_or_empty(object_or_empty(specs.get("custom_streaming_update")).get("properties"))
        kinds = object_or_empty(update.get("kind")).get("enum") or []
        self.ours = bool(streaming.get("custom")) and "delta" in kinds and "reset" in kinds
        self.mode: str | None = "custom" if self.ours else "values" if streaming.get("values") else None
        self.threads = bool(able.get("threads"))
        ref = object_or_empty(metadata.get("ref"))
        input_, self.wraps_input = _object_schema(specs.get("input"))
        output, _ = _object_schema(specs.get("output"))
        config, _ = _object_schema(specs.get("config"))
        self.card = AgentCard(
            name=plain_name(ref.get("name")) or identity,
            version=plain_version(ref.get("version")),
            description=str(metadata.get("description") or ""),
            input=input_,
            output=output,
            config=config if config.get("properties") or config.get("additionalProperties") else None,
            state=usable(specs["thread_state"]) if specs.get("thread_state") else None,
            input_text=text_field(input_),
            output_text=text_field(output),
            streams=self.mode is not None,
            questions=[
                QuestionType(
                    str(entry["interrupt_type"]),
                    usable(entry.get("interrupt_payload")),
                    usable(entry.get("resume_payload")),
                )
                for entry in specs.get("interrupts") or []
                if isinstance(entry, dict) and entry.get("interrupt_type")
            ],
            metadata=origin(base, "connect", agent_id=identity),
        )
        if isinstance(ref.get("url"), str):
            self.card.metadata["url"] = ref["url"]


def names_of(entry: dict[str, Any]) -> set[str]:
    """Returns the names that a target can use for an agent of a search result."""
    ref = object_or_empty(object_or_empty(entry.get("metadata")).get("ref"))
    name = plain_name(ref.get("name"))
    found = (id_of(entry), ref.get("name"), name, f"{name}@{ref.get('version')}")
    return {one for one in found if isinstance(one, str)}


def id_of(entry: dict[str, Any]) -> str:
    return str(entry.get("agent_id") or entry.get("id") or "")


def _object_schema(schema: Any) -> tuple[Schema, bool]:
    """Returns a schema with an object at its root, and if the value had to be put under `value` for that."""
    given = usable(schema)
    type_ = given.get("type")
    if type_ is None or type_ == "object":
        return {"type": "object", **given}, False
    inner = dict(given)
    definitions = inner.pop("$defs", None)
    wrapped = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    return ({**wrapped, "$defs": definitions} if definitions else wrapped), True
