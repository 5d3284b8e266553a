"""Checks the shape of messages: the envelope that all types share, and the members of each type."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
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


# -- the envelope ---------------------------------------------------------------------------------------------


@suite.check("cap.overview.message-types")
async def every_message_is_of_a_type_that_the_document_has(d: Driver) -> None:
    for told in await everything(d):
        named = told.get("type")
        if isinstance(named, str):
            expect(named in TEXTS, f"there is no type of message {shown(named)}: {shown(told)}")


@suite.check("cap.message.unified-envelope")
async def every_message_has_the_same_envelope(d: Driver) -> None:
    for told in await everything(d):
        for name in ("type", "task_id", "sender_id", "recipient_id"):
            expect(isinstance(told.get(name), str), f"{called(told)} has no text as its {name}: {shown(told)}")


def _envelope(name: str) -> None:
    @suite.check(f"cap.observability.metadata-{name.replace('_', '-')}")
    async def every_message_has_it(d: Driver) -> None:
        for told in await everything(d):
            filled(told, name)


for _name in ("task_id", "sender_id", "recipient_id", "type"):
    _envelope(_name)


def _timed(told: Json) -> None:
    when = timestamp(told)
    known = isinstance(when, str | int | float) and not isinstance(when, bool) and when != ""
    expect(known, f"{called(told)} has no timestamp: {shown(told)}")


@suite.check("cap.observability.metadata-timestamp")
async def every_message_has_a_timestamp(d: Driver) -> None:
    for told in await everything(d):
        _timed(told)


@suite.check("cap.audit.carries-metadata")
async def every_message_of_the_record_has_what_an_audit_needs(d: Driver) -> None:
    recorded = [told for talk in await talks(d) if talk.recorded for told in talk.said]
    applies(recorded, "the server keeps no record that could be read")
    for told in recorded:
        for name in ("task_id", "sender_id", "recipient_id", "type"):
            filled(told, name)
        _timed(told)


# -- the types ------------------------------------------------------------------------------------------------


def _type(wanted: str, requirement: str) -> None:
    @suite.check(requirement)
    async def it_names_its_type(d: Driver) -> None:
        for told in await meant_as(d, wanted):
            named = member(told, "type", str, f"what has {TEXTS[wanted]}")
            expect(named == wanted, f"what has {TEXTS[wanted]} is of type {shown(named)}, not {wanted}: {shown(told)}")


def _text(wanted: str, name: str, requirement: str) -> None:
    @suite.check(requirement)
    async def it_has_a_text(d: Driver) -> None:
        for told in await meant_as(d, wanted):
            member(told, name, str, called(told))


for _wanted, _prefix in (
    ("message", "cap.message"), ("delegation_notice", "cap.delegation-notice"), ("error_response", "cap.error-response")
):  # fmt: skip
    _type(_wanted, f"{_prefix}.type")
    for _name in ("task_id", "sender_id", "recipient_id", TEXTS[_wanted]):
        _text(_wanted, _name, f"{_prefix}.{_name.replace('_', '-')}")

_type("oversight_inquiry", "cap.example-flow.inquiry-type")
_text("oversight_inquiry", "inquiry", "cap.example-flow.inquiry-field")


@suite.check("cap.error-response.error-code")
async def an_error_has_a_whole_number(d: Driver) -> None:
    for told in await errors(d):
        member(told, "error_code", int, "an error_response")


def fitting(told: Json) -> None:
    """Raises Broken if the attachments of a message have a mistake."""
    if "attachments" not in told:  # as the document's own examples do
        return
    for one in member(told, "attachments", list, called(told)):
        named = member(one, "type", str, f"an attachment of {called(told)}")
        expect(named in KINDS, f"there is no type of attachment {shown(named)}: {shown(one)}")


@suite.check("cap.message.attachments")
async def the_attachments_of_a_message_are_a_list(d: Driver) -> None:
    for told in await meant_as(d, "message"):
        fitting(told)


@suite.check("cap.delegation-notice.attachments")
async def the_attachments_of_a_notice_are_those_of_a_message(d: Driver) -> None:
    for told in await meant_as(d, "delegation_notice"):
        fitting(told)


@suite.check("cap.example-flow.inquiry-attachments")
async def an_inquiry_can_have_attachments(d: Driver) -> None:
    asking = [told for told in await meant_as(d, "oversight_inquiry") if attached(told)]
    applies(asking, "no oversight_inquiry had attachments")
    for told in asking:
        fitting(told)
