"""Reads messages: responses, updates, choices. These functions take any message, also a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .links import Message, session_of


def note(method: str, params: Any = None) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": {} if params is None else params}


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def is_response(message: Message) -> bool:
    return "method" not in message


def is_answer(frame: Any) -> bool:
    """Returns whether a frame holds responses, and no calls."""
    if isinstance(frame, list):
        return not any(isinstance(entry, dict) and "method" in entry for entry in frame)
    return isinstance(frame, dict) and "method" not in frame


def answers(id_: Any) -> Callable[[Message], bool]:
    """Returns a test for the answer to a request; the ids 1 and true are different."""
    return lambda m: is_response(m) and m.get("id") == id_ and type(m.get("id")) is type(id_)


def update_of(message: Message, session: str | None = None) -> Message:
    """The update that a message tells, or nothing."""
    params = message.get("params") if message.get("method") == "session/update" else None
    if not isinstance(params, dict) or (session is not None and params.get("sessionId") != session):
        return {}
    update = params.get("update")
    return update if isinstance(update, dict) else {}


def asks(message: Message, session: str) -> bool:
    """Returns whether a message is a request for an answer of the user, in a session."""
    known = message.get("method") in ("session/request_permission", "elicitation/create")
    return known and "id" in message and session_of(message) == session


def objects(value: Any) -> list[Message]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def choices(option: Message) -> list[Message]:
    """The values of an option, also where they are in groups."""
    found = objects(option.get("options"))
    return [inner for one in found for inner in (objects(one["options"]) if "options" in one else [one])]


def picked(request: Message, kind: str) -> Message | None:
    """The answer to a permission request with the first option of a kind (allow or reject), if it has one."""
    params = request.get("params")
    for option in objects(params.get("options") if isinstance(params, dict) else None):
        if str(option.get("kind", "")).startswith(kind):
            return {"outcome": {"outcome": "selected", "optionId": option.get("optionId")}}
    return None


def flaw(message: Any) -> str | None:
    """Describes what is wrong with a message of JSON-RPC 2.0; returns None if nothing is."""
    if not isinstance(message, dict):
        return "it is no object"
    if message.get("jsonrpc") != "2.0":
        return 'it has no "jsonrpc": "2.0"'
    if "id" in message and (isinstance(message["id"], bool) or not isinstance(message["id"], int | str | None)):
        return "its id is neither a string nor a whole number"
    if "method" in message:
        if not isinstance(message["method"], str):
            return "its method is no string"
        if "result" in message or "error" in message:
            return "it is a request and a response at once"
        if not isinstance(message.get("params", {}), dict | list):
            return "its params are neither an object nor an array"
        return None
    if "id" not in message:
        return "it has neither a method nor an id"
    if ("result" in message) == ("error" in message):
        return "it has not exactly one of result and error"
    error = message.get("error")
    if "error" in message and not (
        isinstance(error, dict) and type(error.get("code")) is int and isinstance(error.get("message"), str)
    ):
        return "its error has no code, or no message"
    return None


def is_error(message: Any, *codes: int, id_: Any = None) -> bool:
    """Checks that a message is an error with one of the codes; its id is null, or the one that could be read."""
    error = message.get("error") if isinstance(message, dict) else None
    return isinstance(error, dict) and error.get("code") in codes and message.get("id", 0) in (None, id_)
