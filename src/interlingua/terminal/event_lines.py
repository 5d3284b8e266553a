"""Events, runs, threads and questions as JSON for programs and as lines for people."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from ..engine.log.record_keys import kind_of
from ..model import json_values
from ..model.events import (
    ArtifactAdded,
    CancelRequested,
    ChildCalled,
    ChildEnded,
    CodeChanged,
    DelegationRefused,
    ErrorHandled,
    Event,
    MessageReceived,
    MessageSent,
    OutputDelta,
    Plan,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunBlocked,
    RunCreated,
    RunFinished,
    RunMoved,
    RunRestarted,
    RunStarted,
    Said,
    Thought,
    ToolCall,
    ToolRefused,
    Warned,
)
from ..model.run import Checkpoint, Question, Run, Thread

_TIMES = ("created_at", "updated_at", "asked_at", "deadline")


def iso(time: int) -> str:
    """Microseconds since 1970 as ISO 8601."""
    moment = datetime.datetime.fromtimestamp(time // 1_000_000, datetime.UTC).replace(microsecond=time % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(time: int, now: int) -> str:
    """Describes how long ago a time was, in words."""
    seconds = max(0, now - time) // 1_000_000
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} s ago" if seconds else "just now"


def age(time: int, now: int) -> str:
    """Describes the age of something, in words."""
    return ago(time, now).removesuffix(" ago").replace("just now", "0 s")


def until(time: int, now: int) -> str:
    """Describes when something is due, in words."""
    if time <= now:
        return f"due {ago(time, now)}"
    seconds = -(-(time - now) // 1_000_000)
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds // size} {name}"
    return f"in {seconds} s"


def span(microseconds: int) -> str:
    """A duration, as one would say it."""
    seconds = microseconds / 1e6
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


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


def line_of(event: Event) -> str:
    """An event in one line, for the table of a run's log."""
    text = _line_of(event)
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:199] + "…"


def _line_of(event: Event) -> str:
    match event.body:
        case None:
            return "(erased)"
        case RunCreated(request=request):
            return f"{request.agent} {_json(request.input)}"
        case RunStarted(worker=worker):
            return f"by worker {worker[-8:]}"
        case RunRestarted(keep=keep, reason=reason):
            return f"what came after event {keep} no longer stands: {reason}"
        case OutputDelta(delta=delta):
            return _json(delta)
        case MessageSent(message=message) | MessageReceived(message=message):
            return message.text or _json(message.parts)
        case Thought(text=text):
            return text
        case Plan(entries=entries):
            return ", ".join(f"{entry.content} ({entry.status.replace('_', ' ')})" for entry in entries)
        case ToolCall() as call:
            return " ".join(filter(None, [call.title or call.tool or call.id, call.status]))
        case ArtifactAdded(artifact=artifact):
            return artifact.name or artifact.id
        case Warned(message=text):
            return text
        case QuestionAsked(question=question):
            return f"{question.id[-8:]} {question.type}: {question.prompt}"
        case QuestionAnswered(question=id_, answer=answer):
            return f"{id_[-8:]} {_json(answer.value)} by {answer.by or 'somebody'}"
        case QuestionWithdrawn(question=id_, reason=reason):
            return f"{id_[-8:]} {reason}"
        case Recorded(key=key, value=value, error=error):
            kind = kind_of(key)
            if kind in ("sleep", "receive") and isinstance(value, int) and not key.endswith(":taken"):
                return f"{kind} until {iso(value)}"
            return f"{key} {error.message if error is not None else _json(value)}"
        case ChildCalled(agent=agent, run=run):
            return f"{agent} as run {run[-8:]}"
        case ChildEnded(run=run, status=status):
            return f"run {run[-8:]} {status.value}"
        case DelegationRefused(agent=agent, reason=reason):
            return f"{agent}: {reason}"
        case Said() as said:
            return f"{said.task} {said.sender} → {said.recipient} {said.form}: {said.text}"
        case ToolRefused(server=server, tool=tool, reason=reason):
            return f"{server}.{tool}: {reason}"
        case ErrorHandled() as one:
            return " ".join(filter(None, [f"{one.agent} {one.number} {one.code}: {one.do}", one.to]))
        case CodeChanged(new=new):
            return f"goes on with code {new}"
        case RunMoved(old=old, new=new):
            return f"from {old.strip()} to {new.strip()}"
        case RunBlocked(message=message, reason=reason):
            return f"{reason}: {message}"
        case CancelRequested(by=by, reason=reason):
            return " ".join(filter(None, [f"by {by}" if by else "", reason]))
        case RunFinished(status=status, output=output, error=error):
            return f"{status.value} {error.message if error is not None else _json(output)}"
    return ""


def _json(value: Any) -> str:
    return json_values.encode(value).decode()
