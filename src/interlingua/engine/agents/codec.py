"""Conversion between Python types and JSON Schemas, and between their values and JSON.

msgspec handles dataclasses, TypedDicts, msgspec Structs and all other types that it knows; pydantic handles pydantic
models, if the user has installed it. No other module needs to know the difference.
"""

from __future__ import annotations

import sys
import typing
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from ...model import json_values
from ...model.card import Schema
from ...model.errors import DefinitionError, Invalid


class Codec:
    """Encodes and decodes the values of one type."""

    def __init__(self, type_: Any, *, what: str) -> None:
        self.type = type_
        self.what = what
        self._adapter = _pydantic_adapter(type_)
        self.schema: Schema = _with_ordered_defaults(self._schema())
        self._holds_sets = b'"uniqueItems"' in json_values.encode(self.schema)

    def decode(self, value: Any, kind: type[Invalid]) -> Any:
        """Converts JSON to the type. A failure means that the type is narrower than its schema."""
        try:
            if self._adapter is not None:
                return self._adapter.validate_python(value)
            return msgspec.convert(value, self.type)
        except (msgspec.ValidationError, ValueError) as error:
            raise kind(f"{self.what}: {error}") from error

    def encode(self, value: Any) -> Any:
        """Converts a value of the type to JSON. A failure is a mistake of the agent."""
        try:
            if self._adapter is not None:
                plain = self._adapter.dump_python(value, mode="json", by_alias=True)
                return self._in_order(value, plain) if self._holds_sets else plain
            return json_values.to_plain(value)
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise Invalid(f"{self.what}: {error}") from error
        except RecursionError:
            raise Invalid(f"{self.what}: nested too deeply, or contains itself") from None

    def _in_order(self, value: Any, plain: Any) -> Any:
        """Sorts the members of sets in an encoded value, so that their order is the same in every process."""
        try:
            typed = self._adapter.dump_python(value, by_alias=True)
        except TypeError:  # a set of models: as dicts, they are in no set
            return plain
        return _beside(typed, plain)

    @property
    def is_object(self) -> bool:
        return self.schema.get("type") == "object"

    def _schema(self) -> Schema:
        try:
            if self._adapter is not None:
                schema: Schema = self._adapter.json_schema()
                return schema
            (root,), definitions = msgspec.json.schema_components([self.type], ref_template="#/$defs/{name}")
        except Exception as error:
            raise DefinitionError(
                f"{self.what} has a type that cannot be written as JSON: {error}. Use str, int, float, bool, list, "
                "dict, Literal, a dataclass, a TypedDict, a msgspec Struct or a pydantic model"
            ) from error
        return _inline_root(root, definitions)


def to_plain(value: Any) -> Any:
    """Converts a value to JSON by the type that it has. Raises TypeError where a codec knows no such type."""
    return json_values.to_plain(value, _encode_model)


def _encode_model(value: Any) -> Any:
    codec = _codecs.get(type(value))
    if codec is None:
        if _pydantic_adapter(type(value)) is None:
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")
        codec = _codecs[type(value)] = Codec(type(value), what="a value")
    return codec.encode(value)


_codecs: WeakKeyDictionary[type, Codec] = WeakKeyDictionary()  # of models that are no part of what msgspec knows


def _with_ordered_defaults(schema: Any) -> Any:
    """Sorts the defaults of sets in a schema, so that the cards of all processes are equal."""
    if isinstance(schema, list):
        return [_with_ordered_defaults(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {name: _with_ordered_defaults(member) for name, member in schema.items()}
    if schema.get("uniqueItems") is True and isinstance(schema.get("default"), list):
        ordered["default"] = json_values.in_order(schema["default"])
    return ordered


def _beside(typed: Any, plain: Any) -> Any:
    """Sorts the lists that were made of sets. `typed`: the same value with its sets."""
    if isinstance(plain, list):
        if isinstance(typed, set | frozenset):
            return json_values.in_order(plain)
        if isinstance(typed, list | tuple) and len(typed) == len(plain):
            return [_beside(*pair) for pair in zip(typed, plain, strict=True)]
    elif isinstance(plain, dict) and isinstance(typed, dict) and len(typed) == len(plain):
        return {key: _beside(one, member) for one, (key, member) in zip(typed.values(), plain.items(), strict=True)}
    return plain


def _inline_root(root: Schema, definitions: dict[str, Any]) -> Schema:
    """Replaces a root that is only a reference by its target, because wires require `type` at the root."""
    ref = root.get("$ref", "")
    name = ref.removeprefix("#/$defs/")
    if ref and name in definitions:
        root = definitions[name]
        others = {key: value for key, value in definitions.items() if key != name or _mentions(definitions, ref)}
    else:
        others = definitions
    return {**root, "$defs": others} if others else dict(root)


def _mentions(value: Any, ref: str) -> bool:
    if isinstance(value, dict):
        return value.get("$ref") == ref or any(_mentions(member, ref) for member in value.values())
    return isinstance(value, list) and any(_mentions(member, ref) for member in value)


def _pydantic_adapter(type_: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not _uses_pydantic(type_, pydantic.BaseModel, set()):
        return None
    return pydantic.TypeAdapter(type_)


def _uses_pydantic(type_: Any, base: type, seen: set[int]) -> bool:
    if id(type_) in seen:
        return False
    seen.add(id(type_))
    if isinstance(type_, type) and (issubclass(type_, base) or hasattr(type_, "__pydantic_validator__")):
        return True
    return any(_uses_pydantic(part, base, seen) for part in typing.get_args(type_))


class Params:
    """The parameters of a function as one JSON object."""

    def __init__(self, codecs: dict[str, Codec], required: list[str], *, open_: bool) -> None:
        self.codecs = codecs
        self.open = open_
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for name, codec in codecs.items():
            schema = dict(codec.schema)
            for key, value in schema.pop("$defs", {}).items():
                if definitions.setdefault(key, value) != value:
                    raise DefinitionError(
                        f"{codec.what}: two different types are called {key}; give one of them another name"
                    )
            properties[name] = schema
        self.schema: Schema = {"type": "object", "properties": properties, "required": required}
        if not open_:
            self.schema["additionalProperties"] = False
        if definitions:
            self.schema["$defs"] = definitions

    def decode(self, value: dict[str, Any], kind: type[Invalid]) -> dict[str, Any]:
        codecs = self.codecs
        return {name: codecs[name].decode(member, kind) if name in codecs else member for name, member in value.items()}
