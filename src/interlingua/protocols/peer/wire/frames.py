"""Frames: the JSON objects that two peers send each other, made and read.

Constructors leave out absent members. Readers are lenient with older and newer peers (unknown members are ignored, and
members that v0.5 did not have may be missing) and strict with anything misleading. Nothing is sent, stored or signed
here.
"""

from __future__ import annotations

import datetime
import re
import secrets
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from ....model import json_values
from ....model.errors import InvalidRequest
from ....transports import json_text
from ..translate import parts as parts_
from ..translate.task_states import State, check_state

PRIORITIES = ("critical", "high", "normal", "low")
ROLES = ("user", "agent")
LOST = "lost"
"""The code of a task that is asked for again, and that a node no longer has."""

# The types that the reference signs. The others carry nothing that a signature would protect.
SIGNED = frozenset({"acp.message", "acp.reply", "task.delegate", "task.updated", "task.cancel"})

MAX_ID = 256  # characters of any id

QUESTION = "interlingua/question"
"""In the metadata of a message on a task: the id of the question that it answers. The task may ask another by then."""

Frame = dict[str, Any]

# -- time and ids ---------------------------------------------------------------------------------------------

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:[.,](\d+))?\s*([Zz]|[+-]\d\d:?\d\d)?", re.ASCII)


def now_z() -> str:
    """Returns the present time, in UTC with microseconds. It ends in Z: an offset ends a connection to the reference
    (2.19)."""
    microseconds = time.time_ns() // 1000
    return f"{_second(microseconds // 1_000_000)}.{microseconds % 1_000_000:06d}Z"


def stamp(microseconds: int) -> str:
    return f"{_second(microseconds // 1_000_000)}.{microseconds % 1_000_000:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def seconds_of(ts: Any) -> float | None:
    """Returns a timestamp as seconds since 1970: text of ISO 8601 with any fraction, or the milliseconds that relays
    make of it. Without a zone it is UTC. Returns None where it is neither."""
    if isinstance(ts, bool):
        return None
    if isinstance(ts, int | float):
        return ts / 1000 if 0 < ts < 1e15 else None
    match = _STAMP.fullmatch(ts.strip()) if isinstance(ts, str) and len(ts) <= 64 else None
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        whole = datetime.datetime.fromisoformat(f"{day}T{clock}{zone}").timestamp()
    except ValueError:
        return None
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


def new_id(kind: str = "msg") -> str:
    """Returns a new id: `msg_` with 16 hexadecimal digits; of other kinds (task, card, ping …) 12."""
    return f"{kind}_{secrets.token_hex(8 if kind == 'msg' else 6)}"


UNREADABLE = "unreadable"
"""The type of the object that replaces an unreadable frame on the side of the mount: the readable members, and
`why`."""

# -- bytes ----------------------------------------------------------------------------------------------------

encode = msgspec.json.encode


