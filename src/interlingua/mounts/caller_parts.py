"""The parts of the caller's messages that go to the remote side beside the input, or instead of it."""

from __future__ import annotations

import contextlib
from typing import Any

from ..engine.handler.context import Context
from ..model.card import AgentCard
from ..model.content import DataPart, Part, TextPart
from ..model.errors import InvalidInput
from ..model.prompt_input import prompt_input


def beside(ctx: Context[Any, Any], input_: dict[str, Any]) -> list[Part]:
    """Returns the parts that the caller sent beside the input: files, and data that are no members of it."""
    return [part for part in _said(ctx) if not isinstance(part, TextPart) and not _holds(input_, part)]


def instead_of(ctx: Context[Any, Any], card: AgentCard, input_: dict[str, Any]) -> list[Part]:
    """Returns all parts of the caller, where an agent with this card makes exactly this input of them; else none. An
    object that was written as text is none: where objects can be sent, it is sent as one."""
    said = _said(ctx)
    objects = [part.data for part in said if isinstance(part, DataPart) and isinstance(part.data, dict)]
    if not said or not set(input_) <= {card.input_text, *(name for data in objects for name in data)}:
        return []
    with contextlib.suppress(InvalidInput):
        return said if prompt_input(card, said) == input_ else []
    return []


def _said(ctx: Context[Any, Any]) -> list[Part]:
    """Returns the parts of the caller's messages; none where the input is all there is."""
    return [part for message in ctx.messages if message.role == "user" for part in message.parts]


def _holds(input_: dict[str, Any], part: Part) -> bool:
    return isinstance(part, DataPart) and isinstance(part.data, dict) and part.data.items() <= input_.items()
