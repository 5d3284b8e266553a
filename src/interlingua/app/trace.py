"""The wire, written down: every message of a connection as one line of JSON, both ways, without secrets."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, Literal

from ..security.redaction import redact_text

_HIDDEN = "***"
_SECRET = ("authorization", "token", "secret", "password", "passwd", "apikey", "api_key", "api-key", "credential")


class WireTrace:
    """Appends to a file. Lines: time, protocol, direction (`in`, `out`) and the message, or its text if it is none."""

    def __init__(self, path: Path, protocol: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._protocol = protocol

    def received(self, frame: bytes) -> None:
        self._write("in", frame)

    def sent(self, frame: bytes) -> None:
        self._write("out", frame)

    def _write(self, direction: Literal["in", "out"], frame: bytes) -> None:
        line: dict[str, Any] = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            "protocol": self._protocol,
            "direction": direction,
        }
        try:
            line["message"] = without_secrets(json.loads(frame))
        except (ValueError, RecursionError):
            line["text"] = redact_text(frame[:10_000].decode(errors="replace"))
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def without_secrets(value: Any, name: str = "") -> Any:
    """A message as it may be written down: values under telling names, of variables and of headers, are left out."""
    if isinstance(value, dict):
        hidden = isinstance(value.get("name"), str) and set(value) == {"name", "value"}  # a variable or a header
        return {
            key: _HIDDEN if (hidden and key == "value") else without_secrets(inner, key) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, name) for inner in value]
    if isinstance(value, str):
        if any(mark in name.lower() for mark in _SECRET):
            return _HIDDEN
        return redact_text(value)
    return value