def decode(data: bytes | str) -> Frame:
    """Decodes one frame. Raises InvalidRequest where it is no JSON object."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    try:
        # The halves of characters in a chunk are joined where it is shown.
        frame = json_text.decode_pieces(data, lambda one: isinstance(one, dict) and "chunk" in one)
    except json_text.Unreadable as error:
        raise InvalidRequest(f"the frame cannot be read: {error}") from None
    if not isinstance(frame, dict):
        raise InvalidRequest(f"a frame is a JSON object, got {type(frame).__name__}")
    if not json_values.is_plain(raw):
        json_values.check(frame, InvalidRequest, what="frame", halves=True)
    return frame


# -- making ---------------------------------------------------------------------------------------------------


def agent_card(card: dict[str, Any], **more: Any) -> Frame:
    return {"type": "acp.agent_card", "message_id": new_id("card"), "ts": now_z(), "card": card, **_given(more)}


def message(
    sender: str,
    role: str,
    parts: list[dict[str, Any]],
    *,
    message_id: str | None = None,
    server_seq: int | None = None,
    task_id: str | None = None,
    context_id: str | None = None,
    correlation_id: str | None = None,
    to_peer: str | None = None,
    priority: str = "normal",
    delivery_ack: bool | None = None,
    ts: str | None = None,
    **more: Any,
) -> Frame:
    optional = {
        "task_id": task_id, "context_id": context_id, "correlation_id": correlation_id, "to_peer": to_peer,
        "delivery_ack": delivery_ack, **more,
    }  # fmt: skip
    frame: Frame = {"type": "acp.message", "message_id": message_id or new_id()}
    if server_seq is not None:
        frame["server_seq"] = server_seq
    frame |= {"ts": ts or now_z(), "from": sender, "role": role, "parts": parts, "priority": priority}
    return frame | _given(optional)


def reply(
    sender: str, correlation_id: str, *, content: Any = None, parts: list[dict[str, Any]] | None = None, **more: Any
) -> Frame:
    """Returns the answer to a message. Content and parts are there even when they are null, as the reference has it."""
    return _headed("acp.reply", sender, correlation_id=correlation_id, content=content, parts=parts, **_given(more))


def answered_in(body: dict[str, Any]) -> str | None:
    """Returns the id of the question that a message on a task answers, where its sender gives it."""
    metadata = body.get("metadata")
    named = metadata.get(QUESTION) if isinstance(metadata, dict) else None
    return named if isinstance(named, str) else None


def delegate(sender: str, task_id: str, payload: dict[str, Any], **more: Any) -> Frame:
    return _headed("task.delegate", sender, task_id=task_id, payload=payload, **_given(more))


def updated(sender: str, task_id: str, status: str, *, artifact: dict[str, Any] | None = None, **more: Any) -> Frame:
    """Returns an update of a task. A chunk of an artifact is marked inside it, by `append` and `last_chunk`."""
    return _headed("task.updated", sender, task_id=task_id, status=status, artifact=artifact, **_given(more))


def cancel(sender: str, task_id: str, **more: Any) -> Frame:
    """Returns a cancel, a frame of this project: the reference has none. Only for peers whose card has
    task_delegation."""
    return _headed("task.cancel", sender, task_id=task_id, **_given(more))


def error(code: str, text: str | None = None, **more: Any) -> Frame:
    return {"type": "error", "code": code, **_given({"message": text, **more})}


def ping(sender: str, nonce: str | None = None) -> Frame:
    return {"type": "acp.ping", "nonce": nonce or new_id("ping"), "from": sender, "ts": now_z()}


def pong(sender: str, nonce: str) -> Frame:
    return {"type": "acp.pong", "nonce": nonce, "from": sender, "ts": now_z()}


def delivered(sender: str, message_id: str) -> Frame:
    return {"type": "acp.delivered", "message_id": message_id, "from": sender, "ts": now_z()}


def read_receipt(sender: str, message_id: str) -> Frame:
    return {"type": "acp.read", "message_id": message_id, "from": sender, "ts": now_z()}


def typing(sender: str, is_typing: bool) -> Frame:
    return {"type": "acp.typing", "from": sender, "typing": is_typing, "ts": now_z()}


def ack(sender: str, message_id: str) -> Frame:
    return {"type": "acp.ack", "ack_message_id": message_id, "from": sender, "timestamp": time.time_ns() // 1_000_000}


def hello(token: str, **more: Any) -> Frame:
    """Returns a hello, a frame of this project: the first frame of a connection whose address has no place for the
    token."""
    return {"type": "acp.hello", "token": token, **_given(more)}


def _headed(kind: str, sender: str, **members: Any) -> Frame:
    return {"type": kind, "message_id": members.pop("message_id", None) or new_id(), "ts": now_z(), "from": sender,
            **members}  # fmt: skip


def _given(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


# -- reading --------------------------------------------------------------------------------------------------


class Message(msgspec.Struct, kw_only=True):
    message_id: str | None
    sender: str | None
    role: str
    parts: list[dict[str, Any]]
    ts: Any = None
    server_seq: int | None = None
    task_id: str | None = None
    context_id: str | None = None
    correlation_id: str | None = None
    priority: str = "normal"
    delivery_ack: bool = False
    was_queued: bool = False
    broadcast: bool = False


class Card(msgspec.Struct):
    card: dict[str, Any]


class Reply(msgspec.Struct, kw_only=True):
    correlation_id: str
    message_id: str | None
    sender: str | None
    parts: list[dict[str, Any]] | None
    content: Any


class Delegate(msgspec.Struct, kw_only=True):
    task_id: str
    message_id: str | None
    sender: str | None
    payload: dict[str, Any]
    parts: list[dict[str, Any]] | None  # the input, where the payload has it


class Updated(msgspec.Struct, kw_only=True):
    task_id: str
    status: State
    message_id: str | None
    sender: str | None
    artifact: dict[str, Any] | None
    error: str | None


class Cancel(msgspec.Struct):
    task_id: str
    message_id: str | None
    sender: str | None


class Ping(msgspec.Struct):
    nonce: str


class Pong(msgspec.Struct):
    nonce: str


class Delivered(msgspec.Struct):
    """The peer's confirmation of a message. The acp.ack of later versions means the same."""

    message_id: str


