"""Translates between the Agent Client Protocol and the model. Pure.

The wire has no place for some facts. They become:

- any JSON value: JSON in a text block, whose `_meta` has the value;
- structured output: shown as JSON text at the end of the turn, and whole in the answer's `_meta`;
- an answer that is more than a flat form: JSON in a text field, with the wanted schema in the `_meta` of the form;
- the parts of an answer beside its choice: a member of ours in the `_meta` of the response;
- a question that is no choice, for a client without forms: asked as text, and the next prompt is the answer;
- an artifact: an embedded resource in the agent's message; a warning: a thought;
- a cancelled plan entry or tool call in version 1: completed, and failed;
- a message that another door put onto the thread outside a run: not replayed.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import quote

import msgspec

from ...model import trace_context
from ...model.card import AgentCard
from ...model.content import DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from ...model.errors import (
    Conflict,
    DefinitionError,
    Denied,
    ErrorInfo,
    ErrorTable,
    InterlinguaError,
    Invalid,
    InvalidInput,
    InvalidOutput,
    InvalidQuestion,
    NotFound,
    OverBudget,
    Overloaded,
    RunCancelled,
    RunError,
    StoreError,
    Unavailable,
)
from ...model.prompt_input import file_name, prompt_input, prompt_text
from ...model.question_forms import (
    Choices,
    choices,
    detail_lines,
    form,
    json_block,
    parse_answer,
    question_text,
    resolved,
)
from ...security.errors import Unauthenticated
from ...transports.jsonrpc.core import CANCELLED, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RpcError
from . import wire

AUTH_REQUIRED = -32000
NOT_FOUND = -32002
_ABOUT = ("name", "title", "description")  # of a file

ERRORS = ErrorTable({
    InterlinguaError: INTERNAL_ERROR, Invalid: INVALID_PARAMS, InvalidOutput: INTERNAL_ERROR,
    InvalidQuestion: INTERNAL_ERROR, NotFound: NOT_FOUND, Conflict: INVALID_REQUEST, Denied: INVALID_REQUEST,
    Unauthenticated: AUTH_REQUIRED, RunError: INTERNAL_ERROR, RunCancelled: CANCELLED, OverBudget: INTERNAL_ERROR,
    Overloaded: INTERNAL_ERROR, Unavailable: INTERNAL_ERROR, StoreError: INTERNAL_ERROR,
    DefinitionError: INTERNAL_ERROR,
})  # fmt: skip
"""The codes of errors. `data` has their codes in the model."""


def rpc_error(error: InterlinguaError) -> RpcError:
    return RpcError.of(error.info(), ERRORS.of(type(error)))


def run_error(info: ErrorInfo, run: str | None) -> RpcError:
    """Returns the error that a run ended with."""
    return RpcError.of(info, ERRORS.of_code(info.code), run)


# -- content --------------------------------------------------------------------------------------------------


def parts(blocks: list[dict[str, Any]], *, open_types: bool) -> list[Part]:
    """Returns a prompt's content blocks as parts. `open_types` keeps unknown types as data (version 2)."""
    return [_part(block, f"/prompt/{place}", open_types) for place, block in enumerate(blocks)]


def _part(block: dict[str, Any], path: str, open_types: bool) -> Part:
    kind = block.get("type")
    if kind not in wire.CONTENT_TYPES:
        if open_types and isinstance(kind, str):
            return DataPart(block)
        known = ", ".join(sorted(wire.CONTENT_TYPES))
        raise InvalidInput(f"{path} is a content block of type {kind!r}; known are {known}", path=path)
    try:
        typed = msgspec.convert(block, wire.ContentBlock)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: {error}", path=path) from None
    meta = dict(block.get("_meta") or {})
    if typed.annotations is not None:
        meta["annotations"] = block["annotations"]
    data, about = meta.pop(wire.META_DATA, msgspec.UNSET), _about(meta.pop(wire.META_FILE, None))
    rest = meta or None
    match typed:
        case wire.TextBlock() if data is not msgspec.UNSET:
            return DataPart(data, meta=rest)
        case wire.TextBlock(text=text):
            return TextPart(text, rest)
        case wire.ImageBlock(data=data, mime_type=mime, uri=uri):
            return FilePart(url=uri, data=_bytes(data, path), media_type=mime, meta=rest, **about)
        case wire.AudioBlock(data=data, mime_type=mime):
            return FilePart(data=_bytes(data, path), media_type=mime, meta=rest, **about)
        case wire.ResourceLinkBlock():
            return FilePart(
                url=typed.uri, media_type=typed.mime_type, name=typed.name, title=typed.title,
                description=typed.description, size=typed.size, meta=rest,
            )  # fmt: skip
        case wire.ResourceBlock(resource=embedded):
            if embedded.text is None and embedded.blob is None:
                raise InvalidInput(f"{path}/resource has neither text nor blob", path=f"{path}/resource")
            content = _bytes(embedded.blob, path) if embedded.text is None and embedded.blob is not None else None
            return FilePart(
                url=embedded.uri, data=content, text=embedded.text, media_type=embedded.mime_type, meta=rest,
                **{"name": file_name(embedded.uri), **about},
            )  # fmt: skip
    raise AssertionError(kind)


def _about(value: Any) -> dict[str, Any]:
    """Returns the members about a file that stand beside its block."""
    members = value if isinstance(value, dict) else {}
    return {name: members[name] for name in _ABOUT if isinstance(members.get(name), str)}


