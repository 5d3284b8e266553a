"""Reads JSON bodies within limits and answers with JSON, for every HTTP door.

A body has a size and a time in which it must arrive: a client that sends too much or too slowly disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ...model import json_values, trace_context
from ...model.errors import Invalid, InvalidRequest, TooLarge
from ...model.pointers import split_message
from .. import json_text
from ..channel import KEPT, size

T = TypeVar("T")

_A_MOMENT = 1.0
_EMPTY: dict[str, Any] = {}
_TRACE = {name.encode(): name for name in trace_context.NAMES}


class BodyLimits(Protocol):
    """The limits on one body, which are among the settings of a door."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def body_timeout(self) -> float: ...


class HttpLimits(msgspec.Struct, kw_only=True, frozen=True):
    max_body_bytes: int = 16 * 1024 * 1024
    body_timeout: float = 30.0


class SlowBody(InvalidRequest):
    """The body did not arrive in time."""

    code = "slow_body"


class WrongContentType(InvalidRequest):
    """The body is not JSON by its content type."""

    code = "wrong_content_type"


def header(request: Request, name: bytes) -> str | None:
    """Returns a header by its name in lower case. The server keeps headers as bytes; starlette's mapping decodes all of
    them at each lookup."""
    for key, value in request.scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def trace(request: Request) -> trace_context.Carrier | None:
    """The W3C trace context that a request came with."""
    return trace_of(request.scope["headers"])


def trace_of(headers: list[tuple[bytes, bytes]]) -> trace_context.Carrier | None:
    """Reads a trace context like `trace`, from raw headers. Several headers of one name are one list."""
    carrier: dict[str, str] = {}
    for key, value in headers:
        name = _TRACE.get(key)
        if name is not None:
            text = value.decode("latin-1")
            carrier[name] = f"{carrier[name]},{text}" if name in carrier else text
    return trace_context.read(carrier) if carrier else None


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    length = header(request, b"content-length")
    if length is not None and length.isdigit() and int(length) > limits.max_body_bytes:
        raise _too_large(await began(request), limits)
    # Most bodies are here already, with the head of their request: those need no clock.
    arriving = request.receive().__await__()
    try:
        awaited = next(arriving)
    except StopIteration as done:
        first = done.value
        if not first.get("more_body"):
            return _chunk(first, limits)
        awaited = None
    try:
        async with asyncio.timeout(limits.body_timeout):
            message = first if awaited is None else await _Rest(awaited, arriving)
            chunks = [_chunk(message, limits)]
            length_so_far = len(chunks[0])
            while message.get("more_body"):
                message = await request.receive()
                if length_so_far + len(message.get("body", b"")) > limits.max_body_bytes:
                    raise _too_large(b"".join(chunks), limits)
                chunks.append(_chunk(message, limits))
                length_so_far += len(chunks[-1])
    except TimeoutError:
        raise SlowBody(f"the body did not arrive within {limits.body_timeout:g} s") from None
    return b"".join(chunks)


def _chunk(message: Message, limits: BodyLimits) -> bytes:
    """Returns the bytes that an ASGI message adds to a body."""
    if message["type"] == "http.disconnect":
        raise InvalidRequest("the client left before its body was complete")
    chunk: bytes = message.get("body", b"")
    if len(chunk) > limits.max_body_bytes:
        raise _too_large(chunk, limits)
    return chunk


async def began(request: Request) -> bytes:
    """The beginning of a body that is refused unread. A client that waits until it may send sends nothing."""
    if header(request, b"expect") is not None:
        return b""
    try:
        async with asyncio.timeout(_A_MOMENT):
            chunk: bytes = (await request.receive()).get("body", b"")
            return chunk
    except TimeoutError:
        return b""


def _too_large(began: bytes, limits: BodyLimits) -> Invalid:
    return _unread(TooLarge(f"the body is larger than {size(limits.max_body_bytes)}"), began[:KEPT])


def _unread(error: Invalid, body: bytes) -> Invalid:
    """Attaches the unread body to an error, for code that looks for a request id in it."""
    error.refused_message = body
    return error


class _Rest:
    """The rest of a coroutine that has begun and waits for `awaited` now."""

    def __init__(self, awaited: Any, begun: Generator[Any, Any, Message]) -> None:
        self._awaited = awaited
        self._begun = begun

    def __await__(self) -> Generator[Any, Any, Message]:
        try:
            yield self._awaited
        except BaseException:
            self._begun.close()
            raise
        return (yield from self._begun)


async def read_json(request: Request, type_: type[T], limits: BodyLimits, *, optional: bool = False) -> T:
    """The body as a value of a wire type. What does not fit is named with its path."""
    body = await read_body(request, limits)
    if not body and optional:
        return msgspec.convert(_EMPTY, type_)
    content_type = (header(request, b"content-type") or "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise WrongContentType(f"the body is {content_type!r}; send application/json")
    return decode_json(body, type_)


def decode_json(body: bytes, type_: type[T]) -> T:
    try:
        decoded = json_text.decode_as(body, lambda data: msgspec.json.decode(data, type=type_), numbers="refuse")
    except msgspec.ValidationError as error:
        text, path = split_message(str(error))
        raise InvalidRequest(f"{text} (at {path})" if path else text, path=path) from None
    except json_text.TooDeep:
        raise _unread(TooLarge("the body is nested too deeply"), body) from None
    except json_text.Unreadable as error:
        raise _unread(InvalidRequest(f"the body cannot be read: {error}"), body) from None
    if not json_values.is_plain(body):
        json_values.check(msgspec.to_builtins(decoded), InvalidRequest, what="body")
    return decoded


class _Json(Response):
    """A response whose headers are known: starlette's way of making them costs more than writing the body."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str] | None) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        if headers:
            self.raw_headers += [(name.lower().encode("latin-1"), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a WebSocket that is refused
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _Json(msgspec.json.encode(value), status, headers)
