"""The wire types between participants of a team: four kinds of messages, attachments, error codes and task ids.

Messages are read strictly, and a fault is reported with its path. They are written back as they came: unknown members
are kept. Attached files are never opened here, and nothing is ever unpickled: a python_object is JSON.
"""

from __future__ import annotations

import base64
import binascii
import io
import pickletools
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from ...model import json_values
from ...model.card import Schema
from ...model.errors import InvalidRequest
from ...model.pointers import escape
from ...model.team import manifest
from ...transports import json_text

MAX_ATTACHMENTS = 1000
MAX_ID = 500  # characters of the id of a participant: it is written to logs, also those of others

_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}

# For others to check manifests with; the reader here reports more faults (see `model.team`).
MANIFEST_SCHEMA: Schema = {
    "$id": "https://example.com/schemas/agent.schema.json",
    "type": "object",
    "required": ["id", "system_prompt", "allowed_agents", "delegate_rules", "mcp_bindings"],
    "properties": {
        "id": {"type": "string", "description": "What the agent is addressed by; no other agent has it"},
        "system_prompt": {"type": "string", "description": "What the model is told before anything else"},
        "allowed_agents": {**_TEXTS, "description": "Ids of the agents that it may delegate to"},
        "delegate_rules": {
            "type": "object",
            "description": "For each of them, in plain words, when to delegate to it",
            "patternProperties": {
                "^[A-Za-z0-9_-]+$": {
                    "type": "object",
                    "required": ["when_to_delegate"],
                    "properties": {"when_to_delegate": {"type": "string", "description": "The condition"}},
                }
            },
        },
        "overseer": {"type": ["string", "null"], "description": "Id of the agent that reviews what it has done"},
        "mcp_bindings": {
            "type": "array",
            "description": "What it may use of each MCP server",
            "items": {
                "type": "object",
                "required": ["server_id", "scopes", "allowed_tools"],
                "properties": {
                    "server_id": {"type": "string"},
                    "description": {"type": "string"},
                    "scopes": _TEXTS,
                    "allowed_tools": _TEXTS,
                },
            },
        },
    },
}


# -- attachments ----------------------------------------------------------------------------------------------


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


# -- messages -------------------------------------------------------------------------------------------------


class _Envelope(msgspec.Struct, kw_only=True):
    """The members of every message. The receiver sets `timestamp` where the sender left it out."""

    task_id: str
    sender_id: str
    recipient_id: str
    timestamp: str | None = None  # RFC 3339
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = {}

    @property
    def time(self) -> int | None:
        """Returns the timestamp in microseconds since 1970."""
        return None if self.timestamp is None else time_of(self.timestamp)


class Message(_Envelope, kw_only=True):
    type: ClassVar[str] = "message"
    content: str
    attachments: list[Attachment] | None = None  # None where the member was left out


class DelegationNotice(_Envelope, kw_only=True):
    type: ClassVar[str] = "delegation_notice"
    context_summary: str
    attachments: list[Attachment] | None = None


class ErrorResponse(_Envelope, kw_only=True):
    type: ClassVar[str] = "error_response"
    error_code: int
    error_message: str


class OversightInquiry(_Envelope, kw_only=True):
    type: ClassVar[str] = "oversight_inquiry"
    inquiry: str
    attachments: list[Attachment] | None = None


AnyMessage = Message | DelegationNotice | ErrorResponse | OversightInquiry
MESSAGES: dict[str, type[AnyMessage]] = {
    kind.type: kind for kind in (Message, DelegationNotice, ErrorResponse, OversightInquiry)
}
_SAYS = {Message: "content", DelegationNotice: "context_summary", ErrorResponse: "error_message",
         OversightInquiry: "inquiry"}  # fmt: skip


def parse(body: bytes | str) -> AnyMessage:
    """Reads a message from JSON text."""
    try:
        value = json_text.decode(body, numbers="refuse")
    except json_text.Unreadable as error:
        raise InvalidRequest(str(error)) from None
    return read(value)