def _bytes(data: str, path: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"{path} does not hold base64", path=path) from None


def block(part: Part) -> dict[str, Any]:
    """Returns a part as a content block. Annotations come back as they came."""
    content = _block(part)
    meta = dict(part.meta or {})
    annotations = meta.pop("annotations", None)
    if annotations is not None:
        content["annotations"] = annotations
    if meta:
        content["_meta"] = content.get("_meta", {}) | meta
    return content


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, DataPart):
        return {"type": "text", "text": json_block(part.data), "_meta": {wire.META_DATA: part.data}}
    if isinstance(part, ToolResultPart):
        return {"type": "text", "text": json_block(msgspec.to_builtins(part))}
    return _file_block(part)


def _file_block(part: FilePart) -> dict[str, Any]:
    mime = part.media_type or ""
    if part.data is not None and mime.startswith(("image/", "audio/")):
        media = {
            "type": mime.partition("/")[0],
            "data": base64.b64encode(part.data).decode(),
            "mimeType": mime,
        }
        if part.url is not None and media["type"] == "image":
            media["uri"] = part.url
        return _beside(media, part, _ABOUT)
    uri = part.url or f"file:///{quote(part.name or 'unnamed', safe='')}"
    if part.data is None and part.text is None:
        return _link(part, uri)
    inner: dict[str, Any] = {"uri": uri}
    if part.text is not None:
        inner["text"] = part.text
    else:
        assert part.data is not None
        inner["blob"] = base64.b64encode(part.data).decode()
    if part.media_type is not None:
        inner["mimeType"] = part.media_type
    named = part.name is None or part.name == file_name(uri)
    return _beside({"type": "resource", "resource": inner}, part, _ABOUT[1:] if named else _ABOUT)


def _link(part: FilePart, uri: str) -> dict[str, Any]:
    link = {"type": "resource_link", "name": part.name or file_name(uri), "uri": uri}
    for name, value in (
        ("title", part.title), ("description", part.description), ("mimeType", part.media_type),
        ("size", part.size),
    ):  # fmt: skip
        if value is not None:
            link[name] = value  # type: ignore[assignment]
    return link


def _beside(block: dict[str, Any], part: FilePart, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns a block, with the facts of a file that it has no place for."""
    members = {name: getattr(part, name) for name in names if getattr(part, name) is not None}
    return {**block, "_meta": {wire.META_FILE: members}} if members else block


def metadata(meta: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the metadata of a run: the prompt's `_meta` without the members of the protocol and ours."""
    members = {
        name: value
        for name, value in (meta or {}).items()
        if name not in trace_context.NAMES and name != "interlingua" and not name.startswith("interlingua/")
    }
    named = (meta or {}).get(wire.META_METADATA)
    return members | named if isinstance(named, dict) else members


def said(message: Message) -> list[dict[str, Any]]:
    return [block(part) for part in message.parts]


def title(text: str) -> str:
    """Returns a title for a session: the first line of its first prompt."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 80 else line[:79].rstrip() + "…"


# -- configuration --------------------------------------------------------------------------------------------

_CATEGORIES = {"model": "model", "mode": "mode", "reasoning": "thought_level", "thinking": "thought_level",
               "effort": "thought_level", "thought_level": "thought_level"}  # fmt: skip


class ConfigOption(msgspec.Struct):
    """An option of a session: the agent, or a member of its configuration."""

    id: str
    name: str
    current: Any  # a string, or a boolean
    choices: list[tuple[str, str, str]] = []  # (value, name, description); none where it is a boolean
    description: str = ""
    category: str | None = None


def config_options(card: AgentCard, chosen: dict[str, Any]) -> list[ConfigOption]:
    """Returns the members of an agent's configuration that are a choice or a flag."""
    schema = card.config or {}
    options = []
    for name, inner in schema.get("properties", {}).items():
        member = resolved(inner, schema)
        current = chosen.get(name, member.get("default"))
        shared = {
            "name": member.get("title") or name.replace("_", " ").capitalize(),
            "description": member.get("description", ""),
            "category": _CATEGORIES.get(name),
        }
        values = member.get("enum")
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            choices_ = [(value, value, "") for value in values]
            options.append(
                ConfigOption(name, current=current if current in values else values[0], choices=choices_, **shared)
            )
        elif isinstance(member.get("oneOf"), list) and all(isinstance(o.get("const"), str) for o in member["oneOf"]):
            choices_ = [(o["const"], o.get("title", o["const"]), o.get("description", "")) for o in member["oneOf"]]
            known = [value for value, _, _ in choices_]
            options.append(
                ConfigOption(name, current=current if current in known else known[0], choices=choices_, **shared)
            )
        elif member.get("type") == "boolean":
            options.append(ConfigOption(name, current=bool(current), **shared))
    return options


def _one_of(current: Any, offered: list[tuple[str, str, str]]) -> str:
    values = [value for value, _, _ in offered]
    return current if current in values else values[0]


__all__ = [
    "AUTH_REQUIRED",
    "ERRORS",
    "NOT_FOUND",
    "Choices",
    "ConfigOption",
    "block",
    "choices",
    "config_options",
    "detail_lines",
    "form",
    "json_block",
    "metadata",
    "parse_answer",
    "parts",
    "prompt_input",
    "prompt_text",
    "question_text",
    "rpc_error",
    "run_error",
    "said",
    "title",
]  # fmt: skip
