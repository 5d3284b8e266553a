"""The wire types between participants of a team: four kinds of messages, error codes and task ids.

Messages are read strictly, and a fault is reported with its path. They are written back as they came: unknown members
are kept. Their attachments are in `model.team.attachments`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from ...model import json_values
from ...model.card import Schema
from ...model.errors import InvalidRequest
from ...model.team import manifest
from ...model.team.attachments import (
    Attachment,
    PickleBudget,
    fault,
    kind_of,
    member,
    read_attachment,
    shortened,
    text_member,
    written,
)
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
        raise fault("", f"a message is an object, got {kind_of(value)}")
    json_values.check(value, InvalidRequest, what="message")
    kind = MESSAGES.get(value["type"]) if isinstance(value.get("type"), str) else None
    if kind is None:
        raise fault("/type", f"is one of {', '.join(MESSAGES)}, got {shortened(value.get('type'))}")
    told: dict[str, Any] = {"task_id": text_member(value, "task_id", filled=True)}
    for name in ("sender_id", "recipient_id"):
        told[name] = _participant(value, name)
    told[_SAYS[kind]] = text_member(value, _SAYS[kind])
    if kind is ErrorResponse:
        told["error_code"] = _integer(value, "error_code")
    elif "attachments" in value:
        told["attachments"] = _attachments(value["attachments"])
    if "timestamp" in value:
        told["timestamp"] = text_member(value, "timestamp")
        time_of(told["timestamp"])
    if "metadata" in value:
        if not isinstance(value["metadata"], dict):
            raise fault("/metadata", f"is an object, got {kind_of(value['metadata'])}")
        told["metadata"] = value["metadata"]
    told["extra"] = {name: given for name, given in value.items() if name not in told and name != "type"}
    return kind(**told)


def is_error(value: Any) -> bool:
    """Tells if a message is an error, well-formed or not: an error is never answered with an error."""
    return isinstance(value, dict) and value.get("type") == "error_response"


def write(message: AnyMessage) -> dict[str, Any]:
    """Returns a message as a JSON object. Unset members are left out."""
    return written(message, message.type)


def _participant(value: dict[str, Any], name: str) -> str:
    """An agent, an instance of one, the user or the orchestrator."""
    given = text_member(value, name)
    if len(given) > MAX_ID:
        raise fault(f"/{name}", f"has at most {MAX_ID} characters, got {len(given)}")
    try:
        manifest.instance_of(given)
    except InvalidRequest:
        raise fault(
            f"/{name}", f"is the id of an agent or instance, user or orchestrator, got {shortened(given)}"
        ) from None
    return given


def _attachments(value: Any) -> list[Attachment]:
    if not isinstance(value, list):
        raise fault("/attachments", f"is a list, got {kind_of(value)}")
    if len(value) > MAX_ATTACHMENTS:
        raise fault("/attachments", f"holds at most {MAX_ATTACHMENTS}, got {len(value)}")
    budget = PickleBudget()
    return [read_attachment(one, f"/attachments/{index}", budget) for index, one in enumerate(value)]


def _integer(value: dict[str, Any], name: str) -> int:
    given = member(value, name, "")
    if type(given) is not int:
        raise fault(f"/{name}", f"is a whole number, got {shortened(given)}")
    return given


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
        raise fault(
            "/timestamp", f"is a time with its offset, such as 2025-06-01T12:00:00Z, got {shortened(text)}"
        ) from None
    return (spent.days * 86400 + spent.seconds) * 1_000_000 + spent.microseconds
