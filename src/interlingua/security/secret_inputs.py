"""Masks the values that a schema marks as secret: `writeOnly: true`, or the format `password`."""

from __future__ import annotations

from typing import Any

from ..model.card import Schema

MASK = "***"

_DEPTH = 64  # schemas may refer to themselves


def has_secrets(schema: Schema | None) -> bool:
    """Returns whether a schema marks anything as secret."""
    return schema is not None and _marks(schema)


def mask(value: Any, schema: Schema | None) -> Any:
    """Returns a value with its secret parts replaced by `***`. The value itself stays as it is."""
    if schema is None or not _marks(schema):
        return value
    return _masked(value, schema, schema, _DEPTH)


def _marks(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_marks, schema))
    if not isinstance(schema, dict):
        return False
    return _is_secret(schema) or any(_marks(member) for member in schema.values())


def _is_secret(schema: dict[str, Any]) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _masked(value: Any, schema: Any, root: Schema, depth: int) -> Any:
    if not isinstance(schema, dict) or not depth:
        return value
    if _is_secret(schema):
        return MASK if value is not None else None
    if isinstance(name := schema.get("$ref"), str):
        value = _masked(value, _resolved(name, root), root, depth - 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(keyword) or ():
            value = _masked(value, choice, root, depth - 1)
    if isinstance(value, dict):
        members = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        return {name: _masked(member, members.get(name, others), root, depth - 1) for name, member in value.items()}
    if isinstance(value, list):
        first, rest = schema.get("prefixItems") or [], schema.get("items")
        return [
            _masked(item, first[index] if index < len(first) else rest, root, depth - 1)
            for index, item in enumerate(value)
        ]
    return value


def _resolved(name: str, root: Schema) -> Any:
    """Returns the part of a schema that a reference within it names; None for any other reference."""
    if not name.startswith("#"):
        return None
    part: Any = root
    for step in name[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        part = part.get(step) if isinstance(part, dict) else None
    return part
