"""Parts: the content of messages, tasks and artifacts, checked on the way in and translated to the model and back.

The wire has three kinds: text, a file by its address, and any JSON value. Unknown members are kept as they came. Files
are never fetched here.

The wire has no place for bytes and text of a file (they are published, and travel as an address), addresses that only
this machine can open (a data part names them), and titles, descriptions, sizes and private metadata of parts.
"""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import msgspec

from ....model import json_values
from ....model.content import DataPart, FilePart, Part, TextPart, ToolResultPart
from ....model.errors import InvalidRequest

KINDS = ("text", "file", "data")
MAX_PARTS = 1000
MAX_URL = 8000

Publish = Callable[[bytes, str, str | None], str]  # bytes, media type, name → an address that cannot be guessed

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(\s*;[\x20-\x7e]*)?")
_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?P<params>(;[^;,]*)*),(?P<data>.*)", re.DOTALL)
_BYTES = "application/octet-stream"


def check_parts(value: Any, path: str = "parts") -> list[dict[str, Any]]:
    """Returns the parts, all of them valid. Raises InvalidRequest with the path of the first invalid one."""
    if not isinstance(value, list):
        raise _wrong(f"/{path}", f"is a list of parts, got {_kind(value)}")
    if not value:
        raise _wrong(f"/{path}", "holds at least one part")
    if len(value) > MAX_PARTS:
        raise _wrong(f"/{path}", f"holds at most {MAX_PARTS} parts, got {len(value)}")
    for index, part in enumerate(value):
        _check(part, f"/{path}/{index}")
    return value


def known_parts(value: Any, path: str = "parts") -> list[dict[str, Any]]:
    """Returns the parts of known kinds from a peer of a later version: at least one, and all of them valid."""
    if isinstance(value, list):
        known = [part for part in value if not _is_later(part)]
        value = known if known else value
    return check_parts(value, path)


def has_content(body: dict[str, Any]) -> bool:
    return any(body.get(name) is not None for name in ("parts", "text", "content"))


def parts_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the content of a body: `parts`, or the short forms `text` and `content` as one part."""
    if body.get("parts") is not None:
        return check_parts(body["parts"])
    if body.get("text") is not None:
        return [_text(body["text"], "/text")]
    content = body.get("content")
    if content is None:
        raise InvalidRequest("the message has no content: give parts, text or content", path="/parts")
    # The reference takes content for text. Anything else that stands there is data.
    return [_text(content, "/content")] if isinstance(content, str) else check_parts([data(content)], "content")


def input_of(body: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the input of a task, from any place where its creator may put it; None where there is none.

    The seed has `input.parts`, the reference a free `payload`, older clients a title and a description.
    """
    for holder in (body, body.get("input"), body.get("payload")):
        if isinstance(holder, dict) and has_content(holder):
            return parts_of(holder)
    for name in ("input", "payload"):
        given = body.get(name)
        if isinstance(given, str):
            return [_text(given, f"/{name}")]
        if isinstance(given, dict) and given and set(given) != {"role"}:
            inner = given.get("input")
            if isinstance(inner, dict) and has_content(inner):
                return parts_of(inner)
            return check_parts([data(given)], name)
        if isinstance(given, list):
            return check_parts([data(given)], name)
    told = [body[name] for name in ("title", "description") if isinstance(body.get(name), str) and body[name]]
    return [text("\n\n".join(told))] if told else None


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def data(content: Any) -> dict[str, Any]:
    return {"type": "data", "content": content}


def text_of(parts: list[dict[str, Any]]) -> str:
    """Returns the text in some parts, joined as it was written."""
    return "".join(part["content"] for part in parts if part.get("type") == "text")


def _check(part: Any, path: str) -> None:
    if not isinstance(part, dict):
        raise _wrong(path, f"is an object, got {_kind(part)}")
    kind = part.get("type")
    if kind == "text":
        _text(part.get("content"), f"{path}/content")
    elif kind == "file":
        _check_file(part, path)
    elif kind == "data":
        if "content" not in part:
            raise _wrong(f"{path}/content", "is missing: a data part has a JSON value there, which may be null")
    else:
        raise _wrong(f"{path}/type", f"is one of {', '.join(KINDS)}, got {_short(kind)}")
    try:
        json_values.check(part, InvalidRequest, what="part")
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}", path=path + error.path) from None


