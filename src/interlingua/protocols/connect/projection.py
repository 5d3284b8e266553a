"""A run's log as a stream of the protocol: `values` conflated to the newest, `custom` per fragment.

The id of an update is the log's own seq, so that a stream can be resumed at any update.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.card import AgentCard
from ...model.delta import ABSENT, Joiner
from ...model.errors import RunCancelled
from ...model.events import (
    EMISSIONS,
    Event,
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    RunBlocked,
    RunFinished,
    RunRestarted,
    Said,
    blocked_warning,
    emission_json,
    thought_from_message,
)
from ...model.prompt_input import ContentCollector
from ...model.status import Status
from . import translate

# Where an update stands: the seq of its event, and 0 for the fragment, 1 for the value that comes after it. Both modes
# at once send two updates of one event, and a stream can be taken up between them.
Place = tuple[int, int]
Update = tuple[Place, dict[str, Any]]


def place_of(last_event_id: str) -> Place | None:
    """Reads back an id; returns None where the id is not one of this projection."""
    seq, dot, part = last_event_id.partition(".")
    if not seq.isdecimal() or len(seq) > 15 or (dot and part != "0"):
        return None
    return int(seq), 0 if dot else 1


def id_of(place: Place) -> str:
    return str(place[0]) if place[1] else f"{place[0]}.0"


class Projection:
    """Events in, updates of the protocol out. Pure."""

    def __init__(self, run: str, modes: list[str], card: AgentCard | None, reader: str = "") -> None:
        self._run = run
        self._reader = reader  # the caller that reads
        self._values = "values" in modes
        self._custom = "custom" in modes
        self._card = card
        self.pending_id: int | None = None  # a value that is newer than the last one sent
        self.forget()

    def forget(self) -> None:
        """Frees the output so far. Before the projection is used again, it is fed from the beginning of the log."""
        self._joiner = Joiner()
        self._open: dict[str, Any] = {}
        self._given = ContentCollector()
        self.forgotten = True

    def feed(self, event: Event, output: Any = ABSENT) -> list[Update]:
        """Returns the updates of an event. `output` is what remains of the output where the run was restarted. Updates
        are not kept, because there may be many readers."""
        body = event.body
        self.forgotten = False
        if isinstance(body, OutputDelta):
            if self._values:
                self._joiner.add(body.delta)
                self.pending_id = event.seq
            return self._custom_update(event.seq, {"kind": "delta", "delta": body.delta})
        if isinstance(body, RunRestarted):
            self._given.feed(event)
            if self._values:
                self._joiner = Joiner()
                if output is not ABSENT:
                    self._joiner.add(output)
                self.pending_id = event.seq
            return self._custom_update(event.seq, {"kind": "reset", "delta": {} if output is ABSENT else output})
        if isinstance(body, QuestionAsked):
            self._open[body.question.id] = body.question
            return []
        if isinstance(body, QuestionAnswered | QuestionWithdrawn):
            self._open.pop(body.question, None)
            return []
        if isinstance(body, RunFinished):
            return [((event.seq, 1), self._end(body))]
        if isinstance(body, RunBlocked):
            return self._custom_update(event.seq, msgspec.to_builtins(blocked_warning(body)))
        if isinstance(body, Said):
            thought = thought_from_message(body)
            return [] if thought is None else self._custom_update(event.seq, msgspec.to_builtins(thought))
        if isinstance(body, EMISSIONS):
            self._given.feed(event)
            return self._custom_update(event.seq, emission_json(body))
        return []

    def _custom_update(self, seq: int, update: dict[str, Any]) -> list[Update]:
        if not self._custom:
            return []
        return [((seq, 0), {"type": "custom", "run_id": self._run, "status": "pending", "update": update})]

    def newest(self) -> list[Update]:
        """Returns the present value, where it has not been sent yet."""
        if self.pending_id is None:
            return []
        seq, self.pending_id = self.pending_id, None
        value = self._joiner.value
        value = {} if value is ABSENT else value
        told = {"type": "values", "run_id": self._run, "status": "pending", "values": value, "result": value}
        return [((seq, 1), told)]

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def interrupt(self, seq: int) -> list[Update]:
        if not self._open:
            return []
        question = next(iter(self._open.values()))
        return [
            ((seq, 1), {**translate.interrupt(question, self._reader), "run_id": self._run, "status": "interrupted"})
        ]

    def gone(self, seq: int) -> list[Update]:
        """Returns the last update for a run that was deleted before it could report its end."""
        return [((seq, 1), self._end(RunFinished(Status.CANCELLED, error=RunCancelled(translate.GONE).info())))]

    def _end(self, body: RunFinished) -> dict[str, Any]:
        self.pending_id = None
        messages = self._given.messages()
        self.forget()
        if body.status is Status.SUCCEEDED:
            return {
                "type": "values",
                "run_id": self._run,
                "status": "success",
                "values": body.output,
                "result": body.output,
                **translate.returned(messages),
            }
        error = translate.error(self._run, body.error, body.status, self._card)
        return {**error, "status": translate.STATUS[body.status]}
