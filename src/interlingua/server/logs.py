"""Writes the program's log as lines on stderr: JSON for machines, text for people, or nothing.

A record carries its fields in `extra={"fields": {...}}`: run, caller, agent, method, path, status, ms. Secrets are
removed here from every line, whichever module wrote it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, TextIO

import msgspec

from ..security.redaction import redact_text

# The caller, for the line of the request that is being answered. The one check of every door sets it.
asker: ContextVar[str | None] = ContextVar("asker", default=None)

# They log every call at INFO, addresses and all.
_TALKATIVE = ("httpx2", "httpcore2", "httpx", "httpcore", "uvicorn", "asyncio")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_RUN = re.compile(r"\brun ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_OWN = ("time", "level", "logger", "message", "exception")


# In the `extra` of a record. For people, lines after the first are indented, so that none passes for a line of the log.
KEEPS_LINES = "keeps_lines"
# In the `extra` of a record: machines get it, and people do not.
FOR_MACHINES = "for_machines"

_encode = msgspec.json.Encoder(enc_hook=str).encode

# What the logging module finds out for each record: from where it was logged, and in which thread. No line here has
# it, and it takes as long as writing the line. These switches are the module's own.
_UNUSED = ("logThreads", "logMultiprocessing", "logProcesses", "logAsyncioTasks")


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"
    OFF = "off"


@functools.lru_cache(1)
def _second(time: int) -> str:
    """Formats a second of UTC time. The last result is kept, because most of many lines are of the same second."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat().removesuffix("+00:00")


def _time(record: logging.LogRecord) -> str:
    second, millis = divmod(int(record.created * 1000), 1000)
    return f"{_second(second)}.{millis:03d}Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    if not isinstance(fields, dict):
        named = _RUN.search(record.getMessage())  # most of the engine's lines name their run
        return {"run": named[1]} if named else {}
    return {
        name: redact_text(value) if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None and name not in _OWN
    }


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = redact_text(self.formatException(record.exc_info))
        written = _encode(line)
        return written.decode() if written.isascii() else json.dumps(line, default=str)  # escaped, which takes longer


def _is_said(name: str, value: Any, message: str) -> bool:
    """Returns whether a line for people already shows a value. Short values do not count: they appear by chance."""
    text = str(value)
    return (name in ("method", "path", "status") or len(text) > 8) and text in message


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = redact_text(record.getMessage())
        fields = _fields(record).items()
        known = " ".join(f"{name}={value}" for name, value in fields if not _is_said(name, value, said))
        line = f"{_time(record)} {record.levelname:<7} {said}" + (f"  ({known})" if known else "")
        # Paths and messages come from others: they must not be able to write lines of their own.
        parts = line.split("\n") if getattr(record, KEEPS_LINES, False) else [line]
        line = "\n    ".join(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", part) for part in parts)
        if record.exc_info:
            line += "\n" + redact_text(self.formatException(record.exc_info))
        return line


@contextlib.contextmanager
def logging_as(form: LogFormat, stream: TextIO | None = None) -> Iterator[None]:
    """Writes the log in a format while the context lasts. Off leaves everything as it is."""
    if form is LogFormat.OFF:
        yield
        return
    handler = logging.StreamHandler(stream or sys.stderr)
    if form is LogFormat.JSON:
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(TextLines())
        handler.addFilter(lambda record: not getattr(record, FOR_MACHINES, False))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in _TALKATIVE}
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    found_out = {name: getattr(logging, name) for name in ("_srcfile", *_UNUSED) if hasattr(logging, name)}
    for name in found_out:
        setattr(logging, name, None)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, was_found in found_out.items():
            setattr(logging, name, was_found)
        root.handlers[:] = before
        root.setLevel(level)
        for name, was in levels.items():
            logging.getLogger(name).setLevel(was)
