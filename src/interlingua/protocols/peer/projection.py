"""A run's log in the terms of this protocol: states of a task, artifacts, messages.

The wire has no place for some events. They become:

- thoughts, plans and tool calls: a message event with a data part;
- a restart: the next chunk of the result says `append: false`, and begins it anew;
- warnings: a message event with a data part; usage: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...engine.engine import Engine
from ...model.card import AgentCard
from ...model.content import Artifact
from ...model.delta import ABSENT, DeltaError
from ...model.errors import ErrorInfo
from ...model.events import (
    ArtifactAdded,
    CancelRequested,
    Event,
    MessageSent,
    OutputDelta,
    Plan,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    RunBlocked,
    RunFinished,
    RunRestarted,
    RunStarted,
    Thought,
    ToolCall,
    Warned,
    blocked_warning,
    emission_json,
    thought_from_message,
)
from ...model.events import (
    Said as SaidInTeam,
)
from ...model.prompt_input import output_parts
from ...model.question_forms import question_text
from ...model.run import Question
from ...model.status import Status
from .node.output_chunks import ToldOutput
from .translate import parts
from .translate.parts import Publish

RESULT = "output"  # the id of the artifact that is a run's output


class Moved(msgspec.Struct):
    """The task has a new state."""

    state: str
    error: ErrorInfo | None = None
    question: dict[str, Any] | None = None


class Piece(msgspec.Struct):
    """An artifact, or a chunk of one."""

    artifact: dict[str, Any]
    whole: dict[str, Any] | None = None  # the whole artifact that the task holds from now on


class Said(msgspec.Struct):
    """A message for the other side."""

    parts: list[dict[str, Any]]
    activity: bool = False  # only for watchers
    question: bool = False


class Replied(msgspec.Struct):
    """The end: the result of the run, or the reason why there is none."""

    parts: list[dict[str, Any]]
    error: ErrorInfo | None = None


Act = Moved | Piece | Said | Replied


class Projection:
    """The projection of one run. It needs every event in order, once; callers skip the acts of events that were
    reported before."""

    def __init__(self, card: AgentCard, publish: Publish) -> None:
        self._card = card
        self._publish = publish
        self._state = "submitted"
        self._told = ToldOutput()
        self._begun = False  # chunks of the result were sent, and are still valid
        self._chunks: dict[str, list[dict[str, Any]]] = {}  # of artifacts that come in pieces
        self._open: dict[str, Question] = {}  # open questions; the wire has room for the oldest

    def needs_log(self, events: Sequence[Event]) -> bool:
        """Tells if `feed` may need the output that a restart among these events has left: a long one is not held
        here."""
        restarted = any(isinstance(event.body, RunRestarted) for event in events)
        return restarted and self._told.is_long_with(sum(event.size for event in events))

    def feed(self, event: Event, output: Any = ABSENT) -> list[Act]:
        body: Any = event.body
        if isinstance(body, SaidInTeam):
            body = thought_from_message(body)
        match body:
            case OutputDelta(delta=delta):
                return [*self._working(), *self._delta(event.seq, delta)]
            case RunStarted():
                return self._working()
            case RunRestarted(keep=keep):
                self._told.restart(keep, output)
                self._begun = False
                self._chunks.clear()
                return []
            case MessageSent(message=message):
                return [*self._working(), Said([self._part(part) for part in message.parts])]
            case ArtifactAdded(artifact=artifact):
                return [*self._working(), self._artifact(artifact)]
            case QuestionAsked(question=question):
                return [*self._working(), *self._asked(question)]
            case QuestionAnswered(question=settled) | QuestionWithdrawn(question=settled):
                return self._settled(settled)
            case CancelRequested():
                return self._move("cancelling")
            case RunBlocked():
                return [Said([parts.text(blocked_warning(body).message)])]
            case Thought() | Plan() | ToolCall() | Warned():
                return [Said([parts.data({"activity": emission_json(body)})], activity=True)]
            case RunFinished():
                return self._finished(body)
        return []

    def _part(self, part: Any) -> dict[str, Any]:
        return parts.from_model(part, self._publish)

    def _move(self, state: str, **more: Any) -> list[Act]:
        if state == self._state or (self._state == "cancelling" and state in ("working", "input_required")):
            return []
        self._state = state
        return [Moved(state, **more)]

    def _working(self) -> list[Act]:
        return self._move("working") if self._state == "submitted" else []

    # -- output -------------------------------------------------------------------------------------------

    def _delta(self, seq: int, delta: Any) -> list[Act]:
        try:
            self._told.add(seq, delta)
        except DeltaError:
            return []
        first, self._begun = not self._begun, True
        shown = self._told.joined if first else delta  # after a restart, it includes the output that still stands
        self._told.shorten()
        chunk = {"artifact_id": RESULT, "parts": self._delta_parts(shown), "append": not first, "last_chunk": False}
        return [Piece({**chunk, "delta": shown})]

    def _delta_parts(self, delta: Any) -> list[dict[str, Any]]:
        text = delta.get(self._card.output_text) if self._card.output_text and isinstance(delta, dict) else None
        if not isinstance(text, str):
            return [parts.data(delta)]
        rest = {key: value for key, value in delta.items() if key != self._card.output_text}
        return [parts.text(text), parts.data(rest)] if rest else [parts.text(text)]

    def _artifact(self, artifact: Artifact) -> Piece:
        told: dict[str, Any] = {"artifact_id": artifact.id}
        for name in ("name", "description"):
            value = getattr(artifact, name)
            if value is not None:
                told[name] = value
        if artifact.metadata:
            told["metadata"] = artifact.metadata
        pieces = [self._part(part) for part in artifact.parts]
        if not artifact.append:
            self._chunks.pop(artifact.id, None)
        whole = [*self._chunks.get(artifact.id, []), *pieces]
        if artifact.last:
            self._chunks.pop(artifact.id, None)
        else:
            self._chunks[artifact.id] = whole
        told["parts"] = pieces or [parts.text("")]
        return Piece({**told, "append": artifact.append, "last_chunk": artifact.last}, {**told, "parts": whole})

    # -- questions and the end ----------------------------------------------------------------------------

    def _asked(self, question: Question) -> list[Act]:
        self._open[question.id] = question
        shown = asked(question)
        return [
            Said([parts.text(question_text(question)), parts.data({"question": shown})], question=True),
            *self._move("input_required", question=shown),
        ]

    def _settled(self, settled: str) -> list[Act]:
        """Shows the next question when the shown one was answered or withdrawn."""
        shown = next(iter(self._open), None) == settled
        self._open.pop(settled, None)
        if not self._open:
            return self._move("working")
        if not shown:
            return []
        return [*self._move("working"), *self._move("input_required", question=asked(next(iter(self._open.values()))))]

    def _finished(self, end: RunFinished) -> list[Act]:
        if end.status is Status.SUCCEEDED:
            said = [self._part(part) for part in output_parts(self._card, end.output)]
            whole = {"artifact_id": RESULT, "parts": said}
            return [*self._working(), self._last(end.output, whole), *self._move("completed"), Replied(said)]
        error = end.error or ErrorInfo("run_failed", f"the run {end.status.value.replace('_', ' ')}")
        told = [parts.text(error.message)]
        if end.status is Status.CANCELLED:
            return [*self._move("cancelling"), *self._move("canceled"), Replied(told, error)]
        if self._state == "input_required":
            self._state = "working"
            before: list[Act] = [Moved("working")]
        else:
            before = self._working()
        return [*before, *self._move("failed", error=error), Replied(told, error)]

    def _last(self, output: Any, whole: dict[str, Any]) -> Piece:
        """Returns the result: the parts that were not sent in chunks, or all of it."""
        if self._begun:
            try:
                rest = self._told.rest(output)
            except DeltaError:
                pass
            else:
                left = self._delta_parts(rest) if rest is not ABSENT and rest else [parts.text("")]
                chunk = {"artifact_id": RESULT, "parts": left, "append": True, "last_chunk": True}
                return Piece(chunk if rest is ABSENT or not rest else {**chunk, "delta": rest}, whole)
        return Piece({**whole, "append": False, "last_chunk": True}, whole)


async def fed(engine: Engine, projection: Projection, event: Event) -> list[Act]:
    """Feeds an event, with the output that a restart has left where it is needed."""
    if projection.needs_log([event]):
        return projection.feed(event, await engine.runs.kept_output(event))
    return projection.feed(event)


def asked(question: Question) -> dict[str, Any]:
    """Returns a question as a data part."""
    told = {
        "id": question.id,
        "type": question.type,
        "prompt": question.prompt,
        "payload": question.payload,
        "answer_schema": question.answer_schema,
    }
    if question.options:
        told["options"] = [msgspec.to_builtins(option) for option in question.options]
    if question.deadline is not None:
        told["deadline"] = question.deadline
    return told
