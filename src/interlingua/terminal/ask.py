"""Asks at the terminal: yes or no, a choice, or a form made from a JSON Schema."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ..model import json_values
from ..model.card import Schema
from ..model.errors import Invalid, InvalidAnswer
from ..model.pointers import first_step
from ..model.run import Question
from . import typed_answers
from .console import clean, error_console, note
from .keyboard import forget_typed, read_line
from .parts import question_view


class Asker(Protocol):
    """Answers the questions of a run that a command watches."""

    async def ask(self, question: Question) -> Any: ...


class AskAtTerminal:
    """Asks the person at the terminal. Raises EOFError if that person gives no answer."""

    async def ask(self, question: Question) -> Any:
        forget_typed()
        error_console().print(question_view(question))
        shape = typed_answers.shape_of(question.answer_schema, question.options)
        match shape:
            case typed_answers.YesNo():
                return await _yes_no(shape)
            case typed_answers.Pick():
                return await _choice(shape)
            case typed_answers.Fields():
                return await form(question.answer_schema, InvalidAnswer, "answer")
        return await _any_json(question.answer_schema)


class SayYes:
    """Agrees to everything that can be agreed to, and says so: for a tour without an audience."""

    async def ask(self, question: Question) -> Any:
        error_console().print(question_view(question))
        shape = typed_answers.shape_of(question.answer_schema, question.options)
        if not isinstance(shape, typed_answers.YesNo):
            raise EOFError
        note("(there is no terminal to ask, so the tour answers: yes)")
        return typed_answers.put_yes_no(shape, True, None)


async def _yes_no(shape: typed_answers.YesNo) -> Any:
    while True:
        try:
            approved, reason = typed_answers.read_yes_no(await read_line("[y/n] "))
        except ValueError as error:
            _wrong(str(error))
            continue
        if not approved and reason is None and shape.reason is not None:
            reason = (await read_line(f"{shape.reason} (optional): ")).strip() or None
        return typed_answers.put_yes_no(shape, approved, reason)


async def _choice(shape: typed_answers.Pick) -> Any:
    console = error_console()
    for number, (_, label) in enumerate(shape.options, 1):
        console.print(f"  {number}) {clean(label)}", markup=False, highlight=False, soft_wrap=True)
    while True:
        try:
            line = await read_line(f"[1-{len(shape.options)}] ")
            return typed_answers.put_choice(shape, typed_answers.read_choice(shape, line))
        except ValueError as error:
            _wrong(str(error))


async def _any_json(schema: Schema) -> Any:
    while True:
        try:
            answer = typed_answers.read_json(await read_line("answer, as JSON: "))
        except ValueError as error:
            _wrong(str(error))
            continue
        wrong = typed_answers.problem(schema, answer, InvalidAnswer, "answer")
        if wrong is None:
            return answer
        _wrong(wrong.message)


async def form(schema: Schema, kind: type[Invalid], what: str, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Asks for a form field by field. Each value is checked when it is given, and the whole at the end; wrong fields
    are asked again."""
    fields = {f.name: f for f in typed_answers.fields_of(schema) if f.name not in (known or {})}
    given: dict[str, Any] = dict(known or {})
    again = list(fields.values())
    while again:
        for f in again:
            given.pop(f.name, None)
            value = await _field(f)
            if value is not msgspec.UNSET:
                given[f.name] = value
        error = typed_answers.problem(schema, given, kind, what)
        if error is None:
            return given
        _wrong(error.message)
        wrong = fields.get(first_step(error.path))
        again = [wrong] if wrong is not None else list(fields.values())
    return given


async def _field(f: typed_answers.Field) -> Any:
    """A value, or UNSET where the member is left out."""
    has_default = f.default is not msgspec.UNSET and f.default is not None
    optional = "" if f.required else " (optional)"
    default = f.default if isinstance(f.default, str) else json_values.encode(f.default).decode() if has_default else ""
    hint = f" [{clean(default)}]" if has_default else optional
    description = f.schema.get("description")
    if description:
        note(f"{f.name}: {description}")
    while True:
        text = await read_line(f"{clean(f.name)} ({f.how}){hint}: ")
        if not text.strip():
            if not f.required:
                return msgspec.UNSET  # an omitted member has its default
            if has_default:
                return f.default
            _wrong(f"{f.name} needs a value")
            continue
        try:
            value = typed_answers.read_field(f.schema, text)
        except ValueError as error:
            _wrong(str(error))
            continue
        checked = {key: member for key, member in f.schema.items() if key != "$defs"}
        wrong = None if "$ref" in str(checked) else typed_answers.problem(checked, value, Invalid, f.name)
        if wrong is None:
            return value
        _wrong(wrong.details["problem"] if isinstance(wrong.details, dict) else wrong.message)


def _wrong(message: str) -> None:
    error_console().print(f"  {clean(message)}", style="red", markup=False, highlight=False, soft_wrap=True)
