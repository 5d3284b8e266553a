"""Checks for simple schemas, as most agents have them: typed members, lists and alternatives.

They avoid the schema library, whose import takes a sixth of the memory of a process that an editor or an assistant
starts for one agent. A check returns True or "unknown" (False): the library decides all other cases and explains each
mismatch (see `schemas`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]

_MAX_DEPTH = 20
_ANNOTATIONS = {"title", "description", "default", "examples"}  # keywords that restrict nothing
_KEYWORDS = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items"},
    "string": {"type"},
    "integer": {"type"},
    "number": {"type"},
    "boolean": {"type"},
    "null": {"type"},
}
# Exact types: `true` is not a number, and the library decides about floats with integral values.
_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def compile_check(schema: Any, depth: int = 0) -> Check | None:
    """Compiles a check that passes only values that fit the schema. None for a schema that is not simple or invalid."""
    if type(schema) is not dict or depth > _MAX_DEPTH:
        return None
    keywords = schema.keys() - _ANNOTATIONS
    texts = [schema[name] for name in ("title", "description") if name in schema]
    if any(type(text) is not str for text in texts) or type(schema.get("examples", [])) is not list:
        return None
    if not keywords:
        return _anything
    if keywords == {"anyOf"}:
        return _alternatives(schema["anyOf"], depth + 1)
    kind = schema.get("type")
    if type(kind) is not str or not keywords <= _KEYWORDS.get(kind, set()):
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
    checks = [compile_check(schema, depth) for schema in schemas]
    compiled_checks = [check for check in checks if check is not None]
    if len(compiled_checks) < len(checks):
        return None
    return lambda value: any(check(value) for check in compiled_checks)


def _array(schema: dict[str, Any], depth: int) -> Check | None:
    check_item = compile_check(schema.get("items", {}), depth)
    if check_item is None:
        return None
    return lambda value: type(value) is list and all(map(check_item, value))


def _object(schema: dict[str, Any], depth: int) -> Check | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    additional = schema.get("additionalProperties", True)
    if type(properties) is not dict or type(required) is not list:
        return None
    if any(type(name) is not str for name in required) or len(set(required)) < len(required):
        return None
    checks: dict[str, Check] = {}
    for name, member in properties.items():
        check = compile_check(member, depth)
        if check is None:
            return None
        checks[name] = check
    check_other = None if additional is False else _anything if additional is True else compile_check(additional, depth)
    if check_other is None and additional is not False:
        return None

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        for name, member in value.items():
            check = checks.get(name, check_other)
            if check is None or not check(member):
                return False
        return True

    return fits
