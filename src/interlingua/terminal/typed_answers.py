"""Answers as people type them: which shape a schema asks for, and text turned into a value of it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from ..model import json_values
from ..model.card import Schema
from ..model.errors import Invalid, InvalidAnswer
from ..model.question_forms import choices_from_options
from ..model.run import Option
from ..model.schemas import Validator
from ..transports.json_text import fault

_YES, _NO = ("y", "yes", "true"), ("n", "no", "false")


class YesNo(msgspec.Struct, frozen=True):
    field: str | None  # None: the answer itself is true or false
    reason: str | None  # the optional member for a reason


class Pick(msgspec.Struct, frozen=True):
    field: str | None
    options: list[tuple[Any, str]]  # value and label
    answers: dict[str, Any] = {}  # by value: what it says, where that is not the value itself
    reason: str | None = None


class Field(msgspec.Struct, frozen=True):
    name: str
    schema: Schema
    required: bool
    default: Any = msgspec.UNSET

    @property
    def how(self) -> str:
        """The form in which a person types the value, in a word or two."""
        if self.kind == "list":
            return "list, with commas" if _is_plain(self.schema.get("items", {})) else "list, as JSON"
        return self.kind

    @property
    def kind(self) -> str:
        choices = self.schema.get("enum")
        if choices is not None:
            return " | ".join(str(choice) for choice in choices)
        kind = self.schema.get("type")
        if kind == "array":
            return "list"
        words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "y/n"}
        return words.get(str(kind), "JSON")


class Fields(msgspec.Struct, frozen=True):
    fields: list[Field]


class Anything(msgspec.Struct, frozen=True):
    """An answer that needs free JSON."""


Shape = YesNo | Pick | Fields | Anything


def shape_of(schema: Schema, options: list[Option] | None = None) -> Shape:
    """Returns the form in which a person gives an answer."""
    fields, root = fields_of(schema), simple(schema, schema)
    required = [field for field in fields if field.required]
    single = required[0] if len(required) == 1 else None
    of_options = _pick_of_options(schema, options, fields, single) if options else None
    if of_options is not None:
        return of_options
    return _shape_of_value(root) or _shape_of_member(fields, single) or (Fields(fields) if fields else Anything())


def _pick_of_options(schema: Schema, options: list[Option], fields: list[Field], single: Field | None) -> Pick | None:
    """Returns the choice between options; None where they only say yes or no, or are not for a member."""
    root = simple(schema, schema)
    pairs: list[tuple[Any, str]] = [(option.id, option.label) for option in options]
    if root.get("type") != "object":
        return Pick(None, pairs)
    if single is None:
        return None
    if single.schema.get("type") != "boolean":
        return Pick(single.name, pairs, reason=_reason(fields, single))
    choices = choices_from_options(options, {**schema, **root})
    answers = {} if choices is None else {id_: own[single.name] for id_, own in choices.answers.items()}
    if choices is None or answers == {"yes": True, "no": False}:
        return None
    return Pick(single.name, pairs, answers, _reason(fields, single))


def _shape_of_value(root: Schema) -> Shape | None:
    """Returns the form of an answer that is no object."""
    if root.get("type") == "boolean":
        return YesNo(None, None)
    return Pick(None, [(value, str(value)) for value in root["enum"]]) if "enum" in root else None


def _shape_of_member(fields: list[Field], single: Field | None) -> Shape | None:
    """Returns the form of an object with one member that has to be given, and perhaps a reason."""
    if single is None:
        return None
    alone, reason = len(fields) == 1, _reason(fields, single)
    if single.schema.get("type") == "boolean" and (alone or reason is not None):
        return YesNo(single.name, reason)
    if alone and "enum" in single.schema:
        return Pick(single.name, [(value, str(value)) for value in single.schema["enum"]])
    return None


def _reason(fields: list[Field], single: Field) -> str | None:
    """The only other member, where it is a text."""
    others = [f for f in fields if f is not single]
    return others[0].name if len(others) == 1 and others[0].schema.get("type") == "string" else None


def fields_of(schema: Schema) -> list[Field]:
    """The members of an object, in the order in which they were declared."""
    root = simple(schema, schema)
    required = root.get("required", [])
    return [
        Field(name, simple(member, schema), name in required, member.get("default", msgspec.UNSET))
        for name, member in root.get("properties", {}).items()
        if isinstance(member, dict)
    ]


def simple(schema: Schema, root: Schema) -> Schema:
    """A schema without its reference, and without the null that says it is optional."""
    seen = 0
    while seen < 20:
        seen += 1
        ref = schema.get("$ref", "")
        if ref.startswith("#/$defs/"):
            schema = root.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
            continue
        alternatives = [s for s in schema.get("anyOf", []) if s.get("type") != "null"]
        if len(alternatives) == 1:
            schema = alternatives[0]
            continue
        kinds = schema.get("type")
        if isinstance(kinds, list):
            rest = [kind for kind in kinds if kind != "null"]
            return {**schema, "type": rest[0]} if len(rest) == 1 else {k: v for k, v in schema.items() if k != "type"}
        return schema
    return {}


def _is_plain(schema: Schema) -> bool:
    return schema.get("type") in ("string", "integer", "number", "boolean")


def read_yes_no(text: str) -> tuple[bool, str | None]:
    """Reads `y` or `n`, and the text behind it as the reason."""
    word, _, rest = text.strip().partition(" ")
    word = word.lower().rstrip(",.:;")
    if word not in _YES + _NO:
        raise ValueError("answer y or n")
    return word in _YES, rest.strip() or None


def read_choice(pick: Pick, text: str) -> Any:
    """The number of a choice, its value, or its label."""
    wanted = text.strip()
    for value, label in pick.options:
        if wanted == str(value) or wanted.lower() == label.lower():
            return value
    if wanted.isdecimal() and 1 <= int(wanted) <= len(pick.options):
        return pick.options[int(wanted) - 1][0]
    raise ValueError(f"choose a number from 1 to {len(pick.options)}")


def read_field(schema: Schema, text: str) -> Any:
    """A member's value, as its schema wants it."""
    if "enum" in schema:
        return read_choice(Pick(None, [(value, str(value)) for value in schema["enum"]]), text)
    match schema.get("type"):
        case "string":
            return text
        case "boolean":
            return read_yes_no(text)[0]
        case "integer":
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{text!r} is not a whole number") from None
        case "number":
            try:
                number = float(text)
            except ValueError:
                raise ValueError(f"{text!r} is not a number") from None
            return int(number) if number.is_integer() and text.strip("+-").isdecimal() else number
        case "array" if not text.lstrip().startswith("[") and _is_plain(schema.get("items", {})):
            return [read_field(schema["items"], part.strip()) for part in text.split(",") if part.strip()]
    try:
        return read_json(text)
    except ValueError:
        if any(other.get("type") == "string" for other in schema.get("anyOf", [])):
            return text
        raise


