"""Conversion between messages and the objects of a run: a prompt becomes its input, its output becomes parts. Pure.

Protocols that exchange messages use it to reach agents that take and return objects: the card names the member of each
that carries plain text.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit

from .card import AgentCard
from .content import DataPart, FilePart, Message, Part, TextPart
from .errors import InvalidInput
from .events import ArtifactAdded, Event, MessageSent, RunRestarted
from .team.oversight import join_chunks


def prompt_text(parts: list[Part]) -> str:
    """Renders a prompt as text, with a link in place of each file.

    The agent finds the content of the files in `ctx.messages`.
    """
    texts = []
    for part in parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, FilePart) and (part.url or part.name):
            texts.append(f"[@{part.name or file_name(part.url or '')}]({part.url or part.name})")
    return "".join(texts)


def file_name(uri: str) -> str:
    return unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2]) or uri


def prompt_input(card: AgentCard, parts: list[Part]) -> dict[str, Any]:
    """Builds the input of a run from a prompt.

    Objects among the parts become members. An agent without a text field takes a JSON object, also one written as text.
    """
    text = prompt_text(parts)
    properties = card.input.get("properties", {})
    # An object that the agent does not accept as a whole is no part of its input: `ctx.messages` holds it.
    members = _members([part for part in parts if not properties or _is_accepted(card, part)])
    if members is not None:
        if card.input_text is not None and text.strip() and card.input_text not in members:
            members[card.input_text] = text
        return members
    if card.input_text is not None:
        required = set(card.input.get("required", ()))
        # For an agent that needs more than text, the prompt may be the whole input as JSON.
        if required - {card.input_text} and (object_ := _object(text)) is not None and _accepts(card, object_):
            return object_
        return {card.input_text: text}
    if not text.strip() and not card.input.get("required"):
        return {}
    object_ = _object(text)
    if object_ is None:
        names = ", ".join(properties) or "its members"
        raise InvalidInput(f"{card.name} takes a JSON object with {names}; write it as the prompt")
    return object_


def _is_accepted(card: AgentCard, part: Part) -> bool:
    return isinstance(part, DataPart) and isinstance(part.data, dict) and _accepts(card, part.data)


def _accepts(card: AgentCard, value: dict[str, Any]) -> bool:
    """True if an agent accepts an object as input.

    Either its schema names all members; or it is open, and the object has all required members and at least one that
    the schema names.
    """
    known, required = set(card.input.get("properties", {})), set(card.input.get("required", ()))
    if value.keys() <= known:
        return True
    is_open = card.input.get("additionalProperties", True) is not False
    return is_open and value.keys() >= required - {card.input_text} and not value.keys().isdisjoint(known)


def _members(parts: list[Part]) -> dict[str, Any] | None:
    """Merges the objects among the parts; None if there are none."""
    objects = [part.data for part in parts if isinstance(part, DataPart) and isinstance(part.data, dict)]
    if not objects:
        return None
    members: dict[str, Any] = {}
    for object_ in objects:
        members |= object_
    return members


def add_data_parts(card: AgentCard, input_: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    """Adds to an input the members of those objects among the parts that the agent accepts."""
    members = _members([part for part in parts if _is_accepted(card, part)])
    return input_ if members is None else {**members, **input_}


def output_parts(card: AgentCard, output: Any) -> list[Part]:
    """Turns an output into parts: its text, and the whole object if it holds more than the text."""
    text = output.get(card.output_text) if card.output_text and isinstance(output, dict) else None
    if not isinstance(text, str):
        return [DataPart(output)]
    return [TextPart(text)] if len(output) == 1 else [TextPart(text), DataPart(output)]


class ContentCollector:
    """Collects the messages and artifacts of a run, for wires that deliver them at its end."""

    def __init__(self) -> None:
        self._bodies: list[tuple[int, ArtifactAdded | MessageSent]] = []

    def feed(self, event: Event) -> None:
        body = event.body
        if type(body) is ArtifactAdded or type(body) is MessageSent:
            self._bodies.append((event.seq, body))
        elif self._bodies and type(body) is RunRestarted:
            self._bodies = [(seq, kept) for seq, kept in self._bodies if seq <= body.keep]

    def messages(self) -> list[Message]:
        """The messages, in the order in which they began. An artifact is a message with its name in the metadata."""
        if not self._bodies:
            return []
        bodies = [body for _, body in self._bodies]
        chunks = [body.artifact for body in bodies if isinstance(body, ArtifactAdded)]
        artifacts = {artifact.id: artifact for artifact in join_chunks(chunks)}
        messages = []
        for body in bodies:
            if isinstance(body, MessageSent):
                messages.append(body.message)
            elif (artifact := artifacts.pop(body.artifact.id, None)) is not None:
                about = {**artifact.metadata, "artifact": artifact.name or artifact.id}
                messages.append(Message("agent", artifact.parts, metadata=about))
        return messages

    def parts(self) -> list[Part]:
        return [part for message in self.messages() for part in message.parts]


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
