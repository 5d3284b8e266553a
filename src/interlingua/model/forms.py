"""Questions as people meet them: as a few choices, as a flat form, or as words. Pure.

Several doors can show one of these three and nothing else; which one a question fits is decided here, once.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import msgspec

from .card import Schema
from .errors import DefinitionError
from .run import Option, Question
from .schemas import Validator, check_refs_local


def fenced(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"


class Choices(msgspec.Struct):
    """A question whose answer is one of a few: what to offer, and the answer that each stands for."""

    options: list[Option]
    answers: dict[str, Any]

    def rejection(self) -> Any:
        """The answer that allows nothing, where there is one."""
        for option in self.options:
            if (option.kind or "").startswith("reject"):
                return self.answers[option.id]
        return msgspec.UNSET


def choices(question: Question) -> Choices | None:
    schema = question.answer_schema
    if question.options:
        answers: dict[str, Any] = {}
        for option in question.options:
            answer = _answer_for(option, schema)
            if answer is msgspec.UNSET:
                return None
            answers[option.id] = answer
        kinds = [Option(o.id, o.label, o.kind or "allow_once") for o in question.options]
        return Choices(kinds, answers)
    member = _only_member(schema)
    if member is None:
        return None
    name, inner = member
    if inner.get("type") == "boolean":
        return Choices(
            [Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once")],
            {"yes": {name: True}, "no": {name: False}},
        )
    values = inner.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return Choices(
            [Option(value, value, "allow_once") for value in values], {value: {name: value} for value in values}
        )
    return None


def _answer_for(option: Option, schema: Schema) -> Any:
    if schema.get("type") == "string":
        return option.id
    member = _only_member(schema)
    if member is None:
        return msgspec.UNSET
    name, inner = member
    if inner.get("type") == "boolean":
        return {name: (option.kind or "").startswith("allow")}
    return {name: option.id} if inner.get("type", "string") == "string" else msgspec.UNSET


def _only_member(schema: Schema) -> tuple[str, Schema] | None:
    """The one member that an answer must have, where there is just one."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if len(required) != 1 or required[0] not in properties:
        return None
    return required[0], resolved(properties[required[0]], schema)


def resolved(schema: Any, root: Schema) -> Schema:
    """A schema with its local reference followed, and `null` as an alternative left out."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if isinstance(schema.get("$ref"), str):
            found: Any = root
            for step in schema["$ref"].lstrip("#/").split("/"):
                found = found.get(step, {}) if isinstance(found, dict) else {}
            schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        alternatives = schema.get("anyOf")
        if isinstance(alternatives, list):
            others = [entry for entry in alternatives if entry != {"type": "null"}]
            if len(others) == 1 and len(alternatives) == 2:
                schema = {**others[0], **{key: value for key, value in schema.items() if key != "anyOf"}}
                continue
        return schema
    return {}


_FORM_KEYS = {
    "string": ("minLength", "maxLength", "pattern", "format", "default", "enum", "oneOf"),
    "number": ("minimum", "maximum", "default"),
    "integer": ("minimum", "maximum", "default"),
    "boolean": ("default",),
    "array": ("minItems", "maxItems", "default"),
}
_FORMATS = ("email", "uri", "date", "date-time")


def form(schema: Schema) -> Schema | None:
    """An answer's schema as a flat form, where it is one."""
    if schema.get("type") != "object" or not schema.get("properties"):
        return None
    fields: dict[str, Any] = {}
    for name, inner in schema["properties"].items():
        field = _field(resolved(inner, schema))
        if field is None:
            if name in schema.get("required", ()):
                return None
            continue  # what cannot be shown and need not be given is left out
        fields[name] = field
    told: Schema = {"type": "object", "properties": fields}
    if schema.get("required"):
        told["required"] = list(schema["required"])
    return told


def _field(inner: Schema) -> Schema | None:
    kind = inner.get("type")
    if kind is None and inner.get("enum"):
        kind = "string"
    if not isinstance(kind, str) or kind not in _FORM_KEYS:
        return None
    field = {"type": kind, **{key: inner[key] for key in (*_FORM_KEYS[kind], "title", "description") if key in inner}}
    if "enum" in field and not all(isinstance(value, str) for value in field["enum"]):
        return None
    if "format" in field and field["format"] not in _FORMATS:
        del field["format"]
    if kind == "array":
        items = inner.get("items", {})
        if not isinstance(items.get("enum"), list):
            return None
        field["items"] = {"type": "string", "enum": items["enum"]}
    return field


def particulars(question: Question) -> list[str]:
    """What a question shows beside its prompt, to be read by a human. Nothing where there is nothing else."""
    payload = question.payload
    if isinstance(payload, dict):
        lines = [
            f"**{name.replace('_', ' ')}**: {one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)}"
            for name, one in payload.items()
            if one != question.prompt and name not in ("options", "diff", "diffs", "kind")
        ]
    else:
        lines = [] if payload in (None, question.prompt) else [str(payload)]
    if question.deadline is not None and not any(_UNTIL in text for text in (question.prompt, *lines)):
        lines.append(f"{_UNTIL} {written(question.deadline)[:19].replace('T', ' ')} UTC.")
    return ["\n\n".join(lines)] if lines else []


_UNTIL = "Answer until"  # what comes through another server may say so already


def written(time: int) -> str:
    """Microseconds since 1970 as a timestamp."""
    seconds, micros = divmod(time, 1_000_000)
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def read_time(text: Any) -> int | None:
    """A timestamp in microseconds since 1970; None for what is none."""
    try:
        moment = datetime.datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None or moment.tzinfo is None:
        return None
    spent = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (spent.days * 86_400 + spent.seconds) * 1_000_000 + spent.microseconds


def spoken(question: Question) -> str:
    """A question as a message, for a client that can show neither choices nor a form of it."""
    told = [question.prompt or question.type.replace("_", " ")]
    told += particulars(question)
    if question.options:
        told += [f"- {option.id}: {option.label}" for option in question.options]
    member = _only_member(question.answer_schema)
    if member is None or member[1].get("type") not in ("string", "boolean", "integer", "number"):
        told.append("Answer with JSON that fits:\n" + fenced(question.answer_schema))
    else:
        told.append("Write your answer as the next message.")
    return "\n\n".join(told)


def written_answer(question: Question, text: str) -> Any:
    """What somebody wrote in answer to a spoken question."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text.strip()
    schema = question.answer_schema
    if isinstance(value, dict) or schema.get("type") != "object":
        return value
    member = _only_member(schema)
    if member is None:
        return value
    name, inner = member
    if inner.get("type") == "boolean" and isinstance(value, str):
        value = {"yes": True, "y": True, "ok": True, "no": False, "n": False}.get(value.lower(), value)
    elif inner.get("type") == "string" and not isinstance(value, str):
        value = text.strip()
    return {name: value}


def usable_form(schema: Any) -> Schema:
    """A form that a peer wants filled in. What cannot be checked is asked for freely: the peer checks by itself."""
    found = _without_nulls(schema) if isinstance(schema, dict) else {}
    found.setdefault("type", "object")
    try:
        check_refs_local(found, "form")
        Validator(found, what="form")
    except DefinitionError:
        return {"type": "object"}
    return dict(found)


def _without_nulls(value: Any) -> Any:
    """Some peers write every member that they leave out as null, which no JSON Schema may."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
