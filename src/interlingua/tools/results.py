"""Translates the answers of a tool server into the model: results, parts and descriptions of tools. Pure.

This module, `connections` and `sessions` are the only ones that use the types of the `mcp` library; they are imported
when the first server is needed.
"""

from __future__ import annotations

import base64
from typing import Any

import mcp_types as types
import msgspec

from ..model import json_values
from ..model.content import FilePart, Part, TextPart
from ..model.errors import Invalid, ToolFailed
from ..model.team.tools import ToolOutcome, ToolSpec

_MESSAGE = 10_000  # characters that are kept of a tool's error text


def spec(server: str, tool: types.Tool) -> ToolSpec:
    return ToolSpec(server, tool.name, tool.description or "", tool.input_schema)


def outcome(server: str, tool: str, answer: types.CallToolResult, max_bytes: int) -> ToolOutcome:
    """Returns the result of a call. Raises ToolFailed where the tool reports a failure, or the result cannot be
    used."""
    where = {"server": server, "tool": tool}
    texts = [block.text for block in answer.content if isinstance(block, types.TextContent)]
    if answer.is_error:
        said = "\n".join(texts).strip() or f"{tool} of {server} failed, and does not say why"
        raise ToolFailed(said if len(said) <= _MESSAGE else said[: _MESSAGE - 1] + "…", details=where)
    try:
        content = [_part(block) for block in answer.content]
    except ValueError as error:  # binascii.Error, or a character that is not even ASCII
        raise ToolFailed(f"{tool} of {server} gave back data that is no base64: {error}", details=where) from None
    result: Any
    if answer.structured_content is not None:
        result = answer.structured_content
    elif len(texts) == len(answer.content):
        result = "\n".join(texts)
    else:
        result = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
    try:
        json_values.check(result, what=f"the result of {tool} of {server}")
        json_values.check(msgspec.to_builtins(content), what=f"the result of {tool} of {server}")
        size = max(len(msgspec.json.encode(result)), len(msgspec.json.encode(content)))
    except Invalid as error:
        raise ToolFailed(error.message, details=where) from None
    if size > max_bytes:
        raise ToolFailed(f"{tool} of {server} gave back {size} bytes: at most {max_bytes} are taken", details=where)
    return ToolOutcome(result, content=content)


def _part(block: types.ContentBlock) -> Part:
    match block:
        case types.TextContent():
            return TextPart(block.text)
        case types.ImageContent() | types.AudioContent():
            return FilePart(data=_bytes(block.data), media_type=block.mime_type)
        case types.ResourceLink():
            return FilePart(
                url=str(block.uri),
                media_type=block.mime_type,
                name=block.name,
                title=block.title,
                description=block.description,
                size=block.size,
            )
        case types.EmbeddedResource(resource=types.TextResourceContents() as found):
            return FilePart(text=found.text, media_type=found.mime_type, name=str(found.uri))
        case types.EmbeddedResource(resource=types.BlobResourceContents() as found):
            return FilePart(data=_bytes(found.blob), media_type=found.mime_type, name=str(found.uri))
    raise AssertionError(block)  # the library knows no other kind


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
