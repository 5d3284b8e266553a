"""Reads the answers and refusals of a Connect server, and limits how long to retry.

workflow-srv 0.3.0 is the published server; the facts about it here were read off its wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx2
import msgspec

from ....engine.ids import now
from ....model.card import ANY_OBJECT, AgentCard, Schema
from ....model.content import Message, TextPart
from ....model.errors import DefinitionError, Denied, RunCancelled, RunError, RunTimedOut, Unavailable
from ....model.question_forms import parse_time
from ....model.run import Option
from ....model.schemas import Validator, check_refs_local
from ....mounts.errors import RemoteError, our_failure
from ....transports import json_text
from .. import translate, wire

KEY_VARIABLE = "INTERLINGUA_CONNECT_KEY"
PATIENCE = 60.0
"""Seconds for which a server that cannot be reached, or tells nothing, is tried again before the run fails as
transient."""
TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})


class Refused(RemoteError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int, code: str | None, transient: bool) -> None:
        super().__init__(message, code=code, transient=transient, details={"status": status})
        self.status = status


class Silent(Exception):
    """The server answered, and reported nothing of the run."""


class Patience:
    """The time limit for retries, and the pauses between them."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._since: float | None = None
        self._tries = 0

    def reset(self) -> None:
        self._since, self._tries = None, 0

    async def spend(self, error: Exception) -> None:
        time = asyncio.get_running_loop().time()
        self._since = time if self._since is None else self._since
        if time - self._since > PATIENCE:
            how = "tells nothing" if isinstance(error, Silent) else "cannot be reached"
            raise Unavailable(f"{self._base} {how}: {words_of(error)}") from error
        await self.pause()

    async def pause(self) -> None:
        self._tries += 1
        await asyncio.sleep(min(0.02 * 2 ** min(self._tries, 8), 5.0))


# -- answers --------------------------------------------------------------------------------------------------


def json_of(response: httpx2.Response) -> Any:
    """Returns the body, or raises its refusal: a bare string, FastAPI's {"detail": …}, or any text of a proxy."""
    try:
        body = json_text.decode(response.content)
    except json_text.Unreadable as error:
        body = None
        if response.is_success and response.content:
            raise RemoteError(f"the answer of {response.request.url} cannot be read: {error}") from None
    if response.is_success:
        return body
    status = response.status_code
    told = body.get("detail", body) if isinstance(body, dict) else body
    text = told if isinstance(told, str) else json.dumps(told) if told else response.reason_phrase or "no reason given"
    if status in (401, 403):
        raise Denied(f"{response.request.url.host} refused: {text}; put the API key into {KEY_VARIABLE}")
    transient = response.headers.get("x-error-transient")
    raise Refused(
        f"{response.request.url.host} answered {status}: {text}",
        status,
        response.headers.get("x-error-code"),
        status in TRANSIENT if transient is None else transient == "true",
    )


def error_of(told: dict[str, Any]) -> RunError:
    """Returns the error of a run. errcode is 0 or 1 for everything on workflow-srv; an Interlingua server adds code,
    transient and details."""
    description = told.get("description")
    if isinstance(description, str) and (ours := our_failure(description, told)) is not None:
        return ours
    message = str(description or "the remote run failed")
    code = told.get("code") if isinstance(told.get("code"), str) else None
    errcode = told.get("errcode")
    if code == "cancelled" or (code is None and errcode == translate.ERRCODES["cancelled"]):
        return RunCancelled(f"the remote run was cancelled: {message}")
    if told.get("status") == "timeout" or code == "timed_out":
        return RunTimedOut(message)
    details = {"errcode": errcode, **({"details": told["details"]} if told.get("details") is not None else {})}
    return RemoteError(message, code=code, transient=bool(told.get("transient")), details=details)


class Asked(msgspec.Struct):
    """The question in an interrupt."""

    type: str
    payload: Any
    answer_schema: Schema
    prompt: str | None = None
    options: list[Option] = []


def interrupt_of(told: dict[str, Any], card: AgentCard) -> Asked:
    """Returns the question of an interrupt. By convention `interrupt` is {type: payload}, the type first; the earlier
    document has two members instead. The descriptor gives the schema of the answer, unless the interrupt itself does
    (ours does)."""
    interrupt = told.get("interrupt")
    type_, payload = "interrupt", interrupt
    if isinstance(interrupt, dict) and interrupt:
        type_ = next((key for key in interrupt if card.question(key) is not None), next(iter(interrupt)))
        payload = interrupt[type_]
    elif isinstance(told.get("interrupt_type"), str):
        type_, payload = told["interrupt_type"], told.get("interrupt_payload")
    known, schema = card.question(type_), told.get("answer_schema")
    if not isinstance(schema, dict):  # an interrupt that the descriptor does not list can be asked too
        schema = known.answer if known is not None else {}
    asked = Asked(type_, payload, usable(schema, "answer_schema"))
    if isinstance(told.get("prompt"), str) and told["prompt"]:
        asked.prompt = told["prompt"]
    with contextlib.suppress(msgspec.ValidationError):
        asked.options = msgspec.convert(told.get("options") or [], list[Option])
    return asked


def messages_in(result: dict[str, Any]) -> list[Message]:
    """Returns the messages of a result. Texts that the values also contain are left out, because many servers send
    both."""
    said = {value for value in object_or_empty(result.get("values")).values() if isinstance(value, str)}
    found = []
    for one in result.get("messages") or []:
        with contextlib.suppress(msgspec.ValidationError):
            message = translate.to_message(msgspec.convert(one, wire.Message))
            message.parts = [part for part in message.parts if not (isinstance(part, TextPart) and part.text in said)]
            if message.role == "agent" and message.parts:
                found.append(message)
    return found


def same_interrupt(one: dict[str, Any], other: dict[str, Any]) -> bool:
    name = "interrupt_id" if one.get("interrupt_id") and other.get("interrupt_id") else "interrupt"
    return bool(one.get(name) == other.get(name))


def seconds_left(told: dict[str, Any]) -> float | None:
    """Returns the time until a question expires, where an Interlingua server tells it. The local question ends with the
    remote one."""
    until = parse_time(told.get("deadline"))
    return None if until is None else max(0.0, (until - now()) / 1e6)


def whole_value(value: Any) -> dict[str, Any]:
    """Returns an output as an object at the root; the protocol also allows scalars and arrays."""
    return value if isinstance(value, dict) else {} if value is None else {"value": value}


def object_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def words_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def usable(schema: Any, what: str) -> Schema:
    """Returns a schema that can be used. An unusable schema does not cost the agent: the server checks by itself."""
    if not isinstance(schema, dict):
        return {}
    try:
        check_refs_local(schema, what)
        Validator(schema, what=what)
    except DefinitionError:
        return dict(ANY_OBJECT) if schema.get("type") == "object" else {}
    return schema
