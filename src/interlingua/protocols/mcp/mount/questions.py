"""Questions of a server during a run, as questions of the local run: forms, and addresses to visit.

Any door may answer. A question without an answer in time is declined, never accepted. After a reconnect, a server that
repeats a question gets the open question, or the answer that it did not hear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ....engine.handler.mounted_run import MountedRun
from ....engine.ids import now
from ....model import json_values
from ....model.card import Schema
from ....model.errors import QuestionExpired
from ....model.question_forms import Choices, matching_choices, matching_form, parse_time, usable_form
from ....model.run import Option
from .. import wire

_THEIRS_TO_SAY = 10.0  # seconds for a server to withdraw a question that has expired


class Settled(Exception):
    """Raised where no answer will come, because the run ends."""


class Asking:
    """The questions of one run."""

    def __init__(self, mounted: MountedRun, within: float) -> None:
        self._mounted = mounted
        self._within = within
        self._open: dict[str, tuple[Any, asyncio.Task[Any]]] = {}  # key → the question, and the wait for its answer
        self._uses: dict[str, int] = {}
        self.silent = False  # the run is only parked: its questions stay open, also at the server
        self.taken_back = False  # its request was cancelled: the server withdraws its questions with it
        self.server_is_gone: Callable[[], bool] = lambda: False

    def met_again(self) -> None:
        """Notes a reconnect: the server repeats its open questions from the beginning."""
        self._uses.clear()

    async def settle(self) -> None:
        """Ends all waiting at the end of the run: no answer will come."""
        tasks = [task for _, task in self._open.values()]
        for task in tasks:
            task.cancel()
        if tasks:  # else no turn of the loop is lost
            await asyncio.gather(*tasks, return_exceptions=True)

    async def elicit(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the result of an elicitation."""
        message = str(params.get("message") or "The server asks")
        meta = params["_meta"] if isinstance(params.get("_meta"), dict) else {}
        known, until = meta.get(wire.META_QUESTION), parse_time(meta.get(wire.META_DEADLINE))
        try:
            if params.get("mode") == "url":
                return await self._visit(message, str(params.get("url")), known, until)
            if params.get("mode") not in ("form", None):
                return {"action": "decline"}
            shown = params.get("requestedSchema")
            told, payload = meta.get(wire.META_ANSWER_SCHEMA), {"message": message}
            offered = matching_choices(told, _kinds(meta.get(wire.META_KINDS), shown))
            if offered is not None:
                mark = known or [message, offered.schema]
                schema, options = offered.schema, offered.options
                return _decided(offered, await self._ask("elicitation", mark, payload, schema, message, options, until))
            laid, schema = matching_form(told, shown) or (None, usable_form(shown))
            mark = known or [message, schema]
            answer = await self._ask("elicitation", mark, payload, schema, message, _options(schema), until)
            return {"action": "accept", "content": answer if laid is None else laid.content(answer)}
        except QuestionExpired:
            if until is not None and until <= now():
                await asyncio.sleep(_THEIRS_TO_SAY)  # it expires there too, and the server decides
            return {"action": "decline"}
        except Settled:
            return {"action": "cancel"}

    async def _visit(self, message: str, url: str, known: Any, until: int | None) -> dict[str, Any]:
        options = [
            Option("accept", "I have opened it, or will", "allow_once"),
            Option("decline", "I will not", "reject_once"),
        ]
        choice = {"type": "string", "enum": [option.id for option in options]}
        schema = {"type": "object", "properties": {"choice": choice}, "required": ["choice"]}
        payload = {"message": message, "url": url}
        answer = await self._ask("visit", known or payload, payload, schema, message, options, until)
        return {"action": answer["choice"]}

    async def _ask(
        self, type_: str, mark: Any, payload: Any, schema: Schema, prompt: str, options: list[Option],
        until: int | None,
    ) -> Any:  # fmt: skip
        """Asks a question and returns the answer. `mark` identifies a repeated question. `until` is its remote
        deadline."""
        within = self._within if until is None else min(self._within, max(0.0, (until - now()) / 1e6))
        place = f"{type_}-{json_values.digest(mark)[:16]}"
        self._uses[place] = self._uses.get(place, 0) + 1
        key = f"{place}-{self._uses[place]}"
        asked, task = self._open.get(key, (None, None))
        if task is not None and asked != payload:
            task.cancel()
            self._mounted.withdraw(key, "the server asks something else now")
            task = None
        if task is None:
            wait = self._mounted.ask(type_, payload, schema, key=key, prompt=prompt, options=options, deadline=within)
            task = asyncio.ensure_future(wait)
            self._open[key] = (payload, task)
        try:
            answer = await asyncio.shield(task)
            await self._mounted.passing_on(key)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                if not self.server_is_gone():  # it may come back otherwise, and ask again
                    self._open.pop(key, None)
                    task.cancel()
                    self._mounted.withdraw(key, "the server no longer asks")
                raise
            self._open.pop(key, None)
            if self.silent:
                await asyncio.Event().wait()  # until the connection ends
            if self.taken_back:
                # An answer could overtake that the request was taken back, and the run there would go on without us.
                await asyncio.sleep(_THEIRS_TO_SAY)
            raise Settled from None
        except BaseException:
            self._open.pop(key, None)
            raise
        self._open.pop(key, None)
        return answer


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
