"""Reads the answers and refusals of a Connect server.

workflow-srv 0.3.0 is the published server; the facts about it here were read off its wire.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx2
import msgspec

from ....engine.ids import now
from ....model.card import AgentCard
from ....model.content import Message, TextPart
from ....model.errors import RunCancelled, RunError, RunTimedOut
from ....model.question_forms import parse_time
from ....model.run import Option
from ....mounts.agent_card import usable
from ....mounts.errors import RemoteError, our_failure
from ....mounts.http import Refusal, read_json, words_of
from ....mounts.remote_questions import Asked
from ....mounts.remote_run import Disconnected
from .. import translate, wire

KEY_VARIABLE = "INTERLINGUA_CONNECT_KEY"


class Silent(Exception):
    """The server answered, and reported nothing of the run."""


def disconnected(error: Exception) -> Disconnected:
    how = "tells nothing" if isinstance(error, Silent) else "cannot be reached"
    return Disconnected(f"{how}: {words_of(error)}")


# -- answers --------------------------------------------------------------------------------------------------


def json_of(response: httpx2.Response) -> Any:
    """Returns the body, or raises the refusal in it."""
    return read_json(response, _refusal, KEY_VARIABLE)


def _refusal(body: Any, response: httpx2.Response) -> Refusal:
    """Reads a refusal: a bare string, FastAPI's {"detail": …}, or any text of a proxy."""
    detail = body.get("detail", body) if isinstance(body, dict) else body
    text = detail if isinstance(detail, str) else json.dumps(detail) if detail else ""
    transient = response.headers.get("x-error-transient")
    return Refusal(text, response.headers.get("x-error-code"), None if transient is None else transient == "true")


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


def question_of(interrupt: dict[str, Any], card: AgentCard, key: str) -> Asked:
    """Returns the question of an interrupt. By convention `interrupt` is {type: payload}, the type first; the earlier
    document has two members instead. The descriptor gives the schema of the answer, unless the interrupt itself does
    (ours does)."""
    asked = interrupt.get("interrupt")
    type_, payload = "interrupt", asked
    if isinstance(asked, dict) and asked:
        type_ = next((name for name in asked if card.question(name) is not None), next(iter(asked)))
        payload = asked[type_]
    elif isinstance(interrupt.get("interrupt_type"), str):
        type_, payload = interrupt["interrupt_type"], interrupt.get("interrupt_payload")
    known, schema = card.question(type_), interrupt.get("answer_schema")
    if not isinstance(schema, dict):  # an interrupt that the descriptor does not list can be asked too
        schema = known.answer if known is not None else {}
    prompt, options = interrupt.get("prompt"), list[Option]()
    with contextlib.suppress(msgspec.ValidationError):
        options = msgspec.convert(interrupt.get("options") or [], list[Option])
    return Asked(
        key=key, type=type_, payload=payload, answer=usable(schema), options=options,
        prompt=prompt if isinstance(prompt, str) and prompt else None, until=parse_time(interrupt.get("deadline")),
    )  # fmt: skip


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


def has_expired(interrupt: dict[str, Any]) -> bool:
    """Tells that the time for an answer is over, where an Interlingua server tells it."""
    until = parse_time(interrupt.get("deadline"))
    return until is not None and until <= now()


def whole_value(value: Any) -> dict[str, Any]:
    """Returns an output as an object at the root; the protocol also allows scalars and arrays."""
    return value if isinstance(value, dict) else {} if value is None else {"value": value}


def object_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
