"""Reads from a log what a run did and waited for, and when: its steps, questions, children and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..engine.ports import kind_of, name_of
from ..model.events import (
    ChildCalled,
    ChildEnded,
    Event,
    MessageReceived,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunCreated,
    RunStarted,
)
from . import wire
from .views import moment

_CLOCKS = ("now", "uuid", "random")  # recorded, but nothing that takes time


async def steps(log: AsyncIterator[Event]) -> list[wire.Step]:
    """Returns the steps of a run, in the order in which they began to be on record. The log says of a step only when it
    was done."""
    shown: list[wire.Step] = []
    open_: dict[str, wire.Step] = {}

    def begin(step: wire.Step, id_: str) -> None:
        shown.append(step)
        open_[id_] = step

    def end(id_: str, event: Event) -> wire.Step | None:
        step = open_.pop(id_, None)
        if step is not None:
            step.ended_at = moment(event.time)
        return step

    async for event in log:
        time = moment(event.time)
        match event.body:
            case RunCreated():
                begin(wire.Step(kind="queued", name="queued", key="", seq=event.seq, started_at=time), "queued")
            case RunStarted():
                end("queued", event)
            case Recorded(key=key) as record:
                if kind_of(key) not in _CLOCKS:
                    step = wire.Step(
                        kind="step", name=name_of(key) or kind_of(key), key=key, seq=event.seq, ended_at=time
                    )
                    step.error, step.arguments = record.error, record.args
                    shown.append(step)
            case QuestionAsked(question=question, run=None):
                step = wire.Step(kind="question", name=question.type, key=question.key, seq=event.seq, started_at=time)
                step.question = question.id
                begin(step, question.id)
            case QuestionAnswered(question=id_) | QuestionWithdrawn(question=id_):
                end(id_, event)
            case ChildCalled(key=key, run=run, agent=agent, args=args):
                step = wire.Step(kind="child", name=agent, key=key, seq=event.seq, started_at=time, run=run)
                step.arguments = args
                begin(step, run)
            case ChildEnded(run=run, error=error):
                if (ended := end(run, event)) is not None:
                    ended.error = error
            case MessageReceived(message=message):
                shown.append(
                    wire.Step(kind="message", name=message.sender or message.role, key="", seq=event.seq, ended_at=time)
                )
    return shown
