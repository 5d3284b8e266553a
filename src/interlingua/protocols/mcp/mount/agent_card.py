"""The card of a remote agent, from the list of its server."""

from __future__ import annotations

from typing import Any

from ....engine.agents.agent import text_field
from ....model.card import AgentCard
from ....mounts.agent_card import object_schema, origin, plain_name, plain_version
from .. import wire

_KNOWN = ("name", "description", "inputSchema", "outputSchema", "configSchema", "version")


def card_of(entry: dict[str, Any], source: str, *, streams: bool = True) -> AgentCard:
    """Returns the card of a listed agent. Unusable schemas are ignored, because the server checks by itself."""
    name, meta = entry["name"], entry.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    version = entry.get("version") or meta.get(wire.META_AGENT_VERSION)
    if isinstance(version, str) and name.endswith(f"@{version}"):  # ours names older versions so
        name = name.removesuffix(f"@{version}")
    input_, output = object_schema(entry.get("inputSchema")), object_schema(entry.get("outputSchema"))
    extra = {key: value for key, value in entry.items() if key not in _KNOWN and key != "_meta"}
    description = entry.get("description")
    more = {"mcp": extra} if extra else {}
    return AgentCard(
        name=plain_name(name) or "agent",
        version=plain_version(version),
        description=description if isinstance(description, str) else "",
        input=input_,
        output=output,
        config=object_schema(entry["configSchema"]) if "configSchema" in entry else None,
        input_text=text_field(input_),
        output_text=text_field(output),
        streams=streams,
        metadata=origin(source, "mcp", meta.get(wire.META_VIA), agent_name=entry["name"], **more),
    )
