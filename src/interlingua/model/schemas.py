"""Validation by JSON Schema: schemas are compiled once, and errors carry the path of the mismatch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from . import json_values, simple_schemas
from .card import Schema
from .errors import DefinitionError, Invalid
from .pointers import display, pointer


@lru_cache(maxsize=1024)
def _compiled(text: bytes) -> Any:
    import jsonschema_rs  # large, and not needed while all schemas are simple and all values fit

    return jsonschema_rs.validator_for(json_values.decode(text), validate_formats=False)


class Validator:
    """Checks values against one schema. A check needs no network (see `check_refs_local`)."""

    def __init__(self, schema: Schema, *, what: str) -> None:
        self.what = what
        try:
            self._text = json_values.canonical(schema)
            self._simple_check = simple_schemas.compile_check(json_values.decode(self._text))
            self._validator = _compiled(self._text) if self._simple_check is None else None
        except (ValueError, TypeError) as error:
            raise DefinitionError(f"the schema of {what} is not a valid JSON Schema: {error}") from error

    def check(self, value: Any, kind: type[Invalid], *, checked: bool = False) -> None:
        """Raises `kind` with the path of the first mismatch. `checked`: `value` is known to be JSON."""
        if not checked:
            json_values.check(value, kind, what=self.what)
        if self._simple_check is not None and self._simple_check(value):
            return
        if self._validator is None:
            self._validator = _compiled(self._text)
        if self._validator.is_valid(value):
            return
        for error in self._validator.iter_errors(value):
            path = pointer(*error.instance_path)
            raise kind(
                f"{self.what}: {error.message} (at {display(path)})",
                path=path,
                details={"path": path, "problem": error.message},
            )


def check_refs_local(schema: Any, what: str) -> None:
    """Raises DefinitionError for a `$ref` to anything outside the schema itself."""
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            ref = item.get("$ref")
            if isinstance(ref, str) and not ref.startswith("#"):
                raise DefinitionError(f"the schema of {what} refers to {ref!r}; put the definition under $defs instead")
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def usable(schema: Any) -> Schema:
    """Returns a foreign schema if it can be checked here, else the schema that accepts everything."""
    if not isinstance(schema, dict):
        return {}
    try:
        check_refs_local(schema, "schema")
        Validator(schema, what="schema")
    except DefinitionError:
        return {}
    return schema
