"""Records the wire: every message of a connection as one line of JSON, both ways, without secrets."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ..security.redaction import redact_text
from ..transports import wire_tap

_HIDDEN = "***"
_SECRET = ("authorization", "token", "secret", "password", "passwd", "apikey", "api_key", "api-key", "credential")


class WireTrace:
    """Appends to a file. Lines: time, protocol, direction (`in`, `out`) and the message, or its text if it is none."""

    def __init__(self, path: Path, protocol: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half a character cannot be written as UTF-8; as an escape it is valid JSON.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._protocol = protocol

    def received(self, frame: bytes) -> None:
        self._write("in", frame)

    def sent(self, frame: bytes) -> None:
        self._write("out", frame)

    def http(self, direction: Literal["in", "out"], what: str, body: bytes) -> None:
        """A piece of a request or an answer, which `what` names."""
        self._write(direction, body, http=redact_text(what))

    def _write(self, direction: Literal["in", "out"], frame: bytes, **more: str) -> None:
        line: dict[str, Any] = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            "protocol": self._protocol,
            "direction": direction,
            **more,
        }
        try:
            message = without_secrets(json.loads(frame, parse_constant=_no_number))
            text = json.dumps({**line, "message": message}, ensure_ascii=False)
        except (ValueError, RecursionError):
            shown = redact_text(frame[:10_000].decode(errors="replace"))
            text = json.dumps({**line, "text": shown}, ensure_ascii=False)
        if not self._file.closed:  # a connection may say its last words after everybody has gone
            self._file.write(text + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def tapped(path: Path | None) -> Iterator[None]:
    """Writes all wires that are opened inside the context to a file; does nothing without a file."""
    if path is None:
        yield
        return
    wire = WireTrace(path, "mount")
    wire_tap.use(wire)
    try:
        yield
    finally:
        wire_tap.use(None)
        wire.close()


def without_secrets(value: Any, *, hidden: bool = False) -> Any:
    """Returns a message without its secrets: values of variables and headers, and values under telling names, are left
    out.

    Variables and headers are lists of name and value, or, in messages that are written wrong, objects; names are shown.
    """
    if isinstance(value, dict):
        listed = hidden and isinstance(value.get("name"), str)
        return {
            key: inner if listed and key == "name" else without_secrets(inner, hidden=hidden or _is_secret(key))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, hidden=hidden) for inner in value]
    if isinstance(value, str):
        return _HIDDEN if hidden else redact_text(value)
    return value


def _is_secret(name: str) -> bool:
    if name.lower().rpartition("/")[2] == "progresstoken":  # MCP's mark for what belongs to which request
        return False
    return name in ("env", "headers") or any(mark in name.lower() for mark in _SECRET)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class TracedApp:
    """An ASGI app whose requests and answers are written down: bodies, events of streams, WebSocket messages."""

    def __init__(self, app: Any, trace: WireTrace) -> None:
        self._app = app
        self._trace = trace

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        what = f"{scope.get('method', 'WEBSOCKET')} {scope['path']}"
        status = 0

        async def received() -> Any:
            message = await receive()
            if message["type"] in ("http.request", "websocket.receive"):
                body = message.get("body") or message.get("bytes") or (message.get("text") or "").encode()
                if body or message["type"] == "http.request":
                    self._trace.http("in", what, body)
            return message

        async def sent(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                self._trace.http("out", f"{status} {what}", message.get("body", b""))
            elif message["type"] == "websocket.send":
                self._trace.http("out", what, message.get("bytes") or (message.get("text") or "").encode())
            await send(message)

        await self._app(scope, received, sent)
