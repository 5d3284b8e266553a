"""Plain schemas, as most agents have them: typed members, lists and alternatives, and nothing cleverer.

Whether a value fits one is told here without the schema library, whose import is a sixth of the memory of a process
that an editor or an assistant starts for one agent. The answer is "yes" or "perhaps": all else, and every reason why
not, is the library's to say (see `schemas`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]

_DEEPEST = 20
_SAYS_NOTHING = {"title", "description", "default", "examples"}  # about what fits
_KEYWORDS = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items"},
    "string": {"type"},
    "integer": {"type"},
    "number": {"type"},
    "boolean": {"type"},
    "null": {"type"},
}
# Exact types: `true` is no number, and a float that happens to be whole is left to the library.
_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def compiled(schema: Any, depth: int = 0) -> Check | None:
    """A check that holds only for what fits the schema. None for a schema that is not plain, or not one at all."""
    if type(schema) is not dict or depth > _DEEPEST:
        return None
    said = schema.keys() - _SAYS_NOTHING
    texts = [schema[name] for name in ("title", "description") if name in schema]
    if any(type(text) is not str for text in texts) or type(schema.get("examples", [])) is not list:
        return None
    if not said:
        return _anything
    if said == {"anyOf"}:
        return _alternatives(schema["anyOf"], depth + 1)
    kind = schema.get("type")
    if type(kind) is not str or not said <= _KEYWORDS.get(kind, set()):
        return None
    if kind == "object":
        return _object(schema, depth + 1)
    if kind == "array":
        return _array(schema, depth + 1)
    return _scalar(_SCALARS[kind])


def _anything(value: Any) -> bool:
    return True


def _scalar(types: tuple[type, ...]) -> Check:
    return lambda value: type(value) in types


def _alternatives(schemas: Any, depth: int) -> Check | None:
    if type(schemas) is not list or not schemas:
        return None
    checks = [compiled(schema, depth) for schema in schemas]
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    return lambda value: any(check(value) for check in known)


def _array(schema: dict[str, Any], depth: int) -> Check | None:
    each = compiled(schema.get("items", {}), depth)
    if each is None:
        return None
    return lambda value: type(value) is list and all(map(each, value))


def _object(schema: dict[str, Any], depth: int) -> Check | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    if type(properties) is not dict or type(required) is not list:
        return None
    if any(type(name) is not str for name in required) or len(set(required)) < len(required):
        return None
    checks: dict[str, Check] = {}
    for name, member in properties.items():
        check = compiled(member, depth)
        if check is None:
            return None
        checks[name] = check
    rest = None if others is False else _anything if others is True else compiled(others, depth)
    if rest is None and others is not False:
        return None

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        for name, member in value.items():
            check = checks.get(name, rest)
            if check is None or not check(member):
                return False
        return True

    return fits
