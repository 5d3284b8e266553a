"""Questions as people meet them: as a few choices, as a flat form, or as words. Pure.

Several doors can show one of these three and nothing else; which one a question fits is decided here, once. There is a
flat form for an answer of any shape: what has no field of its own kind is JSON in a text field.
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


def fenced(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"


class Choices(msgspec.Struct):
    """A question whose answer begins with one of a few: what to offer, and the answer that each stands for."""

    options: list[Option]
    answers: dict[str, Any]
    schema: Schema = {}  # of the answer

    def rejection(self) -> Any:
        """The answer that allows nothing, where there is one."""
        for option in self.options:
            if (option.kind or "").startswith("reject"):
                return self.answers[option.id]
        return msgspec.UNSET

    @property
    def beside(self) -> dict[str, Any]:
        """The members of the answer that no choice says anything of."""
        said = {name for own in self.answers.values() if isinstance(own, dict) for name in own}
        return {name: member for name, member in self.schema.get("properties", {}).items() if said and name not in said}

    def chosen(self, answer: Any) -> str | None:
        """The choice that an answer begins with."""
        return next((id_ for id_, own in self.answers.items() if _begins(answer, own)), None)

    def whole(self, id_: str, answer: Any) -> Any:
        """All of an answer that begins with a choice and fits. Of any other only the choice counts, which decides."""
        own = self.answers[id_]
        return answer if _begins(answer, own) and self.fits(answer) else own

    def fits(self, answer: Any) -> bool:
        try:
            Validator(self.schema, what="answer").check(answer, InvalidAnswer)
        except InvalidAnswer:
            return False
        return True


def _begins(answer: Any, own: Any) -> bool:
    """Whether an answer is that of a choice, with or without more in it."""
    if isinstance(answer, dict) and isinstance(own, dict):
        return all(name in answer and answer[name] == value for name, value in own.items())
    return bool(answer == own)


def choices(question: Question) -> Choices | None:
    schema = question.answer_schema
    if question.options:
        return offered(question.options, schema)
    member = _only_member(schema)
    name, inner = (None, schema) if member is None else member  # without a name it is the answer itself
    if inner.get("type") == "boolean":
        answers: dict[str, Any] = {"yes": True, "no": False}
        options = [Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once")]
    elif _texts(inner.get("enum")):
        answers = {text: text for text in inner["enum"]}
        options = [Option(text, text, "allow_once") for text in answers]
    else:
        return None
    told = answers if name is None else {id_: {name: value} for id_, value in answers.items()}
    return Choices(options, told, schema)


def offered(options: list[Option], schema: Schema) -> Choices | None:
    """Options as the beginnings of answers. None where there is no one place for them."""
    answers: dict[str, Any] = {}
    for option in options:
        answer = _answer_for(option, schema)
        if answer is msgspec.UNSET:
            return None
        answers[option.id] = answer
    return Choices([Option(o.id, o.label, o.kind or _kind(answers[o.id])) for o in options], answers, schema)


def _kind(answer: Any) -> Literal["allow_once", "reject_once"]:
    """Of an option that does not say: what its answer does."""
    return "reject_once" if isinstance(answer, dict) and False in answer.values() else "allow_once"


def _texts(given: Any) -> bool:
    """Whether it is a list of texts to choose from."""
    return isinstance(given, list) and bool(given) and all(isinstance(one, str) for one in given)


def _answer_for(option: Option, schema: Schema) -> Any:
    if schema.get("type") == "string" or (_texts(schema.get("enum")) and option.id in schema["enum"]):
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
            schema = _followed(schema, root)
            continue
        alternatives = schema.get("anyOf")
        if isinstance(alternatives, list):
            others = [entry for entry in alternatives if entry != {"type": "null"}]
            if len(others) == 1 and len(alternatives) == 2:
                schema = {**_dict(others[0]), **{key: value for key, value in schema.items() if key != "anyOf"}}
                continue
        return schema
    return {}


def _followed(schema: Schema, root: Schema) -> Schema:
    """What a reference stands for, with what is said beside it."""
    found: Any = root
    for step in schema["$ref"].lstrip("#/").split("/"):
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return {**_dict(found), **{key: value for key, value in schema.items() if key != "$ref"}}


def _dict(schema: Any) -> Schema:
    """What a schema says, which may be `true` and say nothing."""
    return schema if isinstance(schema, dict) else {}


def _nullable(schema: Any, root: Schema, depth: int = 8) -> bool:
    """Whether `null` is one of the alternatives that `resolved` leaves out."""
    if not isinstance(schema, dict) or not depth:
        return False
    if isinstance(schema.get("$ref"), str):
        return _nullable(_followed(schema, root), root, depth - 1)
    alternatives = schema.get("anyOf")
    if isinstance(alternatives, list):
        return any(_nullable(one, root, depth - 1) for one in alternatives[:8])
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
"""The only field of a form for an answer that is no object with members."""


class Form(msgspec.Struct):
    """A flat form for an answer of any shape."""

    shown: Schema
    whole: bool = False  # its only field is the answer
    written: frozenset[str] = frozenset()  # fields that are a text with JSON in it
    nulls: frozenset[str] = frozenset()  # fields that are left out to say null
    flat: bool = True  # what is shown is what is wanted

    def content(self, answer: Any) -> dict[str, Any]:
        """An answer that fits, in the fields."""
        members = {ANSWER: answer} if self.whole else answer
        return {
            name: json_values.encode(value).decode() if name in self.written else value
            for name, value in members.items()
            if value is not None or name not in self.nulls
        }

    def answer(self, content: dict[str, Any]) -> Any:
        """What the fields say. Whether that fits is for others to check."""
        found: dict[str, Any] = dict.fromkeys(self.nulls)
        for name, value in content.items():
            if name not in self.written or not isinstance(value, str):
                found[name] = value
            elif value.strip() or name in self.shown.get("required", ()):  # a field that was left empty says nothing
                found[name] = _read(name, value)
        if not self.whole:
            return found
        if ANSWER not in found:
            raise InvalidAnswer(f"{ANSWER} is missing")
        return found[ANSWER]


def _read(name: str, text: str) -> Any:
    try:
        return json_values.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"{name} has to be JSON, with texts in quotes: {error}") from None


def form(schema: Schema) -> Form:
    """How to show what an answer is made of."""
    members, required = schema.get("properties"), schema.get("required", [])
    closed = not isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema
    if schema.get("type") != "object" or not members or not closed or not set(required) <= set(members):
        members, required, whole = {ANSWER: schema}, [ANSWER], True
    else:
        whole = False
    fields: dict[str, Any] = {}
    written, nulls = set(), set()
    flat = not whole
    for name, member in members.items():
        inner = schema if whole else resolved(member, schema)
        field, nullable = _field(inner), not whole and _nullable(member, schema)
        flat = flat and field is not None and not nullable and _said(field) == {"type": "string", **_said(inner)}
        if field is None:
            written.add(name)
            field = _json_field(name, inner, in_words(member, schema))
        elif name in required and nullable:
            nulls.add(name)
        fields[name] = field
    told: Schema = {"type": "object", "properties": fields}
    if needed := [name for name in required if name not in nulls]:
        told["required"] = needed
    return Form(told, whole, frozenset(written), frozenset(nulls), flat)


_WORDING = frozenset(("title", "description", "default", "examples"))  # says nothing of what fits


def _said(schema: Schema) -> Schema:
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
    if "enum" in field and not _texts(field["enum"]):
        return None
    if "format" in field and field["format"] not in _FORMATS:
        del field["format"]
    if kind == "array":
        items = inner.get("items")
        if not isinstance(items, dict) or not _texts(items.get("enum")):
            return None
        field["items"] = {"type": "string", "enum": items["enum"]}
    return field


def _json_field(name: str, inner: Schema, shape: str) -> Schema:
    about = [inner["description"]] if isinstance(inner.get("description"), str) else []
    words = "\n\n".join([*about, f"JSON of this shape: {shape}"])
    return {"type": "string", "title": f"{inner.get('title') or name} (JSON)", "description": words}


_WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
_READABLE = 50  # of the parts of a schema


def in_words(schema: Any, root: Schema) -> str:
    """What fits a schema, as somebody would write it down for somebody else. Of a large one, as much as can be read."""
    left = _READABLE

    def told(inner: Any, depth: int = 6) -> str:
        nonlocal left
        left -= 1
        if isinstance(inner, dict) and "$ref" in inner:
            inner = resolved(inner, root)
        if not isinstance(inner, dict) or not depth or left < 0:
            return "…"
        for several in (inner.get("anyOf"), inner.get("oneOf")):
            if isinstance(several, list):
                return " or ".join(told(one, depth - 1) for one in several[:_READABLE])
        kind, fixed = inner.get("type"), [inner["const"]] if "const" in inner else inner.get("enum")
        if isinstance(fixed, list):
            return " or ".join(json.dumps(value, ensure_ascii=False) for value in fixed[:_READABLE])
        if isinstance(kind, list):
            return " or ".join(told({**inner, "type": one}, depth - 1) for one in kind)
        if kind == "array":
            return f"[{told(inner.get('items', {}), depth - 1)}, …]"
        if kind != "object":
            return _WORDS.get(str(kind), "anything")
        members = [
            f'"{name}"{"" if name in inner.get("required", ()) else " (may be left out)"}: {told(member, depth - 1)}'
            for name, member in list(inner.get("properties", {}).items())[:_READABLE]
        ]
        if isinstance(inner.get("additionalProperties"), dict):
            members.append(f"any name: {told(inner['additionalProperties'], depth - 1)}")
        return f"{{{', '.join(members) or '…'}}}"

    return told(schema)


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
    inner = question.answer_schema if member is None else member[1]
    if inner.get("type") not in ("string", "boolean", "integer", "number"):
        told.append("Answer with JSON that fits:\n" + fenced(question.answer_schema))
    else:
        told.append("Write your answer as the next message.")
    return "\n\n".join(told)


def written_answer(question: Question, text: str) -> Any:
    """What somebody wrote in answer to a spoken question: one of its choices, or what reads as what is wanted."""
    found = choices(question)
    if found is not None:
        for option in found.options:
            if text.strip().casefold() in (option.id.casefold(), option.label.casefold()):
                return found.answers[option.id]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.strip()
    schema = question.answer_schema
    if schema.get("type") != "object":
        return _meant(schema, value, text)
    member = _only_member(schema)
    if isinstance(value, dict) or member is None:
        return value
    name, inner = member
    return {name: _meant(inner, value, text)}


def _meant(inner: Schema, value: Any, text: str) -> Any:
    """A word that was written. What reads as JSON may be no more than a text."""
    if inner.get("type") == "boolean" and isinstance(value, str):
        return {"yes": True, "y": True, "ok": True, "no": False, "n": False}.get(value.lower(), value)
    return text.strip() if inner.get("type") == "string" and not isinstance(value, str) else value


def true_form(schema: Any, shown: Any) -> tuple[Form, Schema] | None:
    """The schema of an answer whose flat form is shown, and how it is laid into that. None where the two are not of one
    another: then the form is all that is known."""
    fields = shown.get("properties") if isinstance(shown, dict) else None
    if not isinstance(schema, dict) or not isinstance(fields, dict) or usable(schema) != schema:
        return None
    laid = form(schema)
    return (laid, schema) if set(laid.shown["properties"]) == set(fields) else None


def true_choices(schema: Any, options: list[Option]) -> Choices | None:
    """Choices that are shown, as beginnings of answers of a schema that is told beside them: of that, what begins with
    one. None where the two are not of one another: then the choices are all that is known."""
    found = offered(options, schema) if isinstance(schema, dict) and schema and usable(schema) == schema else None
    member = None if found is None else _only_member(schema)
    if found is None or member is None or not found.beside or not all(map(found.fits, found.answers.values())):
        return None
    name, inner = member
    chosen = [own[name] for own in found.answers.values()]
    told = schema["properties"][name] if isinstance(schema["properties"][name], dict) else {}
    possible = [False, True] if told.get("type") == "boolean" else told.get("enum")
    if possible is None or not all(value in chosen for value in possible):
        narrowed = {**inner, "enum": list(dict.fromkeys(chosen))}
        found.schema = {**schema, "properties": {**schema["properties"], name: narrowed}}
    return found


def usable_answer(schema: Any) -> Schema:
    """What a peer says of the answer that it wants, which need not be a form."""
    return usable(schema) or usable(_without_nulls(schema))


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