def read(value: Any) -> AnyMessage:
    """Reads a message from JSON. Raises InvalidRequest with the path of the first fault."""
    if not isinstance(value, dict):
        raise _wrong("", f"a message is an object, got {_kind(value)}")
    json_values.check(value, InvalidRequest, what="message")
    kind = MESSAGES.get(value["type"]) if isinstance(value.get("type"), str) else None
    if kind is None:
        raise _wrong("/type", f"is one of {', '.join(MESSAGES)}, got {_short(value.get('type'))}")
    told: dict[str, Any] = {"task_id": _text(value, "task_id", filled=True)}
    for name in ("sender_id", "recipient_id"):
        told[name] = _participant(value, name)
    told[_SAYS[kind]] = _text(value, _SAYS[kind])
    if kind is ErrorResponse:
        told["error_code"] = _integer(value, "error_code")
    elif "attachments" in value:
        told["attachments"] = _attachments(value["attachments"])
    if "timestamp" in value:
        told["timestamp"] = _text(value, "timestamp")
        time_of(told["timestamp"])
    if "metadata" in value:
        if not isinstance(value["metadata"], dict):
            raise _wrong("/metadata", f"is an object, got {_kind(value['metadata'])}")
        told["metadata"] = value["metadata"]
    told["extra"] = {name: given for name, given in value.items() if name not in told and name != "type"}
    return kind(**told)


def is_error(value: Any) -> bool:
    """Tells if a message is an error, well-formed or not: an error is never answered with an error."""
    return isinstance(value, dict) and value.get("type") == "error_response"


def write(message: AnyMessage | Attachment) -> dict[str, Any]:
    """Returns a message or an attachment as a JSON object. Unset members are left out, but a result may be null.

    Unknown members never replace known ones: they may come from the sender of the message, and by any door.
    """
    known = ("type", *message.__struct_fields__)
    told: dict[str, Any] = {"type": message.type}
    for name in message.__struct_fields__:
        given = getattr(message, name)
        if name != "extra" and (given is not None or name in ("result", "object")):
            told[name] = [write(one) for one in given] if name == "attachments" else given
    return told | {name: given for name, given in message.extra.items() if name == "extra" or name not in known}


def _participant(value: dict[str, Any], name: str) -> str:
    """An agent, an instance of one, the user or the orchestrator."""
    given = _text(value, name)
    if len(given) > MAX_ID:
        raise _wrong(f"/{name}", f"has at most {MAX_ID} characters, got {len(given)}")
    try:
        manifest.instance_of(given)
    except InvalidRequest:
        raise _wrong(
            f"/{name}", f"is the id of an agent or instance, user or orchestrator, got {_short(given)}"
        ) from None
    return given


def _attachments(value: Any) -> list[Attachment]:
    if not isinstance(value, list):
        raise _wrong("/attachments", f"is a list, got {_kind(value)}")
    if len(value) > MAX_ATTACHMENTS:
        raise _wrong("/attachments", f"holds at most {MAX_ATTACHMENTS}, got {len(value)}")
    looks = _Looks()
    return [read_attachment(one, f"/attachments/{index}", looks) for index, one in enumerate(value)]


def read_attachment(value: Any, path: str = "", looks: _Looks | None = None) -> Attachment:
    if not isinstance(value, dict):
        raise _wrong(path, f"is an object, got {_kind(value)}")
    kind = value.get("type")
    told: dict[str, Any]
    if kind == "tool_call_result":
        told = {name: _text(value, name, path, filled=True) for name in ("server_id", "tool")}
        told["result"] = _present(value, "result", path)
    elif kind == "file":
        told = _file(value, path)
    elif kind == "python_object":
        told = {"object": _present(value, "object", path)}
        _refuse_pickles(value, path, looks or _Looks())
    elif kind == "text_snippet":
        told = {"text": _text(value, "text", path)}
    else:
        raise _wrong(f"{path}/type", f"is one of {', '.join(ATTACHMENTS)}, got {_short(kind)}")
    extra = {name: given for name, given in value.items() if name not in told and name != "type"}
    return ATTACHMENTS[kind](**told, extra=extra)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\x00-\x1f]+\Z")


