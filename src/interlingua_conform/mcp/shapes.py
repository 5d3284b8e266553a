"""Compares deltas with the schema of an agent."""

from __future__ import annotations

from typing import Any

from .joining import kind

_DEEPEST = 100
_KINDS = {
    "object": ("an object",), "array": ("an array",), "string": ("a string",), "boolean": ("a boolean",),
    "number": ("a number",), "integer": ("a number",), "null": (),
}  # fmt: skip


def strange(delta: Any, output: Any, schema: Any) -> str | None:
    """Describes a part of a delta that the schema of the output does not allow: a member that neither the schema nor
    the output knows, or a value of another type. Parts of values, and null anywhere, are what deltas are for."""
    return _strange(delta, output, schema, schema, "$", 0)


def _strange(delta: Any, output: Any, schema: Any, root: Any, path: str, depth: int) -> str | None:
    schema = _resolved(schema, root)
    if delta is None or not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    choices = [choice for name in ("anyOf", "oneOf") for choice in _list(schema.get(name))]
    if choices:
        found = [_strange(delta, output, choice, root, path, depth + 1) for choice in choices]
        return None if None in found else found[0]
    names = _names(schema.get("type"))
    wanted = [kind for name in names for kind in _KINDS.get(name, ())]
    if names and kind(delta) not in wanted:
        return f"{path} is {kind(delta)}, where outputSchema has {' or '.join(wanted) or 'null'}"
    if isinstance(delta, dict):
        return _strange_members(delta, output, schema, root, path, depth)
    items = schema.get("items")
    if isinstance(delta, list) and isinstance(items, dict):
        for number, entry in enumerate(delta):
            if found_one := _strange(entry, None, items, root, f"{path}[{number}]", depth + 1):
                return found_one
    return None


def _strange_members(delta: Any, output: Any, schema: Any, root: Any, path: str, depth: int) -> str | None:
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    more = schema.get("additionalProperties", not known or "allOf" in schema or "patternProperties" in schema)
    for name, value in delta.items():
        there = output.get(name) if isinstance(output, dict) else None
        if name in known:
            if found := _strange(value, there, known[name], root, f"{path}.{name}", depth + 1):
                return found
        elif isinstance(more, dict):
            if found := _strange(value, there, more, root, f"{path}.{name}", depth + 1):
                return found
        elif not more and not (isinstance(output, dict) and name in output):
            return f"{path}.{name} is no member of outputSchema"
    return None


def _resolved(schema: Any, root: Any) -> Any:
    for _ in range(_DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return schema
        at = root
        for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            at = at.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(at, dict) else None
        schema = at
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(value: Any) -> list[str]:
    found = value if isinstance(value, list) else [value]
    return [name for name in found if isinstance(name, str) and name in _KINDS]
