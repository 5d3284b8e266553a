"""Reads messages and answers for the channel to a server at an address, and keeps the state of a request on its way.

Nothing is sent or decided here: `http_channel` does that.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import msgspec

from ....transports import json_text
from ....transports.http.sse import Reader
from ....transports.jsonrpc.core import Id

_MAX_EVENT = 64 * 1024 * 1024
MESSAGE = ("message", "", None)  # events of other kinds are signs of life and the like


class Exchange:
    """A request, until it has been answered."""

    def __init__(self, id_: Id | None = None, token: Any = None) -> None:
        self.id = id_
        self.token = token  # the progress token, by which its run is known
        self.sent = asyncio.Event()  # the server has begun to answer
        self.answered = False
        self.last_id: str | None = None
        self.retry = 0.0  # seconds that the server wants us to wait before we come back
        self.events = 0
        self.task: asyncio.Task[Any] | None = None


class Message(msgspec.Struct):
    """The members that tell the request of a message."""

    id: Any = None
    method: str | None = None
    params: Any = None

    def member(self, *path: str) -> Any:
        value: Any = self.params
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


class Seen(msgspec.Struct):
    id: Any = None
    method: str | msgspec.UnsetType | None = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def answers(self, id_: Id | None) -> bool:
        """Tells if a message answers a request, exactly as the connection decides it: if the connection ignored an
        answer that counts here, the request would wait for ever. (1.0 is no 1.)"""
        is_answer = self.result is not msgspec.UNSET or self.error is not msgspec.UNSET
        return is_answer and self.method is msgspec.UNSET and type(self.id) is type(id_) and bool(self.id == id_)


message_of = msgspec.json.Decoder(Message).decode
_seen = msgspec.json.Decoder(Seen).decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


def seen_in(frame: bytes) -> list[Seen]:
    """Returns the messages of a frame. Raises ValueError where it cannot be read."""
    batch = frame.lstrip()[:1] == b"["
    return (
        [_seen(bytes(message)) for message in json_text.decode_as(frame, _raws)]
        if batch
        else [json_text.decode_as(frame, _seen)]
    )


def reader() -> Reader:
    return Reader(_MAX_EVENT)


async def whole_of(answer: httpx2.Response) -> bytes:
    """Returns the body, up to the size that a message may have."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > _MAX_EVENT:
            raise ValueError(f"an answer is longer than {_MAX_EVENT} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def error_in(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json_text.decode(body)
    except json_text.Unreadable:
        return None
    error = answer.get("error") if isinstance(answer, dict) and "jsonrpc" in answer else None
    return error if isinstance(error, dict) else None


def version_in(frame: bytes) -> str | None:
    answer = json_text.decode(frame)
    result = answer.get("result") if isinstance(answer, dict) else None
    version = result.get("protocolVersion") if isinstance(result, dict) else None
    return version if isinstance(version, str) else None
