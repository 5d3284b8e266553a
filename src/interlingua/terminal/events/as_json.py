"""Events, runs, threads and questions as JSON for programs."""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.events import Event, QuestionAsked
from ...model.run import Checkpoint, Question, Run, Thread
from ..times import iso

_TIMES = ("created_at", "updated_at", "asked_at", "deadline")


def plain(thing: Run | Thread | Question | Checkpoint) -> dict[str, Any]:
    """Returns the object as JSON, with times that programs can read."""
    data: dict[str, Any] = msgspec.to_builtins(thing)
    _write_times(data)
    for question in data.get("questions", []):
        _write_times(question)
    return data


def event_json(event: Event) -> dict[str, Any]:
    """An event as `--json` prints it."""
    body = msgspec.to_builtins(event.body) if event.body is not None else None
    if body is not None:
        body.pop("kind", None)
        if isinstance(event.body, QuestionAsked):
            _write_times(body["question"])
    data = {"run": event.run, "seq": event.seq, "kind": event.kind, "time": iso(event.time), "body": body}
    if event.first and event.first != event.seq:
        data["first"] = event.first  # several output deltas in one
    return data


def _write_times(data: dict[str, Any]) -> None:
    for name in _TIMES:
        if isinstance(data.get(name), int):
            data[name] = iso(data[name])
