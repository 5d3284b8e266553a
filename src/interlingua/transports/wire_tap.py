"""Shows the wires of a program to an observer that records them. `server.wire_trace` sets the observer, once, before
they open.

JSON-RPC connections and HTTP clients that are opened afterwards show what they send and receive.
"""

from __future__ import annotations

import json
from typing import Any, Protocol


class Tap(Protocol):
    """Sees every message, both ways."""

    def received(self, frame: bytes) -> None: ...
    def sent(self, frame: bytes) -> None: ...


current: Tap | None = None


def use(tap: Tap | None) -> None:
    global current
    current = tap


def hooks() -> dict[str, list[Any]]:
    """Returns the hooks that record an HTTP client: requests and answers as one message each. The code that reads an
    event stream records its events."""
    tap = current
    if tap is None:
        return {}

    async def asked(request: Any) -> None:
        tap.sent(_message({"http": f"{request.method} {request.url}"}, request.content if request.content else b""))

    async def answered(response: Any) -> None:
        told = {"http": f"{response.status_code} {response.request.method} {response.request.url}"}
        if "text/event-stream" in response.headers.get("content-type", ""):
            tap.received(_message(told, b""))
        else:
            tap.received(_message(told, await response.aread()))

    return {"request": [asked], "response": [answered]}


def event(data: str) -> None:
    """Records one event of a stream."""
    if current is not None:
        current.received(data.encode(errors="replace"))


def _message(message: dict[str, Any], body: bytes) -> bytes:
    if body:
        try:
            message["body"] = json.loads(body)
        except ValueError:
            message["body"] = body[:10_000].decode(errors="replace")
    return json.dumps(message).encode()