def _file(value: dict[str, Any], path: str) -> dict[str, Any]:
    given = [name for name in ("path", "url") if name in value]
    if len(given) != 1:
        raise _wrong(
            f"{path}/path", "is missing: a file has a path or a url" if not given else "and url are both given"
        )
    name = given[0]
    text = _text(value, name, path, filled=True)
    if name == "url" and not _URL.match(text):
        raise _wrong(f"{path}/url", f"is a whole address such as https://example.com/report.csv, got {_short(text)}")
    if "\0" in text:
        raise _wrong(f"{path}/path", "has a NUL in it")
    return {name: text}


def _text(value: dict[str, Any], name: str, path: str = "", *, filled: bool = False) -> str:
    given = _present(value, name, path)
    if not isinstance(given, str):
        raise _wrong(f"{path}/{name}", f"is a text, got {_kind(given)}")
    if filled and not given:
        raise _wrong(f"{path}/{name}", "is empty")
    return given


def _integer(value: dict[str, Any], name: str) -> int:
    given = _present(value, name, "")
    if type(given) is not int:
        raise _wrong(f"/{name}", f"is a whole number, got {_short(given)}")
    return given


def _present(value: dict[str, Any], name: str, path: str) -> Any:
    if name not in value:
        raise _wrong(f"{path}/{name}", "is missing")
    return value[name]


def _wrong(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{path} {why}".strip(), path=path)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 80 else written[:79] + "…"


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


class _Looks:
    """The budget for pickle checks in one message. Reading opcodes is slow, and blocks all other callers meanwhile."""

    def __init__(self) -> None:
        self.left = _MOST_LOOKS

    def take(self, count: int, path: str) -> None:
        self.left -= count
        if self.left < 0:
            raise _wrong(path, "looks like pickles for too long, which can run code: send the object as JSON")


def _refuse_pickles(value: dict[str, Any], path: str, looks: _Looks) -> None:
    """Refuses pickles. Loading a pickle runs code of its sender, so none may reach a place that might load it."""
    for name in _SAYS_HOW:
        if isinstance(value.get(name), str) and _PICKLERS.search(value[name]):
            raise _wrong(f"{path}/{name}", "names a format that can run code: send the object as JSON")
    stack: list[tuple[Any, str]] = [(value["object"], f"{path}/object")]
    while stack:
        item, at = stack.pop()
        if isinstance(item, str):
            if any(_is_pickle(body, looks, at) for body in _as_bytes(item)):
                raise _wrong(at, "is a pickle, which can run code: send the object as JSON")
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


def _is_pickle(body: bytes, looks: _Looks, path: str) -> bool:
    if b"." not in body or not (_EARLIER in body or any(mark in body for mark in _LATER)):
        return False  # it never ends, or nothing in it matters
    looks.take(_BEGUN, path)
    found = False
    try:
        for opcode, _, _ in pickletools.genops(io.BytesIO(body)):
            looks.take(1, path)
            found = found or opcode.name in _TELLING
    except InvalidRequest:
        raise
    except Exception:  # whatever it is, it is not a whole pickle
        return False
    return found


# -- time -----------------------------------------------------------------------------------------------------

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(time: int) -> str:
    """Returns microseconds since 1970 as a timestamp."""
    seconds, micros = divmod(time, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def time_of(text: str) -> int:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        spent = datetime.fromisoformat(text.upper()) - _EPOCH
    except (ValueError, OverflowError):
        raise _wrong(
            "/timestamp", f"is a time with its offset, such as 2025-06-01T12:00:00Z, got {_short(text)}"
        ) from None
    return (spent.days * 86400 + spent.seconds) * 1_000_000 + spent.microseconds
