"""Makes cards of what servers tell of their agents: plain names, usable schemas, and the origin of an agent."""

from __future__ import annotations

import re
from typing import Any

from ..engine.agents.mount_path import MOUNTED_FROM
from ..engine.agents.mount_path import metadata as mount_path
from ..model.card import ANY_OBJECT, Schema
from ..model.errors import DefinitionError
from ..model.schemas import Validator, check_refs_local

_NOT_IN_NAMES, _NOT_IN_VERSIONS = r"[^A-Za-z0-9._-]+", r"[^0-9A-Za-z.+-]+"


def plain_name(name: Any) -> str:
    """Returns a remote name as an agent may be called here; "" where nothing of it is left."""
    return re.sub(_NOT_IN_NAMES, "-", name).strip("-._+") if isinstance(name, str) else ""


def plain_version(version: Any) -> str:
    plain = re.sub(_NOT_IN_VERSIONS, "-", version).strip("-._+") if isinstance(version, str) else ""
    return plain or "0.0.0"


def usable(schema: Any) -> Schema:
    """Returns a schema that can be used. An unusable schema does not cost the agent: the server checks by itself."""
    if not isinstance(schema, dict):
        return {}
    if not _works(schema):
        return dict(ANY_OBJECT) if schema.get("type") == "object" else {}
    return schema


def object_schema(schema: Any) -> Schema:
    """Returns the schema of a value that is an object on its wire, whatever the schema says of its root."""
    if not isinstance(schema, dict) or schema.get("type") not in (None, "object"):
        return dict(ANY_OBJECT)
    found = {**schema, "type": "object"}
    return found if isinstance(found.get("properties", {}), dict) and _works(found) else dict(ANY_OBJECT)


def _works(schema: Schema) -> bool:
    try:
        check_refs_local(schema, "schema")
        Validator(schema, what="schema")
    except DefinitionError:
        return False
    return True


def origin(source: str, protocol: str, via: Any = None, **more: Any) -> dict[str, Any]:
    """Returns the metadata of a card: where the agent comes from, and through which servers it came before."""
    return {MOUNTED_FROM: source, "protocol": protocol, **more} | mount_path(via)
