"""What agents and people say to each other: parts and messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class TextPart(msgspec.Struct, tag="text", tag_field="type", omit_defaults=True):
    text: str
    meta: dict[str, Any] | None = None


class FilePart(msgspec.Struct, tag="file", tag_field="type", omit_defaults=True):
    """A file, by address (`url`), as bytes (`data`, base64 in JSON) or as text (`text`): one of the three."""

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
    """What a tool of a server gave back, so that others see the evidence and not a claim."""

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
    """A result with a name. Chunks of one artifact share its id: `append` adds to it, `last` closes it."""

    id: str
    parts: list[Part]
    name: str | None = None
    description: str | None = None
    append: bool = False
    last: bool = True
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


def read_part(value: dict[str, Any]) -> Part:
    """A part as it is written in JSON. Whatever else it may be is data: others have objects of the same names."""
    kind = value.get("type")
    named = ("url", "data", "text") if kind == "file" else (kind,) if kind in ("text", "data") else ("tool",)
    if kind in ("text", "file", "data", "tool_result") and any(name in value for name in named):
        try:
            part: Part = msgspec.convert(value, Part)
        except msgspec.ValidationError:
            return DataPart(value)
        return part
    return DataPart(value)


def text_of(parts: list[Part]) -> str:
    """The text in some parts, joined as it was written."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def parts_from(value: str | Part | Sequence[Part | str]) -> list[Part]:
    """Text, one part, or several of both: always parts."""
    several: Sequence[Part | str] = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    return [TextPart(one) if isinstance(one, str) else one for one in several]