class Read(msgspec.Struct):
    message_id: str


class Typing(msgspec.Struct):
    typing: bool


class Refused(msgspec.Struct):
    code: str
    message: str | None


class Hello(msgspec.Struct):
    token: str


class Legacy(msgspec.Struct):
    """A frame of an unknown type, and without parts: programs sent such frames before there was an envelope."""

    message_id: str | None
    content: Frame


Content = (
    Message | Card | Reply | Delegate | Updated | Cancel | Ping | Pong | Delivered | Read | Typing | Refused | Hello
    | Legacy
)  # fmt: skip


def read(frame: Frame) -> Content:
    """Returns the content of a frame. Raises InvalidRequest, with the path, where a member is invalid."""
    kind = frame.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is not None:
        return reader(frame)
    if isinstance(frame.get("parts"), list):  # whatever it is called, it is a message
        return _message(frame)
    return Legacy(_id(frame, "message_id") or _id(frame, "id"), frame)


def check_role(value: Any, path: str = "role") -> str:
    if value not in ROLES:
        raise InvalidRequest(f"/{path} is user or agent, got {value!r:.80}", path=f"/{path}")
    return str(value)


def check_priority(value: Any, path: str = "priority") -> str:
    """Returns a priority, normal where none is given."""
    if value is None:
        return "normal"
    if value not in PRIORITIES:
        raise InvalidRequest(f"/{path} is one of {', '.join(PRIORITIES)}, got {value!r:.80}", path=f"/{path}")
    return str(value)


