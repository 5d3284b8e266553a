"""Content of messages and artifacts: text, files, data and tool results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class TextPart(msgspec.Struct, tag="text", tag_field="type", omit_defaults=True):
    text: str
    meta: dict[str, Any] | None = None


class FilePart(msgspec.Struct, tag="file", tag_field="type", omit_defaults=True):
    """A file, given by one of three members: an address (`url`), bytes (`data`, base64 in JSON) or text (`text`)."""

    url: str | None = None
    data: bytes | None = None
    text: str | None = None
    media_type: str | None = None
    name: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | None = None
    meta: dict[str, Any] | None = None


class DataPart(msgspec.Struct, tag="data", tag_field="type", omit_defaults=True):
    """Any JSON value."""

    data: Any
    media_type: str | None = None
    name: str | None = None
    meta: dict[str, Any] | None = None


class ToolResultPart(msgspec.Struct, tag="tool_result", tag_field="type", omit_defaults=True):
    """The result of a tool call, as the tool server returned it: evidence for other agents, not a claim."""

    tool: str
    result: Any = None
    server: str | None = None
    call: str | None = None
    failed: bool = False
    meta: dict[str, Any] | None = None


Part = TextPart | FilePart | DataPart | ToolResultPart
Role = Literal["user", "agent", "system"]


class Message(msgspec.Struct, omit_defaults=True):
    role: Role
    parts: list[Part]
    id: str = ""
    sender: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def text(self) -> str:
        return text_of(self.parts)


class Artifact(msgspec.Struct, omit_defaults=True):
    """A named result. Chunks of one artifact share its id: `append` extends the artifact, `last` closes it."""

    id: str
    parts: list[Part]
    name: str | None = None
    description: str | None = None
    append: bool = False
    last: bool = True
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


def read_part(value: dict[str, Any]) -> Part:
    """Reads a part from JSON. Any other value becomes a DataPart: foreign objects may use the same type names."""
    kind = value.get("type")
    members = ("url", "data", "text") if kind == "file" else (kind,) if kind in ("text", "data") else ("tool",)
    if kind in ("text", "file", "data", "tool_result") and any(member in value for member in members):
        try:
            part: Part = msgspec.convert(value, Part)
        except msgspec.ValidationError:
            return DataPart(value)
        return part
    return DataPart(value)


def text_of(parts: list[Part]) -> str:
    """Joins the text parts, without separators."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def parts_from(value: str | Part | Sequence[Part | str]) -> list[Part]:
    """Turns text, a part, or a sequence of both into a list of parts."""
    items: Sequence[Part | str] = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    return [TextPart(item) if isinstance(item, str) else item for item in items]
