"""Checks the shape of messages: the envelope that all types share, and the members of each type."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
from ...rows import Row, Source, add
from ..driver import Driver, attached, called, kind, suite
from ..scenes import errors, everything, talks
from ..wires import TEXTS, Json

KINDS: dict[str, tuple[str, ...]] = {
    "tool_call_result": ("server_id", "tool", "result"),
    "file": (),
    "python_object": ("object",),
    "text_snippet": ("text",),
}
"""The types of attachments, and what each has. A file has a path or a URL."""


def timestamp(told: Json) -> Any:
    """Returns the time at which a message was sent: a member of the message, or of its metadata."""
    about = told.get("metadata")
    return told.get("timestamp", about.get("timestamp") if isinstance(about, dict) else None)


async def meant_as(d: Driver, wanted: str) -> list[Json]:
    """Returns all messages that are meant to have a type, whatever type they name."""
    found = [told for told in await everything(d) if kind(told) == wanted]
    applies(found, f"the server showed no {wanted}")
    return found


def filled(told: Json, name: str) -> str:
    text = member(told, name, str, called(told))
    expect(text, f"the {name} of {called(told)} is empty: {shown(told)}")
    return text


def _timed(when: Any, where: str) -> None:
    known = isinstance(when, str | int | float) and not isinstance(when, bool) and when != ""
    expect(known, f"{where} has no timestamp")


def fitting(told: Json, where: str = "") -> None:
    """Raises Broken if the attachments of a message have a mistake."""
    if "attachments" not in told:  # as the document's own examples do
        return
    for one in member(told, "attachments", list, called(told)):
        named = member(one, "type", str, f"an attachment of {called(told)}")
        expect(named in KINDS, f"there is no type of attachment {shown(named)}: {shown(one)}")


async def _recorded(d: Driver) -> list[Json]:
    recorded = [told for talk in await talks(d) if talk.recorded for told in talk.said]
    applies(recorded, "the server keeps no record that could be read")
    return recorded


async def _typed(d: Driver) -> list[Json]:
    return [told for told in await everything(d) if isinstance(told.get("type"), str)]


async def _asking(d: Driver) -> list[Json]:
    asking = [told for told in await meant_as(d, "oversight_inquiry") if attached(told)]
    applies(asking, "no oversight_inquiry had attachments")
    return asking


def _of(wanted: str) -> Source:
    """The messages that are meant to have a type."""

    async def play(d: Driver) -> list[Json]:
        return await meant_as(d, wanted)

    return Source(play, f"what has {TEXTS[wanted]}", each=True)


MESSAGE, NOTICE, INQUIRY = _of("message"), _of("delegation_notice"), _of("oversight_inquiry")
_PREFIXES = {
    "message": "cap.message",
    "delegation_notice": "cap.delegation-notice",
    "error_response": "cap.error-response",
}
_ENVELOPE = ("task_id", "sender_id", "recipient_id", "type")
_ALL, _RECORD = Source(everything, called, each=True), Source(_recorded, called, each=True)
add(
    suite,
    # The envelope.
    Row("cap.overview.message-types", Source(_typed, called, each=True), "type", one_of=tuple(TEXTS)),
    *(Row("cap.message.unified-envelope", _ALL, name, str) for name in _ENVELOPE),
    *(
        Row(f"cap.observability.metadata-{name.replace('_', '-')}", _ALL, name, str, filled=True)
        for name in _ENVELOPE
    ),
    Row(
        "cap.observability.metadata-timestamp",
        Source(everything, called, each=True, value=timestamp), fits=_timed,
    ),
    *(Row("cap.audit.carries-metadata", _RECORD, name, str, filled=True) for name in _ENVELOPE),
    Row("cap.audit.carries-metadata", Source(_recorded, called, each=True, value=timestamp), fits=_timed),
    # The types.
    *(Row(f"{prefix}.type", _of(wanted), "type", str, equals=wanted) for wanted, prefix in _PREFIXES.items()),
    *(
        Row(f"{prefix}.{name.replace('_', '-')}", _of(wanted), name, str)
        for wanted, prefix in _PREFIXES.items()
        for name in ("task_id", "sender_id", "recipient_id", TEXTS[wanted])
    ),
    Row("cap.example-flow.inquiry-type", INQUIRY, "type", str, equals="oversight_inquiry"),
    Row("cap.example-flow.inquiry-field", INQUIRY, "inquiry", str),
    Row("cap.error-response.error-code", Source(errors, "an error_response", each=True), "error_code", int),
    Row("cap.message.attachments", MESSAGE, fits=fitting),
    Row("cap.delegation-notice.attachments", NOTICE, fits=fitting),
    Row("cap.example-flow.inquiry-attachments", Source(_asking, called, each=True), fits=fitting),
)  # fmt: skip
