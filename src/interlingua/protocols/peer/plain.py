"""The frame that nearly all are, read in one step: a message of text, with nothing about it that needs a second look.

Whatever differs in the least (other members, other parts, a signature, an odd id) is not read here, and nothing is
refused here: `frames` reads it, and says what is wrong with it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .frames import MAX_ID
from .parts import MAX_PARTS

_BEGINS = b'{"type":"acp.message",'  # as our own nodes write it; others may, and need not


class Text(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    content: str


class Message(msgspec.Struct, tag_field="type", tag="acp.message", forbid_unknown_fields=True, gc=False):
    message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID)]
    ts: str
    sender: Annotated[str, msgspec.Meta(max_length=MAX_ID)] = msgspec.field(name="from")
    role: Literal["user", "agent"]
    parts: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    priority: Literal["critical", "high", "normal", "low"]
    server_seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    to_peer: str = ""


_decode = msgspec.json.Decoder(Message).decode


def read(data: bytes) -> Message | None:
    """The message that a frame is; None where it is anything else."""
    if not data.startswith(_BEGINS):
        return None
    try:
        message = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return message if message.message_id.isprintable() else None
