"""Questions of a server during a run, as questions of the local run: forms, and addresses to visit.

Any door may answer. A question without an answer in time is declined, never accepted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ....engine.ids import now
from ....model.card import Schema
from ....model.errors import QuestionExpired
from ....model.question_forms import Choices, matching_choices, matching_form, parse_time, usable_form
from ....model.run import Option
from ....mounts.remote_questions import Asked, RemoteQuestions, Settled, key_of
from .. import wire

SERVER_DECIDES_WITHIN = 10.0
"""Seconds for a server to withdraw a question by itself, before it gets an answer that means no."""


class McpQuestions:
    """The questions of one run."""

    def __init__(self, questions: RemoteQuestions, server_decides_within: float) -> None:
        self._questions = questions
        self._server_decides_within = server_decides_within
        self.taken_back = False  # its request was cancelled: the server withdraws its questions with it

    async def elicit(self, params: dict[str, Any], number: int = 0) -> dict[str, Any]:
        """Returns the result of an elicitation. `number` counts the requests of a run that are repeated with answers:
        a question of a later one is another question, also under the same name."""
        message = str(params.get("message") or "The server asks")
        meta = params["_meta"] if isinstance(params.get("_meta"), dict) else {}
        name, until = meta.get(wire.META_QUESTION), parse_time(meta.get(wire.META_DEADLINE))
        named = name is not None and not number

        async def ask(type_: str, mark: Any, payload: Any, schema: Schema, prompt: str, options: list[Option]) -> Any:
            key = key_of(type_, name if named else [name, number, mark] if number else mark)
            return await self._questions.ask(
                Asked(
                    key=key, type=type_, payload=payload, answer=schema, prompt=prompt, options=options, until=until,
                    named=name is not None,
                )
            )  # fmt: skip

        try:
            if params.get("mode") == "url":
                url = str(params.get("url"))
                options = [
                    Option("accept", "I have opened it, or will", "allow_once"),
                    Option("decline", "I will not", "reject_once"),
                ]
                payload = {"message": message, "url": url}
                answer = await ask("visit", payload, payload, _one_of(options), message, options)
                return {"action": answer["choice"]}
            if params.get("mode") not in ("form", None):
                return {"action": "decline"}
            shown, payload = params.get("requestedSchema"), {"message": message}
            whole = meta.get(wire.META_ANSWER_SCHEMA)
            offered = matching_choices(whole, _kinds(meta.get(wire.META_KINDS), shown))
            if offered is not None:
                schema = offered.schema
                answer = await ask("elicitation", [message, schema], payload, schema, message, offered.options)
                return _decided(offered, answer)
            laid, schema = matching_form(whole, shown) or (None, usable_form(shown))
            answer = await ask("elicitation", [message, schema], payload, schema, message, _options(schema))
            return {"action": "accept", "content": answer if laid is None else laid.content(answer)}
        except QuestionExpired:
            if until is not None and until <= now():
                await asyncio.sleep(self._server_decides_within)  # it expires there too
            return {"action": "decline"}
        except Settled:
            if self.taken_back:
                # An answer could overtake that the request was taken back, and the run there would go on without us.
                await asyncio.sleep(self._server_decides_within)
            return {"action": "cancel"}


def _one_of(options: list[Option]) -> Schema:
    choice = {"type": "string", "enum": [option.id for option in options]}
    return {"type": "object", "properties": {"choice": choice}, "required": ["choice"]}


_NO = ("no", "n", "false", "reject", "deny", "decline", "cancel")


def _options(schema: Schema) -> list[Option]:
    """Returns the options of a form that is only a choice, with the server's names for them."""
    properties = schema.get("properties")
    member = next(iter(properties.values())) if isinstance(properties, dict) and len(properties) == 1 else None
    if not isinstance(member, dict) or schema.get("required") != list(properties or ()):
        return []
    titled, chosen, names = member.get("oneOf"), member.get("enum"), member.get("enumNames")
    if isinstance(titled, list):
        pairs = [(entry.get("const"), entry.get("title")) for entry in titled if isinstance(entry, dict)]
    elif isinstance(chosen, list):
        named = isinstance(names, list) and len(names) == len(chosen)
        pairs = list(zip(chosen, names if named and isinstance(names, list) else chosen, strict=True))
    else:
        return []
    if not all(isinstance(value, str) for value, _ in pairs):
        return []
    return [
        Option(str(value), str(name or value), "reject_once" if str(value).lower() in _NO else "allow_once")
        for value, name in pairs
    ]


def _kinds(kinds: Any, shown: Any) -> list[Option]:
    """Returns the options that an Interlingua server offers, where an answer may say more than the choice. A form has
    no place for the kind of an option, and its name does not show it."""
    fields = shown.get("properties") if isinstance(shown, dict) else None
    if not isinstance(kinds, dict) or not isinstance(fields, dict):
        return []
    options = _options({"properties": {"choice": fields.get("choice")}, "required": ["choice"]})
    try:
        return [msgspec.convert({"id": o.id, "label": o.label, "kind": kinds[o.id]}, Option) for o in options]
    except (KeyError, msgspec.ValidationError):
        return []


def _decided(offered: Choices, answer: Any) -> dict[str, Any]:
    """Returns the result for an answer: its choice, and the answer itself where it says more."""
    chosen = offered.chosen(answer)
    if chosen is None:
        return {"action": "decline"}
    more = {} if answer == offered.answers[chosen] else {"_meta": {wire.META_ANSWER: answer}}
    return {"action": "accept", "content": {"choice": chosen}, **more}
