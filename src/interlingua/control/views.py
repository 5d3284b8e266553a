"""Shows the engine's records as the control API has them. Secret inputs are masked here."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import msgspec

from ..model import events, run
from ..model.card import AgentCard
from ..model.events import ChildCalled, RunCreated
from ..security import secret_inputs as secrets
from . import wire

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

CardOf = Callable[[str, str | None], AgentCard | None]
"""Returns the card of an agent by name and version; None where it is not known here."""


def moment(time: int) -> datetime.datetime:
    """Returns a time of the engine, in microseconds since 1970."""
    return _EPOCH + datetime.timedelta(microseconds=time)


def maybe(time: int | None) -> datetime.datetime | None:
    return None if time is None else moment(time)


def microseconds(time: datetime.datetime) -> int:
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)


def run_view(view: run.Run, card: AgentCard | None) -> wire.Run:
    request = view.request
    return wire.Run(
        id=view.id, agent=view.agent, version=view.version, status=view.status, created_at=moment(view.created_at),
        updated_at=moment(view.updated_at), caller=view.caller, seq=view.seq, head=view.head, thread=view.thread,
        parent=view.parent, root=view.root, metadata=view.metadata, origin=view.origin, blocked=view.blocked,
        input=None if request is None else secrets.mask(request.input, card.input if card is not None else None),
        config=None if request is None else secrets.mask(request.config, card.config if card is not None else None),
        output=view.output, error=view.error, usage=view.usage,
        questions=[question_view(run.QuestionRecord(question, "open", "")) for question in view.questions],
    )  # fmt: skip


def question_view(record: run.QuestionRecord) -> wire.Question:
    question, answer = record.question, record.answer
    return wire.Question(
        id=question.id, run=question.run, type=question.type, payload=question.payload,
        answer_schema=question.answer_schema, asked_at=moment(question.asked_at), state=record.state,
        runs=record.runs if record.path else [], prompt=question.prompt, options=question.options,
        deadline=maybe(question.deadline), answerer=question.answerer,
        answer=answer.value if answer is not None else None, answered_by=answer.by if answer is not None else "",
        door=answer.door if answer is not None else "", closed_at=maybe(record.closed_at), reason=record.reason,
        change=record.change,
    )  # fmt: skip


def event_view(event: events.Event, cards: CardOf) -> wire.Event:
    body = event.body
    if isinstance(body, RunCreated):
        body = masked(body, cards(body.request.agent, body.request.version))
    elif isinstance(body, ChildCalled) and body.args:
        card = cards(body.agent, None)
        if card is not None and secrets.has_secrets(card.input):
            body = msgspec.structs.replace(body, args="")
    return wire.Event(
        run=event.run, seq=event.seq, first=event.first or event.seq, time=moment(event.time), hash=event.hash.hex(),
        kind=event.kind, body=body,
    )  # fmt: skip


def masked(body: RunCreated, card: AgentCard | None) -> RunCreated:
    """Returns the first event of a run without its secrets; the same one where it has none."""
    request = body.request
    if card is None or not (secrets.has_secrets(card.input) or secrets.has_secrets(card.config)):
        return body
    masked_request = msgspec.structs.replace(
        request, input=secrets.mask(request.input, card.input), config=secrets.mask(request.config, card.config),
        messages=[],
    )  # fmt: skip
    return msgspec.structs.replace(body, request=masked_request)


def thread_view(thread: run.Thread, *, shows_values: bool) -> wire.Thread:
    return wire.Thread(
        id=thread.id, status=thread.status, created_at=moment(thread.created_at), updated_at=moment(thread.updated_at),
        caller=thread.caller, version=thread.version, values=thread.values if shows_values else None,
        checkpoint=thread.checkpoint, active=thread.active, metadata=thread.metadata,
    )  # fmt: skip


def checkpoint_view(checkpoint: run.Checkpoint) -> wire.Checkpoint:
    return wire.Checkpoint(
        id=checkpoint.id, thread=checkpoint.thread, version=checkpoint.version, values=checkpoint.values,
        created_at=moment(checkpoint.created_at), run=checkpoint.run, metadata=checkpoint.metadata,
    )  # fmt: skip
