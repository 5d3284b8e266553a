"""The hand-written server behind something that garbles its answers: members are left out or replaced, or all of it."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .broken import Server, listening

_VALUES: list[Any] = [
    None, True, 5, -1.5, "", "x", "a/b\n\u2028\ud800", [], [None], {}, {"a": None}, [[]], 2**80, "running",
    {"type": "object", "properties": None}, {"$ref": "#/nowhere"}, {"type": ["string", 5]}, {"run_id": 5},
]  # fmt: skip
_JSON = (b"content-type", b"application/json")
_BODIES = [b"", b"\xff\xfe", b"[" * 20_000, b"nonsense"]
_EVENTS = [
    b"data: 5\n\n", b"data: nonsense\n\n", b"\xff\xff\n\n", b"id: \xc3\xa9\ndata: {}\n\n", b'data: {"type": []}\n\n',
    b'data: {"type":"values","run_id":[],"values":null}\n\n',
]  # fmt: skip


class Garbler:
    """Garbles what an app answers, `often`; or answers everything with the same. A search is left alone: a server whose
    agents cannot be found is soon told."""

    def __init__(self, app: ASGIApp, seed: int, often: float, always: bytes | None) -> None:
        self._app = app
        self._random = random.Random(seed)
        self._often = often
        self._always = always

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._always is not None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
            )
            await send({"type": "http.response.body", "body": self._always})
            return
        if scope["path"] == "/agents/search":
            await self._app(scope, receive, send)
            return
        head: Message | None = None

        async def garbled(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            body = message.get("body", b"")
            if head is not None:
                if _JSON in head["headers"]:
                    head, body = self._answer(head, body)
                await send(head)
                head = None
            elif body and self._hits(2):
                body = self._random.choice(_EVENTS)
            await send({**message, "body": body})

        await self._app(scope, receive, garbled)

    def _hits(self, times: float = 1) -> bool:
        return self._random.random() < self._often * times

    def _answer(self, head: Message, body: bytes) -> tuple[Message, bytes]:
        body = self._random.choice(_BODIES) if self._hits() else json.dumps(self._value(json.loads(body))).encode()
        status = self._random.choice([200, 302, 404, 500]) if self._hits(0.5) else head["status"]
        headers = [(name, value) for name, value in head["headers"] if name != b"content-length"]
        return {**head, "status": status, "headers": headers}, body

    def _value(self, value: Any) -> Any:
        if self._hits():
            return self._random.choice(_VALUES)
        if isinstance(value, dict):
            return {name: self._value(inner) for name, inner in value.items() if not self._hits()}
        return [self._value(inner) for inner in value] if isinstance(value, list) else value


@contextlib.asynccontextmanager
async def garbling(seed: int = 0, often: float = 0, always: bytes | None = None) -> AsyncIterator[str]:
    server = Server()
    async with listening(server, Garbler(server.app, seed, often, always)) as address:
        yield address