def check_id(value: Any, path: str) -> str:
    """Returns an id of another party: any text that can stand in a path or a log."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID or not value.isprintable():
        raise InvalidRequest(
            f"/{path} is a text of 1 to {MAX_ID} printable characters, got {value!r:.80}", path=f"/{path}"
        )
    return value


def _message(frame: Frame) -> Message:
    priority, seq = frame.get("priority"), frame.get("server_seq")
    given = frame.get("parts")
    return Message(
        message_id=_id(frame, "message_id") or _id(frame, "id"),
        sender=_sender(frame),
        # Before v0.9 a missing role meant user, and peers from v0.5 on are welcome. A wrong one never was.
        role=check_role(frame.get("role") or "user"),
        parts=parts_.known_parts(given) if given is not None else parts_.parts_of(frame),
        ts=frame.get("ts"),
        server_seq=seq if type(seq) is int else None,
        task_id=_id(frame, "task_id"),
        context_id=_id(frame, "context_id"),
        correlation_id=_id(frame, "correlation_id"),
        priority=priority if priority in PRIORITIES else "normal",  # a hint: no reason to lose a message
        delivery_ack=frame.get("delivery_ack") is True,
        was_queued=frame.get("_was_queued") is True,
        broadcast=frame.get("broadcast") is True,
    )


def _card(frame: Frame) -> Card:
    return Card(_object(frame, "card"))


def _reply(frame: Frame) -> Reply:
    given = frame.get("parts")
    return Reply(
        correlation_id=check_id(frame.get("correlation_id"), "correlation_id"),
        message_id=_id(frame, "message_id"),
        sender=_sender(frame),
        parts=parts_.known_parts(given) if given else None,
        content=frame.get("content"),
    )


def _delegate(frame: Frame) -> Delegate:
    payload = frame.get("payload")
    payload = payload if isinstance(payload, dict) else {} if payload is None else {"input": payload}
    return Delegate(
        task_id=check_id(frame.get("task_id"), "task_id"),
        message_id=_id(frame, "message_id"),
        sender=_sender(frame),
        payload=payload,
        parts=parts_.input_of(payload if payload.get("input") is not None else {**payload, "payload": payload}),
    )


def _updated(frame: Frame) -> Updated:
    artifact, failure = frame.get("artifact"), frame.get("error")
    if artifact is not None:
        artifact = _object(frame, "artifact")
        given = artifact.get("parts")
        # The reference takes any object for an artifact: one without parts is data.
        found = parts_.known_parts(given, "artifact/parts") if given is not None else [parts_.data(artifact)]
        artifact = {**artifact, "parts": found} if given is not None else {"parts": found}
    return Updated(
        task_id=check_id(frame.get("task_id"), "task_id"),
        status=check_state(frame.get("status") if frame.get("status") is not None else frame.get("state")),
        message_id=_id(frame, "message_id"),
        sender=_sender(frame),
        artifact=artifact,
        error=failure if isinstance(failure, str) or failure is None else json_values.canonical(failure).decode(),
    )


def _cancel(frame: Frame) -> Cancel:
    return Cancel(check_id(frame.get("task_id"), "task_id"), _id(frame, "message_id"), _sender(frame))


def _refused(frame: Frame) -> Refused:
    code = frame.get("code") or frame.get("error_code")
    text = frame.get("message") or frame.get("error")
    return Refused(code if isinstance(code, str) else "unknown", text if isinstance(text, str) else None)


def _object(frame: Frame, name: str) -> dict[str, Any]:
    value = frame.get(name)
    if not isinstance(value, dict):
        raise InvalidRequest(f"/{name} is an object, got {value!r:.80}", path=f"/{name}")
    return value


def _id(frame: Frame, name: str) -> str | None:
    value = frame.get(name)
    return None if value is None else check_id(value, name)


def _sender(frame: Frame) -> str | None:
    sender = frame.get("from")
    return sender[:MAX_ID] if isinstance(sender, str) else None


def _named(name: str) -> Callable[[Frame], str]:
    return lambda frame: check_id(frame.get(name), name)


_nonce, _message_id, _acked, _token = map(_named, ("nonce", "message_id", "ack_message_id", "token"))

_READERS: dict[str, Callable[[Frame], Content]] = {
    "acp.message": _message,
    "acp.agent_card": _card,
    "acp.reply": _reply,
    "task.delegate": _delegate,
    "task.updated": _updated,
    "task.cancel": _cancel,
    "acp.ping": lambda frame: Ping(_nonce(frame)),
    "acp.pong": lambda frame: Pong(_nonce(frame)),
    "acp.delivered": lambda frame: Delivered(_message_id(frame)),
    "acp.ack": lambda frame: Delivered(_acked(frame)),
    "acp.read": lambda frame: Read(_message_id(frame)),
    "acp.typing": lambda frame: Typing(frame.get("typing") is not False),
    "acp.hello": lambda frame: Hello(_token(frame)),
    "error": _refused,
}
