"""A run's log as the updates of a session: events in, updates out, in either dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from ...engine.engine import Engine
from ...model.card import AgentCard
from ...model.content import FilePart, TextPart
from ...model.delta import ABSENT, TextDigest
from ...model.events import (
    ArtifactAdded,
    ChildCalled,
    ChildEnded,
    DelegationRefused,
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
    Said,
    Thought,
    ToolCall,
    ToolStatus,
    Warned,
    blocked_warning,
    thought_from_message,
)
from ...model.status import Status
from . import translate
from .versions import Dialect, Update, question_call, question_tool_call

# Characters of one chunk. A reader that lags gets fragments joined, however long; clients limit the size of a message
# (agent-client-protocol 0.12.1 ends a WebSocket beyond 1 MiB).
_PIECE = 64 * 1024


class _Chunks(Sequence[Update]):
    """A long text of the agent's message in pieces. Each piece is cut when it is needed, because a slow reader may
    delay the rest for long."""

    def __init__(self, dialect: Dialect, message: str, text: str) -> None:
        self._dialect, self._message, self._text = dialect, message, text

    def __len__(self) -> int:
        return -(-len(self._text) // _PIECE)

    @overload
    def __getitem__(self, place: int) -> Update: ...

    @overload
    def __getitem__(self, place: slice) -> list[Update]: ...

    def __getitem__(self, place: int | slice) -> Update | list[Update]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        start = range(len(self))[place] * _PIECE
        return self._dialect.chunk(
            "agent_message", self._message, {"type": "text", "text": self._text[start : start + _PIECE]}
        )


class Projection:
    """One run."""

    def __init__(self, run: str, card: AgentCard | None, dialect: Dialect) -> None:
        self._run = run
        self._dialect = dialect
        self._text = card.output_text if card is not None else None
        self._structured = card is not None and card.output_text is None
        # Of the shown output: the seq of each piece, the length of the text and its digest. The text itself may be
        # long, and every follower of the run would hold it.
        self._pieces: list[int] = []
        self._shown = TextDigest()
        self._message = f"{run}-output"
        self._calls: set[str] = set()  # tool calls that were sent

    def feed(self, event: Event, output: Any = ABSENT) -> Sequence[Update]:
        """Returns the updates of an event. `output` is what remains of the output where the run was restarted."""
        body = event.body
        if type(body) is OutputDelta:
            text = body.delta.get(self._text) if type(body.delta) is dict else None
            return self._output(event.seq, text) if type(text) is str else []
        if type(body) is RunRestarted:
            return self._restarted(event.seq, body.keep, output)
        updates = self._other(event, body)
        return [updates] if isinstance(updates, dict) else updates

    def _output(self, seq: int, text: str) -> Sequence[Update]:
        if not text:
            return []
        self._pieces.append(seq)
        self._shown.add(text)
        if len(text) <= _PIECE:
            return [self._dialect.chunk("agent_message", self._message, {"type": "text", "text": text})]
        return _Chunks(self._dialect, self._message, text)

    def _other(self, event: Event, body: Any) -> Sequence[Update] | Update:
        dialect = self._dialect
        match body:
            case Thought(text=text, id=id_):
                return dialect.chunk("agent_thought", id_ or f"{self._run}-{event.seq}", {"type": "text", "text": text})
            case Plan():
                return dialect.plan(f"{self._run}-plan", body)
            case MessageSent(message=message):
                id_ = message.id or f"{self._run}-{event.seq}"
                return [dialect.chunk("agent_message", id_, block) for block in translate.said(message)]
            case ArtifactAdded(artifact=artifact):
                id_ = f"{self._run}-artifact-{artifact.id}"
                return [
                    dialect.chunk("agent_message", id_, translate.block(_named(part, artifact.name or artifact.id)))
                    for part in artifact.parts
                ]
            case RunBlocked() | Warned():
                text = (blocked_warning(body) if isinstance(body, RunBlocked) else body).message
                note = {"type": "text", "text": f"Warning: {text}"}
                return dialect.chunk("agent_thought", f"{self._run}-{event.seq}", note)
            case Said():
                thought = thought_from_message(body)
                return [] if thought is None else self._other(event, thought)
            case DelegationRefused(agent=agent, reason=reason):
                note = {"type": "text", "text": f"{agent} was not called: {reason}"}
                return dialect.chunk("agent_thought", f"{self._run}-{event.seq}", note)
            case RunFinished():
                return self._finished(event.seq, body)
        call = _tool_call_of(body)
        return [] if call is None else self._tool_call(call)

    def _tool_call(self, call: ToolCall) -> Update:
        first = call.id not in self._calls
        self._calls.add(call.id)
        return self._dialect.tool_call(call, first=first)

    def _restarted(self, seq: int, keep: int, output: Any) -> list[Update]:
        if not any(shown > keep for shown in self._pieces):
            return []
        self._pieces = [shown for shown in self._pieces if shown <= keep]
        text = output.get(self._text) if isinstance(output, dict) else None
        return self._replace(seq, text if isinstance(text, str) else "")

    def _replace(self, seq: int, text: str) -> list[Update]:
        fresh = f"{self._run}-output-{seq}"
        updates = self._dialect.replaced(self._message, fresh, text)
        self._shown = TextDigest()
        self._shown.add(text)
        if self._dialect.number == 1:
            self._message = fresh
        return updates

    def _finished(self, seq: int, body: RunFinished) -> Sequence[Update]:
        if body.status is not Status.SUCCEEDED:
            return []
        if self._structured:
            return self._output(seq, translate.json_block(body.output)) if body.output else []
        final = body.output.get(self._text) if isinstance(body.output, dict) else None
        if not isinstance(final, str):
            return []
        if self._shown.begins(final):
            return self._output(seq, final[self._shown.length :])
        return self._replace(seq, final)


async def fed(engine: Engine, projection: Projection, event: Event) -> Sequence[Update]:
    """Feeds an event, and for a restarted run also the rest of its output."""
    restarted = isinstance(event.body, RunRestarted)
    return projection.feed(event, await engine.runs.kept_output(event) if restarted else ABSENT)


def _named(part: Any, name: str) -> Any:
    """Returns an artifact's text under a name of its own, so that a client can show it as the file that it is."""
    if isinstance(part, TextPart):
        return FilePart(url=f"artifact:{name}", text=part.text, media_type="text/plain", name=name, meta=part.meta)
    return part


