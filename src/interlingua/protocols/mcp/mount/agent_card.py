"""The card of a remote agent, from the list of its server."""

from __future__ import annotations

import re
from typing import Any

from ....engine.agents import mount_path
from ....engine.agents.agent import text_field
from ....engine.handler.mounted_run import MOUNTED_FROM
from ....model.card import ANY_OBJECT, AgentCard, Schema
from ....model.errors import DefinitionError
from ....model.schemas import Validator, check_refs_local
from .. import wire

_KNOWN = ("name", "description", "inputSchema", "outputSchema", "configSchema", "version")


def card_of(entry: dict[str, Any], source: str, *, streams: bool = True) -> AgentCard:
    """Returns the card of a listed agent. Unusable schemas are ignored, because the server checks by itself."""
    name, meta = entry["name"], entry.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    version = entry.get("version") or meta.get(wire.META_AGENT_VERSION)
    if isinstance(version, str) and name.endswith(f"@{version}"):  # ours names older versions so
        name = name.removesuffix(f"@{version}")
    input_, output = _object_schema(entry.get("inputSchema")), _object_schema(entry.get("outputSchema"))
    extra = {key: value for key, value in entry.items() if key not in _KNOWN and key != "_meta"}
    description = entry.get("description")
    return AgentCard(
        name=_plain(name, r"[^A-Za-z0-9._-]+") or "agent",
        version=_plain(version, r"[^0-9A-Za-z.+-]+") or "0.0.0",
        description=description if isinstance(description, str) else "",
        input=input_,
        output=output,
        config=_object_schema(entry["configSchema"]) if "configSchema" in entry else None,
        input_text=text_field(input_),
        output_text=text_field(output),
        streams=streams,
        metadata={MOUNTED_FROM: source, "protocol": "mcp", "agent_name": entry["name"]}
        | ({"mcp": extra} if extra else {})
        | mount_path.metadata(meta.get(wire.META_VIA)),
    )


def _object_schema(schema: Any) -> Schema:
    """Returns a schema for an object: input and output are objects on this wire, whatever a schema says of its root."""
    if not isinstance(schema, dict) or schema.get("type") not in (None, "object"):
        return dict(ANY_OBJECT)
    found = {**schema, "type": "object"}
    if not isinstance(found.get("properties", {}), dict):
        return dict(ANY_OBJECT)
    try:
        check_refs_local(found, "schema")
        Validator(found, what="schema")
    except DefinitionError:
        return dict(ANY_OBJECT)
    return found


def _plain(name: Any, unwanted: str) -> str:
    return re.sub(unwanted, "-", name).strip("-._+") if isinstance(name, str) else ""
