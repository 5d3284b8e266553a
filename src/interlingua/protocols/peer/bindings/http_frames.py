"""Translates the answers and events of a node's HTTP API into frames. Pure."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import httpx2

from ....transports import json_text
from ....transports.http.sse import Received
from ..translate import parts
from ..wire import frames
from ..wire.frames import UNREADABLE

log = logging.getLogger("interlingua.peer")

Frame = dict[str, Any]


def message_of(sender: str, told: dict[str, Any]) -> Frame:
    """Returns the frame of a message event."""
    return frames.message(
        str(told.get("from") or sender),
        told["role"] if told.get("role") in frames.ROLES else "agent",
        parts.known_parts(told.get("parts")),
        message_id=told.get("message_id"),
        task_id=told.get("task_id"),
        context_id=told.get("context_id"),
        correlation_id=told.get("correlation_id"),
    )


def reply_of(sender: str, asked: str, told: dict[str, Any]) -> Frame:
    return {**frames.reply(sender, asked), **told, "type": "acp.reply", "correlation_id": asked}


def asked_of(sender: str, frame: Frame, task: dict[str, Any], question: dict[str, Any]) -> Frame:
    """Returns the question of a message that has become a task, as a frame for the message's sender."""
    said = [parts.text(str(question.get("prompt") or "")), parts.data({"question": question})]
    return frames.message(
        sender, "agent", said, task_id=str(task.get("id")), context_id=frame.get("context_id"),
        correlation_id=frame["message_id"],
    )  # fmt: skip


def task_path(id_: str) -> str:
    return f"/tasks/{quote(id_, safe='')}"


def object_of(answer: httpx2.Response) -> dict[str, Any]:
    """Returns the object in an answer; an error object where it cannot be read."""
    try:
        told = json_text.decode(answer.content)
    except json_text.Unreadable as error:
        return {"error_code": UNREADABLE, "error": f"the answer cannot be read: {error}"} if answer.content else {}
    return told if isinstance(told, dict) else {}


def data_of(event: Received) -> dict[str, Any]:
    """Returns the data of an event. Pieces of an output keep halves of characters, which are joined where they are
    shown."""
    try:
        told = json_text.decode_pieces(event.data, lambda one: isinstance(one, dict) and one.get("type") == "artifact")
    except json_text.Unreadable as error:
        log.warning("an event cannot be read: %s", error)
        return {"type": UNREADABLE}
    return told if isinstance(told, dict) else {}


def seq_of(event: Received) -> str | None:
    """Returns the number of an event. The reference (2.19) numbers its events only in their data."""
    seq = data_of(event).get("seq")
    return str(seq) if type(seq) is int else None


def error_in(told: dict[str, Any]) -> str:
    return str(told.get("error") or told.get("message") or "no reason was given")[:1000]


def words_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


def code_in(status: int, told: dict[str, Any]) -> str:
    """Returns the code of an error: a node of this project sends its own code beside the protocol's."""
    own = told.get("code")
    if isinstance(own, str) and own:
        return own
    return str(told.get("error_code") or f"http_{status}").lower().removeprefix("err_")