def read_json(text: str) -> Any:
    try:
        return json_values.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        raise ValueError(f"this {fault(text)}") from None


def put_yes_no(shape: YesNo, approved: bool, reason: str | None) -> Any:
    if shape.field is None:
        return approved
    answer: dict[str, Any] = {shape.field: approved}
    if reason and shape.reason is not None:
        answer[shape.reason] = reason
    return answer


def put_choice(shape: Pick, value: Any, reason: str | None = None) -> Any:
    if shape.field is None:
        return value
    answer = {shape.field: shape.answers[value] if shape.answers else value}
    if reason and shape.reason is not None:
        answer[shape.reason] = reason
    return answer


def answer_from(schema: Schema, options: list[Option], text: str, reason: str | None = None) -> Any:
    """An answer given in one piece, as on a command line. Raises InvalidAnswer."""
    shape = shape_of(schema, options)
    answer: Any
    try:
        match shape:
            case YesNo() if not text.lstrip().startswith("{"):
                approved, said = read_yes_no(text)
                answer = put_yes_no(shape, approved, reason or said)
            case Pick() if not text.lstrip().startswith("{"):
                answer = put_choice(shape, read_choice(shape, text), reason)
            case Fields(fields) if not text.lstrip().startswith("{") and _main_field(fields) is not None:
                main = _main_field(fields)
                assert main is not None
                answer = {main.name: read_field(main.schema, text)}
            case _:
                answer = read_json(text)
    except ValueError as error:
        raise InvalidAnswer(f"answer: {error}") from None
    Validator(schema, what="answer").check(answer, InvalidAnswer)
    return answer


def _main_field(fields: list[Field]) -> Field | None:
    """The one that a plain text is for."""
    required = [f for f in fields if f.required] or fields
    return required[0] if len(required) == 1 else None


def problem(schema: Schema, value: Any, kind: type[Invalid], what: str) -> Invalid | None:
    """Returns the mistake in a value, or None if there is none."""
    try:
        Validator(schema, what=what).check(value, kind)
    except Invalid as error:
        return error
    return None


def describe_fields(schema: Schema) -> list[str]:
    """The members of an object, one line each: for people who sent something else."""
    lines = []
    for f in fields_of(schema):
        note = "required" if f.required else "optional"
        if f.default is not msgspec.UNSET and f.default is not None:
            note = f"default {json_values.encode(f.default).decode()}"
        lines.append(f"{f.name} ({f.kind}, {note})" + (f": {d}" if (d := f.schema.get("description")) else ""))
    return lines


def example_of(schema: Schema, options: list[Option] | None = None) -> str:
    """An answer as it could be typed, for a hint."""
    match shape_of(schema, options):
        case YesNo():
            return "y"
        case Pick(options=pairs):
            return str(pairs[0][0]) if pairs else "1"
        case Fields(fields):
            main = _main_field(fields)
            if main is not None and main.schema.get("type") == "string" and "enum" not in main.schema:
                return "'your text'"
            wanted = [f for f in fields if f.required] or fields
            return "'" + json_values.encode({f.name: _sample(f.schema) for f in wanted}).decode().replace("'", "") + "'"
    return "'JSON'"


def _sample(schema: Schema) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    samples: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": []}
    return samples.get(str(schema.get("type")), {})
