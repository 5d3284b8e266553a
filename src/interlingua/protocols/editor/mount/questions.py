"""Questions of a mounted agent during a turn, as questions of the run: permissions, forms, addresses to visit.

Any door may answer. A question without an answer in time is rejected, never allowed. When an agent dies, its questions
are withdrawn at once: only an Interlingua server keeps them in its store, and asks them again. An agent that repeats a
question has the same title and the same options; where the question was withdrawn, it is asked anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ....engine.ids import now
from ....model.card import Schema
from ....model.content import TextPart
from ....model.errors import QuestionExpired
from ....model.question_forms import Choices, matching_choices, matching_form, parse_time, usable_form
from ....model.run import Option
from ....mounts.remote_questions import Asked, RemoteQuestions, Settled, key_of
from .. import wire
from .updates_in import Incoming

if TYPE_CHECKING:
    from ....transports.jsonrpc.core import Call

_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
_AGENT_DECIDES_WITHIN = 10.0  # seconds


class EditorQuestions:
    """The questions of one turn."""

    def __init__(self, questions: RemoteQuestions) -> None:
        self._questions = questions

    async def ask(
        self, type_: str, mark: Any, payload: Any, schema: Schema, prompt: str, options: list[Option] | None = None,
        until: int | None = None, about: Any = None,
    ) -> Any:  # fmt: skip
        """Asks a question and returns the answer. Raises QuestionExpired, and Settled where the turn is over. `mark`
        identifies a repeated question, `until` is its remote deadline, and `about` the tool call that needs it."""
        about = about if isinstance(about, str) else None
        asked = Asked(
            key=key_of(type_, mark), type=type_, payload=payload, answer=schema, prompt=prompt, options=options or [],
            until=until, about=about,
        )  # fmt: skip
        return await self._questions.ask(asked)

    # -- permissions --------------------------------------------------------------------------------------

    async def permission(self, params: dict[str, Any], call: dict[str, Any], incoming: Incoming) -> dict[str, Any]:
        """Asks for permission. `call` holds the known facts about the tool call."""
        options = [
            Option(o["optionId"], str(o.get("name") or o["optionId"]), o["kind"] if o.get("kind") in _KINDS else None)
            for o in params.get("options") or []
            if isinstance(o, dict) and isinstance(o.get("optionId"), str)
        ]
        title = str(params.get("title") or call.get("title") or "The agent asks for permission")
        payload = permission_payload(title, params, call, incoming)
        mark = [title, [[option.id, option.label, option.kind] for option in options]]
        until = _until(params)
        offered = matching_choices(_meta(params).get(wire.META_ANSWER_SCHEMA), options)
        schema = _one_of(options) if offered is None else offered.schema
        try:
            answer = await self.ask("permission", mark, payload, schema, title, options, until, call.get("toolCallId"))
        except QuestionExpired:
            await _agent_decides(until)
            rejected = rejection(options)
            return _selected(rejected) if rejected is not None else {"outcome": {"outcome": "cancelled"}}
        except Settled:
            return {"outcome": {"outcome": "cancelled"}}
        return _selected(answer["choice"]) if offered is None else _decided(offered, answer)

    async def choose(self, kind: str, prompt: str, payload: dict[str, Any], options: list[Option]) -> str | None:
        """Asks for permission for our own work for the agent, not for work of the agent."""
        try:
            answer = await self.ask(f"{kind}_permission", payload, payload, _one_of(options), prompt, options)
        except (QuestionExpired, Settled):
            return None
        return str(answer["choice"])

    # -- forms --------------------------------------------------------------------------------------------

    async def elicitation(self, params: dict[str, Any]) -> dict[str, Any]:
        message = str(params.get("message") or "The agent asks")
        until, about = _until(params), params.get("toolCallId")
        try:
            if params.get("mode") == "url":
                return await self._visit(message, str(params.get("url")), about)
            if params.get("mode") not in ("form", None):
                return {"action": "decline"}
            shown = params.get("requestedSchema")
            laid, schema = matching_form(_meta(params).get(wire.META_ANSWER_SCHEMA), shown) or (
                None,
                usable_form(shown),
            )
            payload = {"message": message}
            answer = await self.ask("elicitation", [message, schema], payload, schema, message, None, until, about)
            return {"action": "accept", "content": answer if laid is None else laid.content(answer)}
        except QuestionExpired:
            await _agent_decides(until)
            return {"action": "decline"}
        except Settled:
            return {"action": "cancel"}

    async def _visit(self, message: str, url: str, about: Any) -> dict[str, Any]:
        options = [
            Option("accept", "I have opened it, or will", "allow_once"),
            Option("decline", "I will not", "reject_once"),
        ]
        payload = {"message": message, "url": url}
        answer = await self.ask("visit", payload, payload, _one_of(options), message, options, about=about)
        return {"action": answer["choice"]}

    async def answer(self, call: Call, known: dict[str, Any], incoming: Incoming) -> Any:
        params = call.params if isinstance(call.params, dict) else {}
        if call.method == "elicitation/create":
            return await self.elicitation(params)
        return await self.permission(params, known, incoming)


def _until(params: dict[str, Any]) -> int | None:
    """Returns the deadline that an Interlingua agent gives its question."""
    return parse_time(_meta(params).get(wire.META_DEADLINE))


def _meta(params: dict[str, Any]) -> dict[str, Any]:
    return params["_meta"] if isinstance(params.get("_meta"), dict) else {}


async def _agent_decides(until: int | None) -> None:
    """Waits for the agent to withdraw a question that has expired on its side too: it decides, not this mount."""
    if until is not None and until <= now():
        await asyncio.sleep(_AGENT_DECIDES_WITHIN)


def rejection(options: list[Option]) -> str | None:
    """Returns the mildest option that rejects; None where there is none."""
    for kind in ("reject_once", "reject_always"):
        for option in options:
            if option.kind == kind:
                return option.id
    return None


def permission_payload(title: str, params: dict[str, Any], call: dict[str, Any], incoming: Incoming) -> dict[str, Any]:
    """Returns the facts to know before a permission. Ids are left out, because an agent that repeats a question has new
    ones."""
    payload: dict[str, Any] = {"title": title}
    subject = params.get("subject") if isinstance(params.get("subject"), dict) else {}
    assert isinstance(subject, dict)
    for name, value in (
        ("description", params.get("description")), ("kind", call.get("kind")), ("command", subject.get("command")),
        ("cwd", subject.get("cwd")), ("input", call.get("rawInput")),
    ):  # fmt: skip
        if value not in (None, {}, ""):
            payload[name] = value
    content = call.get("content")
    parts, diffs = incoming.content(content if isinstance(content, list) else [])
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    patches = [text.removeprefix("```diff\n").removesuffix("\n```") for text in texts if text.startswith("```diff\n")]
    texts = [text for text in texts if not text.startswith("```diff\n")]
    if texts:
        payload["content"] = "\n".join(texts)
    if patches:
        payload["diff"] = "\n".join(patches)
    if diffs:
        payload["diffs"] = [
            {"path": diff.path, "new": diff.new, **({} if diff.old is None else {"old": diff.old})} for diff in diffs
        ]
    return payload


def _one_of(options: list[Option]) -> Schema:
    choice = {"type": "string", "enum": [option.id for option in options]}
    return {"type": "object", "properties": {"choice": choice}, "required": ["choice"]}


def _selected(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def _decided(offered: Choices, answer: Any) -> dict[str, Any]:
    """Returns the option that an answer begins with, and the answer itself where it says more."""
    chosen = offered.chosen(answer)
    if chosen is None:
        return {"outcome": {"outcome": "cancelled"}}
    more = {} if answer == offered.answers[chosen] else {"_meta": {wire.META_ANSWER: answer}}
    return {**_selected(chosen), **more}
