"""Reads what requests to this door hold: leniently where published clients need it; a refusal names the fault."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from ....model.card import AgentCard
from ....model.content import Message, read_part
from ....model.errors import InvalidRequest
from ....model.prompt_input import prompt_input
from ....model.run import Caller, Run
from ....security import scopes
from ..projection import Place, place_of


def check_uuid(value: str, name: str) -> None:
    """Checks an id that a client chooses: the protocol wants a UUID. Ids in queries are only looked up."""
    if not _UUID.fullmatch(value):
        raise InvalidRequest(f"{name} is {value!r}; it is a UUID, or left out (at /{name})", path=f"/{name}")


_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def check_url(value: str, name: str) -> None:
    """Checks that a URL is an absolute http or https address. The egress guard decides later if it may be called."""
    try:
        url = urlsplit(value)
        fits = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        fits = False
    if not fits or not value.isprintable() or " " in value:
        shown = value if len(value) <= 100 else value[:100] + "…"
        raise InvalidRequest(f"{name} is {shown!r}; it is an absolute http or https URL (at /{name})", path=f"/{name}")


def agent_input(value: Any, card: AgentCard) -> tuple[Any, list[Message]]:
    """Returns the input of an agent, and the full messages. A string is the text of an agent that takes text; a list of
    blocks is the content of a message, with which files and data reach agents whose input has no place for them."""
    if value is None:
        return {}, []
    if isinstance(value, str) and card.input_text is not None:
        return {card.input_text: value}, []
    if isinstance(value, list) and value and all(_is_block(block) for block in value):
        parts = [read_part(block) for block in value]
        return prompt_input(card, parts), [Message("user", parts)]
    return value, []


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def modes(value: Any) -> list[str]:
    if value is None:
        return ["values"]
    return [value] if isinstance(value, str) else list(dict.fromkeys(value)) or ["values"]


def own(caller: Caller) -> dict[str, Any]:
    """Limits a search to the caller's own, unless a scope allows more."""
    return {} if scopes.sees(caller, "*") else {"caller": caller.id}


def reach(caller: Caller) -> list[str] | None:
    """Returns the agents whose runs a caller may find; None means all."""
    names = [scope.removeprefix("agents:") for scope in caller.scopes if scope.startswith("agents:")]
    return None if scopes.EVERYTHING in caller.scopes or not names else names


def cancels(run: Run) -> bool:
    return bool(run.request is not None and run.request.extra.get("watched"))


def place(event_id: str) -> Place:
    place = place_of(event_id)
    if place is not None:
        return place
    shown = event_id if len(event_id) <= 40 else event_id[:40] + "…"
    raise InvalidRequest(
        f"Last-Event-ID is {shown!r}, and no update has that id; leave it out to read from now on, or send 0 to read "
        "from the start"
    )


async def disconnected(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
