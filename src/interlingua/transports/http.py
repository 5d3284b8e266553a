"""What every HTTP door needs: reading a JSON body within limits, and answering with JSON.

A body has a size and a time in which it must arrive: whoever sends too much or too slowly disturbs nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..model import values
from ..model.errors import InvalidRequest, TooLarge

T = TypeVar("T")

_EMPTY: dict[str, Any] = {}


class HttpLimits(msgspec.Struct, kw_only=True, frozen=True):
    max_body_bytes: int = 16 * 1024 * 1024
    body_timeout: float = 30.0


class SlowBody(InvalidRequest):
    """The body did not arrive in time."""

    code = "slow_body"


class WrongContentType(InvalidRequest):
    """The body is not JSON by its content type."""

    code = "wrong_content_type"


async def read_body(request: Request, limits: HttpLimits) -> bytes:
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > limits.max_body_bytes:
        raise TooLarge(f"the body is larger than {limits.max_body_bytes} bytes")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_body_bytes:
                    raise TooLarge(f"the body is larger than {limits.max_body_bytes} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise SlowBody(f"the body did not arrive within {limits.body_timeout:g} s") from None
    except ClientDisconnect:
        raise InvalidRequest("the client left before its body was complete") from None
    return b"".join(chunks) if len(chunks) != 1 else chunks[0]


async def read_json(request: Request, type_: type[T], limits: HttpLimits, *, optional: bool = False) -> T:
    """The body as a value of a wire type. What does not fit is named with its path."""
    body = await read_body(request, limits)
    if not body and optional:
        return msgspec.convert(_EMPTY, type_)
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise WrongContentType(f"the body is {content_type!r}; send application/json")
    return decode_json(body, type_)


def decode_json(body: bytes, type_: type[T]) -> T:
    try:
        decoded = msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        text, _, path = str(error).rpartition(" - at `")
        raise InvalidRequest(str(error) if not text else f"{text} (at {_pointer(path)})", path=_pointer(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise TooLarge("the body is nested too deeply") from None
    values.check(msgspec.to_builtins(decoded), InvalidRequest, what="body")
    return decoded


def _pointer(path: str) -> str:
    """msgspec's `$.a[0].b` as a JSON pointer."""
    plain = path.rstrip("`").removeprefix("$")
    return plain.replace("[", "/").replace("]", "").replace(".", "/")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")
