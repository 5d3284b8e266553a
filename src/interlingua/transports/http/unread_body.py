"""Discards the rest of a request's body if the answer is written before the body was read, as a refusal is. The answer
ends after that.

A connection that is closed while bytes wait unread is reset, and a client that still sends its body never sees the
answer. Servers keep such a connection open only if the client wants to use it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATIENCE = 30.0  # seconds for the rest of a body to come
_LARGE = 64 * 1024  # a body up to this is here with its head, for a server that keeps the connection


class UnreadBody:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _may_be_left(scope["http_version"], scope["headers"]):
            await self._app(scope, receive, send)
            return
        whole = False

        async def reading() -> Message:
            nonlocal whole
            message = await receive()
            whole = whole or not message.get("more_body", False)  # a client that has gone sends nothing more either
            return message

        async def sending(message: Message) -> None:
            if whole or message["type"] != "http.response.body" or message.get("more_body"):
                await send(message)
                return
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    while not whole:
                        await reading()
            await send({"type": "http.response.body", "body": b""})

        await self._app(scope, reading, sending)


def _may_be_left(version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """A body that may come in part after the answer, and would be in the way of it. A client that waits until it may
    send sends nothing after a refusal."""
    closes, has_body = version == "1.0", False
    for name, value in headers:
        if name == b"content-length":
            large = not value.isdigit() or len(value) > 15 or int(value) > _LARGE
            has_body, closes = value != b"0", closes or large
        elif name == b"transfer-encoding":
            has_body = closes = True
        elif name == b"connection":
            closes = closes or b"close" in value.lower()
        elif name == b"expect":
            return False
    return has_body and closes
