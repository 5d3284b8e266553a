"""Presentation of questions to people: as choices, as a flat form, or as text. Pure.

Several doors can show only one of these three; this module decides which one a question fits. Any answer schema has a
flat form: a member that no form field can express is JSON in a text field.
"""

from __future__ import annotations

import datetime
import json
from typing import Any, Literal

import msgspec

from . import json_values
from .card import Schema
from .errors import DefinitionError, InvalidAnswer
from .run import Option, Question
from .schemas import Validator, check_refs_local, usable


def json_block(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"


class Choices(msgspec.Struct):
    """The options of a question, and the answer that each option stands for. Answers may have further members."""

    options: list[Option]
    answers: dict[str, Any]
    schema: Schema = {}  # of the answer

    def rejection(self) -> Any:
        """The answer of the first rejecting option; UNSET if there is none."""
        for option in self.options:
            if (option.kind or "").startswith("reject"):
                return self.answers[option.id]
        return msgspec.UNSET

    @property
    def other_members(self) -> dict[str, Any]:
        """The members of the answer that no option sets."""
        set_members = {
            name for option_answer in self.answers.values() if isinstance(option_answer, dict) for name in option_answer
        }
        return {
            name: member
            for name, member in self.schema.get("properties", {}).items()
            if set_members and name not in set_members
        }

    def chosen(self, answer: Any) -> str | None:
        """The id of the option that an answer contains."""
        return next(
            (id_ for id_, option_answer in self.answers.items() if _contains_answer(answer, option_answer)), None
        )

    def full_answer(self, id_: str, answer: Any) -> Any:
        """The answer, if it contains the option's answer and fits the schema; otherwise the option's answer alone."""
        option_answer = self.answers[id_]
        return answer if _contains_answer(answer, option_answer) and self.fits(answer) else option_answer

    def fits(self, answer: Any) -> bool:
        try:
            Validator(self.schema, what="answer").check(answer, InvalidAnswer)
        except InvalidAnswer:
            return False
        return True


def _contains_answer(answer: Any, option_answer: Any) -> bool:
    """True if an answer is the option's answer, with or without further members."""
    if isinstance(answer, dict) and isinstance(option_answer, dict):
        return all(name in answer and answer[name] == value for name, value in option_answer.items())
    return bool(answer == option_answer)


def choices(question: Question) -> Choices | None:
    schema = question.answer_schema
    if question.options:
        return choices_from_options(question.options, schema)
    member = _only_member(schema)
    name, inner = (None, schema) if member is None else member  # without a name, the answer itself
    if inner.get("type") == "boolean":
        answers: dict[str, Any] = {"yes": True, "no": False}
        options = [Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once")]
    elif _is_text_list(inner.get("enum")):
        answers = {text: text for text in inner["enum"]}
        options = [Option(text, text, "allow_once") for text in answers]
    else:
        return None
    wrapped = answers if name is None else {id_: {name: value} for id_, value in answers.items()}
    return Choices(options, wrapped, schema)


def choices_from_options(options: list[Option], schema: Schema) -> Choices | None:
    """Maps options to answers. None if the schema has no single member for the choice."""
    answers: dict[str, Any] = {}
    for option in options:
        answer = _answer_for(option, schema)
        if answer is msgspec.UNSET:
            return None
        answers[option.id] = answer
    return Choices([Option(o.id, o.label, o.kind or _default_kind(answers[o.id])) for o in options], answers, schema)


def _default_kind(answer: Any) -> Literal["allow_once", "reject_once"]:
    """The kind of an option without one, derived from its answer."""
    return "reject_once" if isinstance(answer, dict) and False in answer.values() else "allow_once"


def _is_text_list(value: Any) -> bool:
    """True for a non-empty list of texts."""
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _answer_for(option: Option, schema: Schema) -> Any:
    if schema.get("type") == "string" or (_is_text_list(schema.get("enum")) and option.id in schema["enum"]):
        return option.id
    member = _only_member(schema)
    if member is None:
        return msgspec.UNSET
    name, inner = member
    if inner.get("type") == "boolean":
        return {name: (option.kind or "").startswith("allow")}
    return {name: option.id} if inner.get("type", "string") == "string" else msgspec.UNSET


def _only_member(schema: Schema) -> tuple[str, Schema] | None:
    """The only required member of an answer; None if there is not exactly one."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if len(required) != 1 or required[0] not in properties:
        return None
    return required[0], resolved(properties[required[0]], schema)


def resolved(schema: Any, root: Schema) -> Schema:
    """Resolves a local reference and drops `null` as an alternative."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if isinstance(schema.get("$ref"), str):
            schema = _follow_reference(schema, root)
            continue
        alternatives = schema.get("anyOf")
        if isinstance(alternatives, list):
            others = [entry for entry in alternatives if entry != {"type": "null"}]
            if len(others) == 1 and len(alternatives) == 2:
                schema = {**_as_dict(others[0]), **{key: value for key, value in schema.items() if key != "anyOf"}}
                continue
        return schema
    return {}


def _follow_reference(schema: Schema, root: Schema) -> Schema:
    """The target of a reference, merged with the keywords beside it."""
    target: Any = root
    for step in schema["$ref"].lstrip("#/").split("/"):
        target = target.get(step, {}) if isinstance(target, dict) else {}
    return {**_as_dict(target), **{key: value for key, value in schema.items() if key != "$ref"}}


def _as_dict(schema: Any) -> Schema:
    """The schema as a dict; a boolean schema becomes the empty one."""
    return schema if isinstance(schema, dict) else {}


def _nullable(schema: Any, root: Schema, depth: int = 8) -> bool:
    """True if `null` is one of the alternatives that `resolved` drops."""
    if not isinstance(schema, dict) or not depth:
        return False
    if isinstance(schema.get("$ref"), str):
        return _nullable(_follow_reference(schema, root), root, depth - 1)
    alternatives = schema.get("anyOf")
    if isinstance(alternatives, list):
        return any(_nullable(alternative, root, depth - 1) for alternative in alternatives[:8])
    return schema.get("type") == "null"


_FORM_KEYS = {
    "string": ("minLength", "maxLength", "pattern", "format", "default", "enum", "oneOf"),
    "number": ("minimum", "maximum", "default"),
    "integer": ("minimum", "maximum", "default"),
    "boolean": ("default",),
    "array": ("minItems", "maxItems", "default"),
}
_FORMATS = ("email", "uri", "date", "date-time")


ANSWER = "answer"
"""The only field of a form for an answer that is not an object with members."""


class Form(msgspec.Struct):
    """A flat form for an answer of any shape."""

    schema: Schema  # of the flat form
    single_field: bool = False  # the only field is the answer
    json_fields: frozenset[str] = frozenset()  # text fields that hold JSON
    nullable_fields: frozenset[str] = frozenset()  # fields whose absence means null
    exact: bool = True  # the form describes the answer without loss

    def content(self, answer: Any) -> dict[str, Any]:
        """The field values for a valid answer."""
        members = {ANSWER: answer} if self.single_field else answer
        return {
            name: json_values.encode(value).decode() if name in self.json_fields else value
            for name, value in members.items()
            if value is not None or name not in self.nullable_fields
        }

    def answer(self, content: dict[str, Any]) -> Any:
        """The answer for given field values, not yet checked against the schema."""
        answer: dict[str, Any] = dict.fromkeys(self.nullable_fields)
        for name, value in content.items():
            if name not in self.json_fields or not isinstance(value, str):
                answer[name] = value
            elif value.strip() or name in self.schema.get("required", ()):  # an empty optional field counts as absent
                answer[name] = _read(name, value)
        if not self.single_field:
            return answer
        if ANSWER not in answer:
            raise InvalidAnswer(f"{ANSWER} is missing")
        return answer[ANSWER]


def _read(name: str, text: str) -> Any:
    try:
        return json_values.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"{name} has to be JSON, with texts in quotes: {error}") from None


def form(schema: Schema) -> Form:
    """Builds the flat form for an answer schema."""
    members, required = schema.get("properties"), schema.get("required", [])
    closed = not isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema
    if schema.get("type") != "object" or not members or not closed or not set(required) <= set(members):
        members, required, single_field = {ANSWER: schema}, [ANSWER], True
    else:
        single_field = False
    fields: dict[str, Any] = {}
    json_fields, nullable_fields = set(), set()
    exact = not single_field
    for name, member in members.items():
        inner = schema if single_field else resolved(member, schema)
        field, nullable = _field(inner), not single_field and _nullable(member, schema)
        exact = (
            exact
            and field is not None
            and not nullable
            and _restrictions(field) == {"type": "string", **_restrictions(inner)}
        )
        if field is None:
            json_fields.add(name)
            field = _json_field(name, inner, describe_schema(member, schema))
        elif name in required and nullable:
            nullable_fields.add(name)
        fields[name] = field
    form_schema: Schema = {"type": "object", "properties": fields}
    if form_required := [name for name in required if name not in nullable_fields]:
        form_schema["required"] = form_required
    return Form(form_schema, single_field, frozenset(json_fields), frozenset(nullable_fields), exact)


_WORDING = frozenset(("title", "description", "default", "examples"))  # keywords that restrict nothing


def _restrictions(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in _WORDING}


def _field(inner: Schema) -> Schema | None:
    kind = inner.get("type")
    if kind is None and inner.get("enum"):
        kind = "string"
    if not isinstance(kind, str) or kind not in _FORM_KEYS:
        return None
    field = {"type": kind, **{key: inner[key] for key in (*_FORM_KEYS[kind], "title", "description") if key in inner}}
    if field.get("default", "") is None:
        del field["default"]
    if "enum" in field and not _is_text_list(field["enum"]):
        return None
    if "format" in field and field["format"] not in _FORMATS:
        del field["format"]
    if kind == "array":
        items = inner.get("items")
        if not isinstance(items, dict) or not _is_text_list(items.get("enum")):
            return None
        field["items"] = {"type": "string", "enum": items["enum"]}
    return field


def _json_field(name: str, inner: Schema, shape: str) -> Schema:
    about = [inner["description"]] if isinstance(inner.get("description"), str) else []
    words = "\n\n".join([*about, f"JSON of this shape: {shape}"])
    return {"type": "string", "title": f"{inner.get('title') or name} (JSON)", "description": words}


_WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
_READABLE = 50  # parts of a schema


def describe_schema(schema: Any, root: Schema) -> str:
    """Describes the values of a schema in words. A large schema is cut off."""
    left = _READABLE

    def describe(inner: Any, depth: int = 6) -> str:
        nonlocal left
        left -= 1
        if isinstance(inner, dict) and "$ref" in inner:
            inner = resolved(inner, root)
        if not isinstance(inner, dict) or not depth or left < 0:
            return "…"
        for alternatives in (inner.get("anyOf"), inner.get("oneOf")):
            if isinstance(alternatives, list):
                return " or ".join(describe(alternative, depth - 1) for alternative in alternatives[:_READABLE])
        kind, constants = inner.get("type"), [inner["const"]] if "const" in inner else inner.get("enum")
        if isinstance(constants, list):
            return " or ".join(json.dumps(value, ensure_ascii=False) for value in constants[:_READABLE])
        if isinstance(kind, list):
            return " or ".join(describe({**inner, "type": alternative}, depth - 1) for alternative in kind)
        if kind == "array":
            return f"[{describe(inner.get('items', {}), depth - 1)}, …]"
        if kind != "object":
            return _WORDS.get(str(kind), "anything")
        members = [
            f'"{name}"{"" if name in inner.get("required", ()) else " (optional)"}: {describe(member, depth - 1)}'
            for name, member in list(inner.get("properties", {}).items())[:_READABLE]
        ]
        if isinstance(inner.get("additionalProperties"), dict):
            members.append(f"any name: {describe(inner['additionalProperties'], depth - 1)}")
        return f"{{{', '.join(members) or '…'}}}"

    return describe(schema)


def detail_lines(question: Question) -> list[str]:
    """The details of a question beside its prompt, for a human; empty if there are none."""
    payload = question.payload
    if isinstance(payload, dict):
        lines = [
            f"**{name.replace('_', ' ')}**: "
            + (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in payload.items()
            if value != question.prompt and name not in ("options", "diff", "diffs", "kind")
        ]
    else:
        lines = [] if payload in (None, question.prompt) else [str(payload)]
    if question.deadline is not None and not any(_UNTIL in text for text in (question.prompt, *lines)):
        lines.append(f"{_UNTIL} {format_time(question.deadline)[:19].replace('T', ' ')} UTC.")
    return ["\n\n".join(lines)] if lines else []


_UNTIL = "Answer until"  # a question from another server may contain it already


def format_time(time: int) -> str:
    """Formats microseconds since 1970 as a timestamp."""
    seconds, micros = divmod(time, 1_000_000)
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def parse_time(text: Any) -> int | None:
    """Parses a timestamp to microseconds since 1970; None if it is not one."""
    try:
        moment = datetime.datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None or moment.tzinfo is None:
        return None
    elapsed = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def question_text(question: Question) -> str:
    """Renders a question as a message, for a client that can show neither choices nor a form."""
    paragraphs = [question.prompt or question.type.replace("_", " ")]
    paragraphs += detail_lines(question)
    if question.options:
        paragraphs += [f"- {option.id}: {option.label}" for option in question.options]
    member = _only_member(question.answer_schema)
    inner = question.answer_schema if member is None else member[1]
    if inner.get("type") not in ("string", "boolean", "integer", "number"):
        paragraphs.append("Answer with JSON that fits:\n" + json_block(question.answer_schema))
    else:
        paragraphs.append("Write your answer as the next message.")
    return "\n\n".join(paragraphs)


def parse_answer(question: Question, text: str) -> Any:
    """Reads a text answer: one of the options, JSON, or the plain value of the only required member."""
    offered_choices = choices(question)
    if offered_choices is not None:
        for option in offered_choices.options:
            if text.strip().casefold() in (option.id.casefold(), option.label.casefold()):
                return offered_choices.answers[option.id]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.strip()
    schema = question.answer_schema
    if schema.get("type") != "object":
        return _interpret(schema, value, text)
    member = _only_member(schema)
    if isinstance(value, dict) or member is None:
        return value
    name, inner = member
    return {name: _interpret(inner, value, text)}


def _interpret(inner: Schema, value: Any, text: str) -> Any:
    """Interprets a text for a schema: words for booleans, and the text itself where the schema wants a text."""
    if inner.get("type") == "boolean" and isinstance(value, str):
        return {"yes": True, "y": True, "ok": True, "no": False, "n": False}.get(value.lower(), value)
    return text.strip() if inner.get("type") == "string" and not isinstance(value, str) else value


def matching_form(schema: Any, received: Any) -> tuple[Form, Schema] | None:
    """Returns the form of an answer schema, and the schema, if its fields match those of a received form.

    None if they do not match: then only the received form is known.
    """
    fields = received.get("properties") if isinstance(received, dict) else None
    if not isinstance(schema, dict) or not isinstance(fields, dict) or usable(schema) != schema:
        return None
    found_form = form(schema)
    return (found_form, schema) if set(found_form.schema["properties"]) == set(fields) else None


def matching_choices(schema: Any, options: list[Option]) -> Choices | None:
    """Combines received options with the answer schema sent beside them, narrowed to answers that contain one.

    None if they do not match: then only the options are known.
    """
    combined = (
        choices_from_options(options, schema)
        if isinstance(schema, dict) and schema and usable(schema) == schema
        else None
    )
    member = None if combined is None else _only_member(schema)
    if (
        combined is None
        or member is None
        or not combined.other_members
        or not all(map(combined.fits, combined.answers.values()))
    ):
        return None
    name, inner = member
    chosen = [option_answer[name] for option_answer in combined.answers.values()]
    member_schema = schema["properties"][name] if isinstance(schema["properties"][name], dict) else {}
    possible = [False, True] if member_schema.get("type") == "boolean" else member_schema.get("enum")
    if possible is None or not all(value in chosen for value in possible):
        narrowed = {**inner, "enum": list(dict.fromkeys(chosen))}
        combined.schema = {**schema, "properties": {**schema["properties"], name: narrowed}}
    return combined


def usable_answer(schema: Any) -> Schema:
    """The answer schema of a peer, as far as it can be checked here; it need not describe a form."""
    return usable(schema) or usable(_without_nulls(schema))


def usable_form(schema: Any) -> Schema:
    """The form schema of a peer. One that cannot be checked here becomes an open object; the peer checks answers."""
    cleaned = _without_nulls(schema) if isinstance(schema, dict) else {}
    cleaned.setdefault("type", "object")
    try:
        check_refs_local(cleaned, "form")
        Validator(cleaned, what="form")
    except DefinitionError:
        return {"type": "object"}
    return dict(cleaned)


def _without_nulls(value: Any) -> Any:
    """Drops null members: some peers write them for absent keywords, which JSON Schema forbids."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
