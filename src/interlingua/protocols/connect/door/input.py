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


def check_uuid(given: str, name: str) -> None:
    """Checks an id that a client chooses: the protocol wants a UUID. Ids in queries are only looked up."""
    if not _UUID.fullmatch(given):
        raise InvalidRequest(f"{name} is {given!r}; it is a UUID, or left out (at /{name})", path=f"/{name}")


_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def check_url(given: str, name: str) -> None:
    """Checks that a URL is an absolute http or https address. The egress guard decides later if it may be called."""
    try:
        url = urlsplit(given)
        fits = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        fits = False
    if not fits or not given.isprintable() or " " in given:
        shown = given if len(given) <= 100 else given[:100] + "…"
        raise InvalidRequest(f"{name} is {shown!r}; it is an absolute http or https URL (at /{name})", path=f"/{name}")


def agent_input(given: Any, card: AgentCard) -> tuple[Any, list[Message]]:
    """Returns the input of an agent, and the full messages. A string is the text of an agent that takes text; a list of
    blocks is the content of a message, with which files and data reach agents whose input has no place for them."""
    if given is None:
        return {}, []
    if isinstance(given, str) and card.input_text is not None:
        return {card.input_text: given}, []
    if isinstance(given, list) and given and all(_is_block(one) for one in given):
        said = [read_part(block) for block in given]
        return prompt_input(card, said), [Message("user", said)]
    return given, []


def _is_block(given: Any) -> bool:
    return isinstance(given, dict) and isinstance(given.get("type"), str)


def modes(given: Any) -> list[str]:
    if given is None:
        return ["values"]
    return [given] if isinstance(given, str) else list(dict.fromkeys(given)) or ["values"]


def own(caller: Caller) -> dict[str, Any]:
    """Limits a search to the caller's own, unless a scope allows more."""
    return {} if scopes.sees(caller, "*") else {"caller": caller.id}


def reach(caller: Caller) -> list[str] | None:
    """Returns the agents whose runs a caller may find; None means all."""
    given = [scope.removeprefix("agents:") for scope in caller.scopes if scope.startswith("agents:")]
    return None if scopes.EVERYTHING in caller.scopes or not given else given


def cancels(run: Run) -> bool:
    return bool(run.request is not None and run.request.extra.get("watched"))


def place(given: str) -> Place:
    found = place_of(given)
    if found is not None:
        return found
    shown = given if len(given) <= 40 else given[:40] + "…"
    raise InvalidRequest(
        f"Last-Event-ID is {shown!r}, and no update has that id; leave it out to read from now on, or send 0 to read "
        "from the start"
    )


async def disconnected(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
