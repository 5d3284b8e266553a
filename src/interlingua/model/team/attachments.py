"""Attachments as JSON: what members of a team send each other, and what a model reads and writes.

They are read strictly, and a fault is reported with its path. They are written back as they came: unknown members are
kept. Attached files are never opened here, and nothing is ever unpickled: a python_object is JSON.

Facts without a place travel as members that the standard does not know, which readers keep: name and media type of a
file, and if a tool failed or is not verified. Bytes travel as a `data:` address in `path`, the one member that the
standard has for paths and addresses.
"""

from __future__ import annotations

import base64
import binascii
import io
import pickletools
import re
import urllib.parse
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from ..content import DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from ..errors import InvalidRequest
from ..pointers import escape

EXTRA = "attachment"
"""The member of a part's `meta` for members of its attachment that have no place of their own."""
UNVERIFIED = "unverified"


class ToolCallResult(msgspec.Struct, kw_only=True):
    type: ClassVar[str] = "tool_call_result"
    server_id: str
    tool: str
    result: Any
    extra: dict[str, Any] = {}


class File(msgspec.Struct, kw_only=True):
    """A file by its path or its URL. The standard has one member for both; a URL may also stand in `url`."""

    type: ClassVar[str] = "file"
    path: str | None = None
    url: str | None = None
    extra: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Returns the URL, where there is one, else the path."""
        return self.url or self.path or ""

    @property
    def is_url(self) -> bool:
        return _URL.match(self.address) is not None


class PythonObject(msgspec.Struct, kw_only=True):
    type: ClassVar[str] = "python_object"
    object: Any
    extra: dict[str, Any] = {}


class TextSnippet(msgspec.Struct, kw_only=True):
    type: ClassVar[str] = "text_snippet"
    text: str
    extra: dict[str, Any] = {}


Attachment = ToolCallResult | File | PythonObject | TextSnippet
ATTACHMENTS: dict[str, type[Attachment]] = {
    kind.type: kind for kind in (ToolCallResult, File, PythonObject, TextSnippet)
}


def write_attachment(attachment: Attachment) -> dict[str, Any]:
    """Returns an attachment as a JSON object. Unset members are left out, but a result may be null."""
    return written(attachment, attachment.type)


def written(value: Any, type_: str) -> dict[str, Any]:
    """Returns a struct with unknown members in `extra` as a JSON object.

    Unknown members never replace known ones: they may come from the sender, and by any door.
    """
    known = ("type", *value.__struct_fields__)
    members: dict[str, Any] = {"type": type_}
    for name in value.__struct_fields__:
        content = getattr(value, name)
        if name != "extra" and (content is not None or name in ("result", "object")):
            members[name] = [write_attachment(one) for one in content] if name == "attachments" else content
    return members | {name: content for name, content in value.extra.items() if name == "extra" or name not in known}


def read_attachment(value: Any, path: str = "", budget: PickleBudget | None = None) -> Attachment:
    if not isinstance(value, dict):
        raise fault(path, f"is an object, got {kind_of(value)}")
    kind = value.get("type")
    members: dict[str, Any]
    if kind == "tool_call_result":
        members = {name: text_member(value, name, path, filled=True) for name in ("server_id", "tool")}
        members["result"] = member(value, "result", path)
    elif kind == "file":
        members = _file(value, path)
    elif kind == "python_object":
        members = {"object": member(value, "object", path)}
        _refuse_pickles(value, path, budget or PickleBudget())
    elif kind == "text_snippet":
        members = {"text": text_member(value, "text", path)}
    else:
        raise fault(f"{path}/type", f"is one of {', '.join(ATTACHMENTS)}, got {shortened(kind)}")
    extra = {name: content for name, content in value.items() if name not in members and name != "type"}
    return ATTACHMENTS[kind](**members, extra=extra)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\x00-\x1f]+\Z")


def _file(value: dict[str, Any], path: str) -> dict[str, Any]:
    names = [name for name in ("path", "url") if name in value]
    if len(names) != 1:
        raise fault(f"{path}/path", "is missing: a file has a path or a url" if not names else "and url are both given")
    name = names[0]
    text = text_member(value, name, path, filled=True)
    if name == "url" and not _URL.match(text):
        raise fault(f"{path}/url", f"is a whole address such as https://example.com/report.csv, got {shortened(text)}")
    if "\0" in text:
        raise fault(f"{path}/path", "has a NUL in it")
    return {name: text}


def text_member(value: dict[str, Any], name: str, path: str = "", *, filled: bool = False) -> str:
    text = member(value, name, path)
    if not isinstance(text, str):
        raise fault(f"{path}/{name}", f"is a text, got {kind_of(text)}")
    if filled and not text:
        raise fault(f"{path}/{name}", "is empty")
    return text


def member(value: dict[str, Any], name: str, path: str) -> Any:
    if name not in value:
        raise fault(f"{path}/{name}", "is missing")
    return value[name]


def fault(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{path} {why}".strip(), path=path)


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")


def shortened(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 80 else written[:79] + "…"


# -- parts ----------------------------------------------------------------------------------------------------

_FILE_MEMBERS: dict[str, type] = {"name": str, "media_type": str, "title": str, "description": str, "size": int}
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_TEXT = ";charset=utf-8"
_DATA_URL = re.compile(rf"data:(?P<type>({_TYPE.pattern})?)(?P<text>({_TEXT})?);base64,(?P<data>[A-Za-z0-9+/=]*)")


def part_of(attachment: Attachment) -> Part:
    """Returns an attachment as a part of the model."""
    extra = dict(attachment.extra)
    match attachment:
        case TextSnippet(text=text):
            return TextPart(text, _meta(extra))
        case PythonObject(object=value):
            known = _take(extra, {"name": str, "media_type": str})
            return DataPart(value, meta=_meta(extra), **known)
        case ToolCallResult():
            known = _take(extra, {"call": str})
            if extra.get("failed") is True:
                known["failed"] = extra.pop("failed")
            unverified = extra.pop(UNVERIFIED, None) is True
            meta = _meta(extra)
            if unverified:
                meta = {**(meta or {}), UNVERIFIED: True}
            return ToolResultPart(attachment.tool, attachment.result, attachment.server_id, meta=meta, **known)
        case File():
            return _file_part(attachment, extra)


def _file_part(file: File, extra: dict[str, Any]) -> FilePart:
    inline = _inline(file, dict(extra))
    if inline is not None:
        written_again, received = write_attachment(attachment_of(inline)), write_attachment(file)
        if "media_type" not in written_again and inline.media_type is not None:
            received.pop("media_type", None)  # it is in the address, too
        if written_again == received:
            return inline
    known = _take(extra, _FILE_MEMBERS)
    address = file.address
    if file.path is not None and address.startswith("/"):
        address = "file://" + urllib.parse.quote(address)
    if file.url is not None or _address(FilePart(url=address)) != file.address:
        extra["url" if file.url is not None else "path"] = file.address  # as it came, to be written again
    return FilePart(url=address, meta=_meta(extra), **known)


def _inline(file: File, extra: dict[str, Any]) -> FilePart | None:
    """Returns the bytes, or the text, of a `data:` address."""
    match = _DATA_URL.fullmatch(file.address)
    if match is None:
        return None
    known = _take(extra, _FILE_MEMBERS)
    if match["type"]:
        known.setdefault("media_type", match["type"])
    try:
        body = base64.b64decode(match["data"], validate=True)
        content: dict[str, Any] = {"text": body.decode()} if match["text"] else {"data": body}
    except ValueError:
        return None
    return FilePart(meta=_meta(extra), **content, **known)


def attachment_of(part: Part) -> Attachment:
    """Returns a part as an attachment of the"""
    extra: dict[str, Any] = dict((part.meta or {}).get(EXTRA) or {})
    match part:
        case TextPart(text=text):
            return TextSnippet(text=text, extra=extra)
        case DataPart(data=value):
            return PythonObject(object=value, extra={**extra, **_set(part, ("name", "media_type"))})
        case ToolResultPart():
            extra |= _set(part, ("call",))
            if part.failed:
                extra["failed"] = True
            if (part.meta or {}).get(UNVERIFIED):
                extra[UNVERIFIED] = True
            # A result without a server is of a tool that the agent has of its own; the standard wants a name there.
            return ToolCallResult(server_id=part.server or "local", tool=part.tool, result=part.result, extra=extra)
        case FilePart():
            address = {name: extra.pop(name) for name in ("path", "url") if isinstance(extra.get(name), str)}
            members = _set(part, tuple(_FILE_MEMBERS))
            if part.url is None and _TYPE.fullmatch(part.media_type or ""):
                members.pop("media_type", None)  # it is in the address
            return File(**(address or {"path": _address(part)}), extra={**extra, **members})


def _address(part: FilePart) -> str:
    body = part.text.encode() if part.text is not None else part.data
    if body is None:
        url = part.url or ""
        return urllib.parse.unquote(url.removeprefix("file://")) if url.startswith("file:///") else url
    kind = part.media_type if part.media_type and _TYPE.fullmatch(part.media_type) else ""
    charset = _TEXT if part.text is not None else ""
    return f"data:{kind}{charset};base64,{base64.b64encode(body).decode()}"


def _take(extra: dict[str, Any], members: dict[str, type]) -> dict[str, Any]:
    """Takes the members that the model has a place for out of those that the standard does not know."""
    return {name: extra.pop(name) for name, kind in members.items() if type(extra.get(name)) is kind}


def _set(part: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(part, name) for name in names if getattr(part, name) is not None}


def _meta(extra: dict[str, Any]) -> dict[str, Any] | None:
    return {EXTRA: extra} if extra else None


def text_and_attached(message: Message) -> tuple[str, list[Part]]:
    """Returns the text of a message, and its attachments."""
    if message.parts and isinstance(message.parts[0], TextPart):
        return message.parts[0].text, message.parts[1:]
    return "", message.parts


# -- pickles --------------------------------------------------------------------------------------------------

_PICKLERS = re.compile(r"pickle|dill|joblib|marshal", re.IGNORECASE)
_SAYS_HOW = ("encoding", "format", "serialization", "serializer", "media_type", "content_type")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{2,}={0,2}\s*\Z")
_HEX = re.compile(r"(?:0x)?(?:[0-9a-fA-F]{2})+\Z")
# Many words can be read as a pickle of the first protocol ("absolute." is one). The dangerous ones declare their
# protocol, import something, or number their objects.
_TELLING = frozenset({"PROTO", "GLOBAL", "STACK_GLOBAL", "INST", "PUT", "MEMOIZE"})


# Marks that only a pickle of a later protocol has, and marks that every relevant one of an earlier protocol has.
_LATER, _EARLIER = (b"\x80", b"\x93", b"\x94"), b"\n"
_MOST_LOOKS = 200_000
_BEGUN = 10  # the opcodes at its beginning


class PickleBudget:
    """The budget for pickle checks in one message. Reading opcodes is slow, and blocks all other callers meanwhile."""

    def __init__(self) -> None:
        self.left = _MOST_LOOKS

    def take(self, count: int, path: str) -> None:
        self.left -= count
        if self.left < 0:
            raise fault(path, "looks like pickles for too long, which can run code: send the object as JSON")


def _refuse_pickles(value: dict[str, Any], path: str, budget: PickleBudget) -> None:
    """Refuses pickles. Loading a pickle runs code of its sender, so none may reach a place that might load it."""
    for name in _SAYS_HOW:
        if isinstance(value.get(name), str) and _PICKLERS.search(value[name]):
            raise fault(f"{path}/{name}", "names a format that can run code: send the object as JSON")
    stack: list[tuple[Any, str]] = [(value["object"], f"{path}/object")]
    while stack:
        item, at = stack.pop()
        if isinstance(item, str):
            if any(_is_pickle(body, budget, at) for body in _as_bytes(item)):
                raise fault(at, "is a pickle, which can run code: send the object as JSON")
        elif isinstance(item, dict):
            stack.extend((member, f"{at}/{escape(key)}") for key, member in item.items())
        elif isinstance(item, list):
            stack.extend((member, f"{at}/{index}") for index, member in enumerate(item))


def _as_bytes(text: str) -> Iterable[bytes]:
    """Returns the byte strings that a text may stand for: its own, base64 (of both alphabets) and hex."""
    text = text.strip()
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        yield text.encode("latin-1")
    except UnicodeEncodeError:
        return
    if _HEX.match(text):
        yield bytes.fromhex(text.removeprefix("0x"))
    if _BASE64.match(text):
        plain = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
        try:
            yield base64.b64decode(plain + "=" * (-len(plain) % 4))
        except binascii.Error:
            return


def _is_pickle(body: bytes, budget: PickleBudget, path: str) -> bool:
    if b"." not in body or not (_EARLIER in body or any(mark in body for mark in _LATER)):
        return False  # it never ends, or nothing in it matters
    budget.take(_BEGUN, path)
    dangerous = False
    try:
        for opcode, _, _ in pickletools.genops(io.BytesIO(body)):
            budget.take(1, path)
            dangerous = dangerous or opcode.name in _TELLING
    except InvalidRequest:
        raise
    except Exception:  # whatever it is, it is not a whole pickle
        return False
    return dangerous
