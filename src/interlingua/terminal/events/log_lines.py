"""Events in one line each, for the log of a run in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...engine.ports import kind_of
from ...model import json_values
from ...model.events import (
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
from ..times import iso

F = TypeVar("F", bound=Callable[[Any], str])

_LONGEST = 200
_LINES: dict[type, Callable[[Any], str]] = {}


def line_of(event: Event) -> str:
    """Returns an event as one line."""
    if event.body is None:
        return "(erased)"
    formatter = _LINES.get(type(event.body))
    text = " ".join(formatter(event.body).split()) if formatter is not None else ""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _line(*types: type) -> Callable[[F], F]:
    """Registers the line of a kind of event."""

    def register(formatter: F) -> F:
        _LINES.update(dict.fromkeys(types, formatter))
        return formatter

    return register


def _json(value: Any) -> str:
    return json_values.encode(value).decode()


def _words(*parts: str | None) -> str:
    return " ".join(filter(None, parts))


# -- the life of a run ----------------------------------------------------------------------------------------


@_line(RunCreated)
def _created(body: RunCreated) -> str:
    return f"{body.request.agent} {_json(body.request.input)}"


@_line(RunStarted)
def _started(body: RunStarted) -> str:
    return f"by worker {body.worker[-8:]}"


@_line(RunRestarted)
def _restarted(body: RunRestarted) -> str:
    return f"events after {body.keep} are void: {body.reason}"


@_line(RunBlocked)
def _blocked(body: RunBlocked) -> str:
    return f"{body.reason}: {body.message}"


@_line(RunMoved)
def _moved(body: RunMoved) -> str:
    return f"from {body.old.strip()} to {body.new.strip()}"


@_line(CodeChanged)
def _code_changed(body: CodeChanged) -> str:
    return f"goes on with code {body.new}"


@_line(CancelRequested)
def _cancelled(body: CancelRequested) -> str:
    return _words(f"by {body.by}" if body.by else "", body.reason)


@_line(RunFinished)
def _finished(body: RunFinished) -> str:
    return f"{body.status.value} {body.error.message if body.error is not None else _json(body.output)}"


# -- output and activity --------------------------------------------------------------------------------------


@_line(OutputDelta)
def _output(body: OutputDelta) -> str:
    return _json(body.delta)


@_line(MessageSent, MessageReceived)
def _message(body: MessageSent | MessageReceived) -> str:
    return body.message.text or _json(body.message.parts)


@_line(Thought)
def _thought(body: Thought) -> str:
    return body.text


@_line(Plan)
def _plan(body: Plan) -> str:
    return ", ".join(f"{entry.content} ({entry.status.replace('_', ' ')})" for entry in body.entries)


@_line(ToolCall)
def _tool_call(body: ToolCall) -> str:
    return _words(body.title or body.tool or body.id, body.status)


@_line(ArtifactAdded)
def _artifact(body: ArtifactAdded) -> str:
    return body.artifact.name or body.artifact.id


@_line(Warned)
def _warned(body: Warned) -> str:
    return body.message


# -- questions and records ------------------------------------------------------------------------------------


@_line(QuestionAsked)
def _asked(body: QuestionAsked) -> str:
    return f"{body.question.id[-8:]} {body.question.type}: {body.question.prompt}"


@_line(QuestionAnswered)
def _answered(body: QuestionAnswered) -> str:
    return f"{body.question[-8:]} {_json(body.answer.value)} by {body.answer.by or 'somebody'}"


@_line(QuestionWithdrawn)
def _withdrawn(body: QuestionWithdrawn) -> str:
    return f"{body.question[-8:]} {body.reason}"


@_line(Recorded)
def _recorded(body: Recorded) -> str:
    kind = kind_of(body.key)
    if kind in ("sleep", "receive") and isinstance(body.value, int) and not body.key.endswith(":taken"):
        return f"{kind} until {iso(body.value)}"
    return f"{body.key} {body.error.message if body.error is not None else _json(body.value)}"


# -- other runs and teams -------------------------------------------------------------------------------------


@_line(ChildCalled)
def _child_called(body: ChildCalled) -> str:
    return f"{body.agent} as run {body.run[-8:]}"


@_line(ChildEnded)
def _child_ended(body: ChildEnded) -> str:
    return f"run {body.run[-8:]} {body.status.value}"


@_line(DelegationRefused)
def _delegation_refused(body: DelegationRefused) -> str:
    return f"{body.agent}: {body.reason}"


@_line(ToolRefused)
def _tool_refused(body: ToolRefused) -> str:
    return f"{body.server}.{body.tool}: {body.reason}"


@_line(Said)
def _said(body: Said) -> str:
    return f"{body.task} {body.sender} → {body.recipient} {body.form}: {body.text}"


@_line(ErrorHandled)
def _error_handled(body: ErrorHandled) -> str:
    return _words(f"{body.agent} {body.number} {body.code}: {body.do}", body.to)
