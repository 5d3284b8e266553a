"""What somebody says to an agent, as the input of a run; and what a run gives, as something to say. Pure.

Protocols that speak in messages meet agents that take and give objects here: a card names the member of each that
carries plain text.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit

from .card import AgentCard
from .content import DataPart, FilePart, Message, Part, TextPart
from .errors import InvalidInput
from .events import ArtifactAdded, Event, MessageSent, RunRestarted
from .team.oversight import whole


def prompt_text(given: list[Part]) -> str:
    """A prompt as an agent reads it that takes only text: what it mentions is named where it was mentioned.

    Whoever wants the mentioned content itself finds it in `ctx.messages`.
    """
    told = []
    for part in given:
        if isinstance(part, TextPart):
            told.append(part.text)
        elif isinstance(part, FilePart) and (part.url or part.name):
            told.append(f"[@{part.name or file_name(part.url or '')}]({part.url or part.name})")
    return "".join(told)


def file_name(uri: str) -> str:
    return unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2]) or uri


def prompt_input(card: AgentCard, given: list[Part]) -> dict[str, Any]:
    """The input of a run. Objects among the parts are members of it; an agent without a text field takes a JSON object,
    also one that is written as text."""
    text = prompt_text(given)
    properties = card.input.get("properties", {})
    # One that the agent does not take whole is no part of its input: it finds it in `ctx.messages`.
    members = _members([part for part in given if not properties or _fits(card, part)])
    if members is not None:
        if card.input_text is not None and text.strip() and card.input_text not in members:
            members[card.input_text] = text
        return members
    if card.input_text is not None:
        required = set(card.input.get("required", ()))
        # An agent that needs more than text is reached by writing its whole input as JSON.
        if required - {card.input_text} and (written := _object(text)) is not None and _takes(card, written):
            return written
        return {card.input_text: text}
    if not text.strip() and not card.input.get("required"):
        return {}
    written = _object(text)
    if written is None:
        wanted = ", ".join(properties) or "its members"
        raise InvalidInput(f"{card.name} takes a JSON object with {wanted}; write it as the prompt")
    return written


def _fits(card: AgentCard, part: Part) -> bool:
    return isinstance(part, DataPart) and isinstance(part.data, dict) and _takes(card, part.data)


def _takes(card: AgentCard, given: dict[str, Any]) -> bool:
    """Whether an object is input of an agent: it names all members; or it takes others as well, and this has what it
    needs and something that it names."""
    known, required = set(card.input.get("properties", {})), set(card.input.get("required", ()))
    if given.keys() <= known:
        return True
    is_open = card.input.get("additionalProperties", True) is not False
    return is_open and given.keys() >= required - {card.input_text} and not given.keys().isdisjoint(known)


def _members(given: list[Part]) -> dict[str, Any] | None:
    """The objects among the parts as one; None where there are none."""
    found = [part.data for part in given if isinstance(part, DataPart) and isinstance(part.data, dict)]
    if not found:
        return None
    members: dict[str, Any] = {}
    for one in found:
        members |= one
    return members


def completed(card: AgentCard, input_: dict[str, Any], given: list[Part]) -> dict[str, Any]:
    """An input, with those objects among what goes along with it as members that the agent has a place for."""
    members = _members([part for part in given if _fits(card, part)])
    return input_ if members is None else {**members, **input_}


def output_parts(card: AgentCard, output: Any) -> list[Part]:
    """What a run gave: its text, and the whole object where that is more than the text."""
    text = output.get(card.output_text) if card.output_text and isinstance(output, dict) else None
    if not isinstance(text, str):
        return [DataPart(output)]
    return [TextPart(text)] if len(output) == 1 else [TextPart(text), DataPart(output)]


class Given:
    """What a run gives beside its output: its messages, and its artifacts whole. For wires that tell it at the end."""

    def __init__(self) -> None:
        self._said: list[tuple[int, ArtifactAdded | MessageSent]] = []

    def feed(self, event: Event) -> None:
        body = event.body
        if type(body) is ArtifactAdded or type(body) is MessageSent:
            self._said.append((event.seq, body))
        elif self._said and type(body) is RunRestarted:
            self._said = [(seq, said) for seq, said in self._said if seq <= body.keep]

    def messages(self) -> list[Message]:
        """In the order in which they began. An artifact is a message whose metadata says what it is called."""
        if not self._said:
            return []
        bodies = [body for _, body in self._said]
        chunks = [body.artifact for body in bodies if isinstance(body, ArtifactAdded)]
        artifacts = {artifact.id: artifact for artifact in whole(chunks)}
        found = []
        for body in bodies:
            if isinstance(body, MessageSent):
                found.append(body.message)
            elif (artifact := artifacts.pop(body.artifact.id, None)) is not None:
                about = {**artifact.metadata, "artifact": artifact.name or artifact.id}
                found.append(Message("agent", artifact.parts, metadata=about))
        return found

    def parts(self) -> list[Part]:
        return [part for message in self.messages() for part in message.parts]


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