def usage(counts: dict[str, Any] | None) -> Update | None:
    """Returns the fill level of the context, where the agent reported it (`ctx.usage(used=…, size=…)`), and its
    cost."""
    if not counts or type(counts.get("used")) is not int or type(counts.get("size")) is not int:
        return None
    update: Update = {"sessionUpdate": "usage_update", "used": counts["used"], "size": counts["size"]}
    cost = counts.get("cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        update["cost"] = {"amount": cost, "currency": str(counts.get("currency", "USD"))}
    return update


def _tool_call_of(body: Any) -> ToolCall | None:
    """The tool call as which an event is shown: calls of agents and questions are shown as such, too."""
    match body:
        case ToolCall():
            return body
        case ChildCalled(run=child, agent=agent):
            return ToolCall(f"run-{child}", agent, agent, "other", "in_progress")
        case ChildEnded(run=child, status=status, output=output):
            ended: ToolStatus = "completed" if status is Status.SUCCEEDED else "failed"
            return ToolCall(f"run-{child}", status=ended, output=output)
        case QuestionAsked(question=question):
            return question_tool_call(question)
        case QuestionAnswered(question=answered, answer=answer):
            return ToolCall(question_call(answered), status="completed", output=answer.value)
        case QuestionWithdrawn(question=withdrawn):
            return ToolCall(question_call(withdrawn), status="cancelled")
    return None
