"""Questions of a mounted agent during a turn, as questions of the run: permissions, forms, addresses to visit.

Any door may answer. A question without an answer in time is rejected, never allowed. When an agent dies, its questions
are withdrawn at once: only an Interlingua server keeps them in its store, and asks them again. An agent that repeats a
question (the same title and the same options) gets the question that is open, or the answer that it did not live to
hear; where the question was withdrawn, it is asked anew. An agent that restarts so quickly that its connection outlives
it repeats the same question, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import MountedRun
from ....engine.ids import now
from ....model import json_values
from ....model.card import Schema
from ....model.content import TextPart
from ....model.errors import QuestionExpired
from ....model.question_forms import Choices, matching_choices, matching_form, parse_time, usable_form
from ....model.run import Option
from .. import wire
from .updates_in import Incoming

if TYPE_CHECKING:
    from ....transports.jsonrpc.core import Call

_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
_THEIRS_TO_SAY = 10.0  # seconds
_KEY = re.compile(r"(.+)-(\d+)")


class Settled(Exception):
    """Raised where no answer will come, because the run ends."""


class _Open(msgspec.Struct, eq=False):
    """A question that waits for its answer."""

    payload: Any
    about: str | None  # the tool call that it is asked for
    wait: asyncio.Task[Any]
    asker: asyncio.Task[Any] | None = None  # answers the request that asks it; where there were several, the newest


class Asking:
    """The questions of one run."""

    def __init__(self, ctx: Context[Any, Any], mounted: MountedRun, within: float) -> None:
        self._ctx = ctx
        self._mounted = mounted
        self._within = within
        self._open: dict[str, _Open] = {}  # by key
        self._uses: dict[str, int] = {}
        self.unheard: list[str] = []  # keys of questions whose answer the agent did not live to hear
        self._withdrawn = set(mounted.withdrawn())  # of these: the same again is a new question
        self.asked_again = asyncio.Event()
        self.silent = False  # the run is only parked: its questions stay open, also at the agent
        self.agent_is_gone: Callable[[], bool] = lambda: False
        for key in mounted.asked():
            found = _KEY.fullmatch(key)
            if found is not None:
                self._uses[found[1]] = max(self._uses.get(found[1], 0), int(found[2]))
                if not mounted.recorded(f"heard-{key}"):
                    self.unheard.append(key)

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def withdraw(self, reason: str) -> None:
        """Withdraws all questions, because the agent is gone and cannot take an answer. When it returns, it may repeat
        them."""
        for key in list(self._open):
            self._open.pop(key).wait.cancel()
            self._lost(key)
        for key in self._mounted.open():
            self._mounted.withdraw(key, reason)
            self._withdrawn.add(key)

    def _lost(self, key: str) -> None:
        if key not in self.unheard:
            self.unheard.append(key)

    async def settle(self) -> None:
        """Ends all waiting at the end of the turn: no answer will come."""
        tasks = [one.wait for one in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one question -------------------------------------------------------------------------------------

    async def ask(
        self, type_: str, mark: Any, payload: Any, schema: Schema, prompt: str, options: list[Option] | None = None,
        until: int | None = None, about: Any = None,
    ) -> Any:  # fmt: skip
        """Asks a question and returns the answer. Raises QuestionExpired, and Settled where the turn is over. `mark`
        identifies a repeated question, `until` is its remote deadline, and `about` the tool call that needs it."""
        within = self._within if until is None else min(self._within, max(0.0, (until - now()) / 1e6))
        about = about if isinstance(about, str) else None
        key = self._key(f"{type_}-{json_values.digest(mark)[:16]}", about, payload)
        one = self._open.get(key)
        if one is not None and one.payload != payload:  # about something else now: an answer to that is none to this
            one.wait.cancel()
            self._mounted.withdraw(key, "the agent asks something else now")
            one = None
        if one is None:
            wait = self._mounted.ask(type_, payload, schema, key=key, prompt=prompt, options=options, deadline=within)
            one = self._open[key] = _Open(payload, about, asyncio.ensure_future(wait))
        me = one.asker = asyncio.current_task()
        try:
            answer = await asyncio.shield(one.wait)
            if one.asker is me:
                await self._ctx.step("heard", _nothing, key=f"heard-{key}")
        except asyncio.CancelledError:
            if me is not None and me.cancelling():
                if one.asker is me and self.agent_is_gone():
                    self._lost(key)  # it may come back, and ask again
                elif one.asker is me:
                    self._give_up(key, one)
                raise
            self._close(key, one)
            if self.silent:
                await asyncio.Event().wait()  # until the connection ends
            raise Settled from None
        except BaseException:
            self._close(key, one)
            raise
        if one.asker is me:
            self._close(key, one)
        return answer

    def _close(self, key: str, one: _Open) -> None:
        if self._open.get(key) is one:
            del self._open[key]

    def _give_up(self, key: str, one: _Open) -> None:
        self._close(key, one)
        one.wait.cancel()
        self._mounted.withdraw(key, "the agent no longer asks")

    def _key(self, mark: str, about: str | None, payload: Any) -> str:
        for key in self.unheard:
            if key.startswith(f"{mark}-"):
                self.unheard.remove(key)
                self.asked_again.set()
                if key not in self._withdrawn:
                    return key
                break
        for key, one in self._open.items():
            # The same tool call, and word for word: a restarted agent repeats its open question. An answered question
            # is not the same any more: an agent may ask twice for one tool call.
            asked = key.startswith(f"{mark}-") and about is not None and (one.about, one.payload) == (about, payload)
            if asked and not one.wait.done():
                return key
        self._uses[mark] = self._uses.get(mark, 0) + 1
        return f"{mark}-{self._uses[mark]}"

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
            await _theirs_to_say(until)
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
            await _theirs_to_say(until)
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


async def _theirs_to_say(until: int | None) -> None:
    """Waits for the agent to withdraw a question that has expired on its side too: it decides, not this mount."""
    if until is not None and until <= now():
        await asyncio.sleep(_THEIRS_TO_SAY)


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


async def _nothing() -> None:
    pass
