"""Makes a value that a JSON Schema accepts, to send to an unknown agent.

Small and readable rather than complete: if it fails, the caller of `interlingua conform` names an input.
"""

from __future__ import annotations

from typing import Any

from .base import NotApplicable, shown
from .schemas import problem

_DEEPEST = 20


def made_for(schema: Any, what: str, hint: str = "give an input with --input") -> Any:
    """Returns a value that fits a schema. If none can be made, the check that needs it does not apply."""
    try:
        found = sample(schema)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError, MemoryError, RecursionError):
        raise NotApplicable(f"nothing can be made for {what}: {shown(schema)}") from None
    wrong = problem(found, schema, what)
    if wrong is not None:
        raise NotApplicable(f"nothing can be made for {what} ({wrong}); {hint}")
    return found


def sample(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """A value for a schema: its example or default, else one with what is required and no more."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return {} if depth == 0 else "hello"
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for name in ("examples", "enum"):
        if isinstance(schema.get(name), list) and schema[name]:
            return schema[name][0]
    if isinstance(reference := schema.get("$ref"), str):
        return sample(_found(reference, root), root, depth + 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            return sample(schema[name][0], root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema or depth == 0 else "string")
    return _of_kind(kind[0] if isinstance(kind, list) and kind else kind, schema, root, depth)


def _of_kind(kind: Any, schema: dict[str, Any], root: Any, depth: int) -> Any:
    match kind:
        case "object":
            properties = schema.get("properties", {})
            required = schema.get("required", [])
            named = required or list(properties)[:1]  # an agent that requires nothing still needs some input
            return {name: sample(properties.get(name, {}), root, depth + 1) for name in named}
        case "array":
            return [sample(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 1))]
        case "integer" | "number":
            lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(lowest, schema["maximum"]) if "maximum" in schema else lowest
        case "boolean":
            return True
        case "null":
            return None
        case _:
            text = "hello there".ljust(schema.get("minLength", 0), ".")
            return text[: schema["maxLength"]] if "maxLength" in schema else text


def _found(reference: str, root: Any) -> Any:
    at = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(at, dict) or step not in at:
            raise NotApplicable(f"the schema names {reference}, which it does not have; give an input with --input")
        at = at[step]
    return at