def _check_file(part: dict[str, Any], path: str) -> None:
    url = part.get("url")
    if not isinstance(url, str) or not url:
        raise _wrong(f"{path}/url", "is missing: a file is given by its address")
    if not _is_web_address(url):
        raise _wrong(f"{path}/url", f"is an address with http or https, got {_short(url)}")
    media_type = part.get("media_type")
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
        raise _wrong(f"{path}/media_type", f"is a media type such as application/pdf, got {_short(media_type)}")
    filename = part.get("filename")
    if filename is not None and not isinstance(filename, str):
        raise _wrong(f"{path}/filename", f"is a text, got {_kind(filename)}")


def _text(content: Any, path: str) -> dict[str, Any]:
    if not isinstance(content, str):
        raise _wrong(path, f"is a text, got {_kind(content)}")
    return text(content)


def _is_later(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] not in KINDS


def _is_web_address(url: str) -> bool:
    if len(url) > MAX_URL or any(character <= " " or character == "\x7f" for character in url):
        return False
    try:
        read = urllib.parse.urlsplit(url)
        return read.scheme in ("http", "https") and bool(read.hostname) and read.port != 0
    except ValueError:
        return False


# -- the model ------------------------------------------------------------------------------------------------


def to_model(part: dict[str, Any]) -> Part:
    """Returns a checked part as a part of the model."""
    match part["type"]:
        case "text":
            return TextPart(part["content"])
        case "file":
            return FilePart(url=part["url"], media_type=part.get("media_type"), name=part.get("filename"))
    return DataPart(part["content"], media_type=_str(part.get("media_type")), name=_str(part.get("filename")))


def from_model(part: Part, publish: Publish) -> dict[str, Any]:
    """Returns a part of the model for the wire. Content without an address is published first."""
    match part:
        case TextPart(text=said):
            return text(said)
        case DataPart(data=value):
            return _named(data(value), part.media_type, part.name)
        case ToolResultPart():
            told = {"tool": part.tool, "result": part.result, "failed": part.failed}
            optional = {"server": part.server, "call": part.call}
            return data({"tool_result": told | {name: given for name, given in optional.items() if given is not None}})
        case FilePart():
            return _file(part, publish)


def _file(part: FilePart, publish: Publish) -> dict[str, Any]:
    media_type = part.media_type if part.media_type and _MEDIA_TYPE.fullmatch(part.media_type) else None
    if part.data is not None:
        return _published(part.data, media_type or _BYTES, part.name, publish)
    if part.text is not None:
        return _published(part.text.encode(), media_type or "text/plain; charset=utf-8", part.name, publish)
    url = part.url or ""
    if _is_web_address(url):
        return _named({"type": "file", "url": url}, media_type, part.name)
    inline = _from_data_url(url)
    if inline is not None:
        found, said = inline
        kind = media_type or (said if _MEDIA_TYPE.fullmatch(said) else _BYTES)
        return _published(found, kind, part.name, publish)
    # file:// and the like: the peer cannot open it, but may want to know of it.
    return data({"file": _named({"uri": url}, media_type, part.name)})


def is_inline(part: FilePart) -> bool:
    """Tells if a file holds its content itself, and must be published to travel."""
    return part.data is not None or part.text is not None or (part.url or "").startswith("data:")


def as_file(part: dict[str, Any], publish: Publish) -> dict[str, Any]:
    """Returns any part of the wire as a published file."""
    if part["type"] == "text":
        return _published(part["content"].encode(), "text/plain; charset=utf-8", None, publish)
    if part["type"] == "data":
        return _published(msgspec.json.encode(part["content"]), "application/json", None, publish)
    return part


def _published(body: bytes, media_type: str, name: str | None, publish: Publish) -> dict[str, Any]:
    return _named({"type": "file", "url": publish(body, media_type, name)}, media_type, name)


def _named(told: dict[str, Any], media_type: str | None, name: str | None) -> dict[str, Any]:
    if media_type is not None:
        told["media_type"] = media_type
    if name is not None:
        told["filename"] = name
    return told


def _from_data_url(url: str) -> tuple[bytes, str] | None:
    match = _DATA_URL.fullmatch(url)
    if match is None:
        return None
    body = urllib.parse.unquote_to_bytes(match["data"])
    if match["params"].endswith(";base64"):
        try:
            body = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            return None
    return body, match["type"] or "text/plain"


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _wrong(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{path} {why}", path=path)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 80 else written[:79] + "…"
