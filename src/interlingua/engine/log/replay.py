"""What a run's log already holds, for a handler that is entered again.

Records (steps, answers, children's results, messages) are returned instead of being made again. What the handler emits
is compared with what it emitted before: see `emissions`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ...model import json_values
from ...model.events import (
    EMISSIONS,
    CancelRequested,
    ChildCalled,
    ChildEnded,
    CodeChanged,
    DelegationRefused,
    ErrorHandled,
    Event,
    MessageReceived,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunCreated,
    RunRestarted,
    RunStarted,
    Said,
    ToolRefused,
    Warned,
)
from ...model.run import Answer, Question
from ..settings import Settings
from .emissions import Emissions
from .received_messages import ReceivedMessages
from .record_keys import UNKNOWN, UNKNOWN_ARGUMENTS, Arguments, describe, kind_of, name_of, place_of, show

STATE = "state"
"""The record in which a run leaves the state of a thread that was lent to it."""

LATE = "late:"
"""What the step of a warning begins with that no handler gives, and so none gives again: an answer came too late."""

NEVER_BEGAN = ":never_began"
"""What the key of a record ends with that says why a child was refused when it was submitted."""

# What code of a handler comes to by `key=`. The engine keeps other records for itself.
_KEYED: dict[type, tuple[str, ...]] = {
    Recorded: ("step", "sleep", "tool", "patch"),
    QuestionAsked: ("ask",),
    ChildCalled: ("call", "inner"),
    DelegationRefused: ("call",),
    ToolRefused: ("tool",),
}


class PastCall(NamedTuple):
    """A call in the history."""

    key: str
    arguments: Arguments

    def __str__(self) -> str:
        return describe(kind_of(self.key), name_of(self.key), self.arguments.shown)


class PastQuestion:
    def __init__(self, question: Question) -> None:
        self.question = question
        self.answer: Answer | None = None
        self.open = True
        self.reason = ""  # why it was withdrawn
        self.seq = 0


class Replay:
    created: RunCreated | None = None
    started = False
    checkpoint: str | None = None
    thread_version = 0
    cancelled = False
    rollback = False
    last_seq = 0  # of the history
    code = ""  # digest of the code that entered last
    first_code = ""  # digest of the code that entered first
    has_calls = False  # the history has something that a call of the handler left

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, Recorded]] = {}
        self.in_store: set[str] = set()  # keys of records whose values are not in memory
        self._most_bytes = Settings().keep_live_bytes
        self._bytes = 0  # of the results of steps that are in memory
        self._calls: dict[tuple[str, int], PastCall] = {}  # by branch and position: what shows best what was called
        self._ahead: dict[str, PastCall] = {}  # by key: records that the handler has yet to reach
        self.questions: dict[str, PastQuestion] = {}
        self.relayed: dict[str, str] = {}  # open questions of descendants: id → run
        self.children: dict[str, tuple[ChildCalled, ChildEnded | None, int]] = {}
        self.ended_at: dict[str, int] = {}  # seq of the ends of children that the history has
        self.refused: dict[str, tuple[int, DelegationRefused | ToolRefused]] = {}
        self.said: dict[str, tuple[int, Said]] = {}  # by this run
        self.handled: dict[str, tuple[int, ErrorHandled]] = {}
        self.received = ReceivedMessages()
        self.emissions = Emissions()

    @classmethod
    def of(cls, events: list[Event]) -> Replay:
        replay = cls()
        replay._most_bytes = sum(event.size for event in events)  # they are in memory as it is
        replay.read(events)
        replay.close_history()
        return replay

    def bound(self, most_bytes: int) -> None:
        """Set how many bytes of messages, and of results of steps, are in memory."""
        self._most_bytes = most_bytes
        self.received.bound(most_bytes)

    def read(self, events: list[Event]) -> None:
        """Take in the next page of the history. Of messages and results only those stay in memory that come first."""
        for event in events:
            body = event.body
            key = _key_of(body)
            if key is not None:
                self.has_calls = True
                self._note_call(key, event)
            match body:
                case RunCreated(code=code):
                    self.created, self.code = body, code
                case RunStarted():
                    if not self.started:
                        self.checkpoint, self.thread_version = body.checkpoint, body.thread_version
                        self.first_code = body.code or self.code
                    self.started, self.code = True, body.code or self.code
                case CodeChanged(new=code):
                    self.code = code
                case RunRestarted(keep=keep):
                    self.emissions.restarted(keep)
                case Recorded(key=key):
                    self.records[key] = (event.seq, self._fitting(body, event.size))
                case QuestionAsked(question=question, run=run):
                    if run is None:
                        self.questions[question.key] = PastQuestion(question)
                    else:
                        self.relayed[question.id] = run
                case QuestionAnswered(question=question_id, answer=answer, run=run):
                    self._close(question_id, answer, run, event.seq)
                case QuestionWithdrawn(question=question_id, reason=reason, run=run):
                    self._close(question_id, None, run, event.seq, reason)
                case CancelRequested(rollback=rollback):
                    self.cancelled = True
                    self.rollback = self.rollback or rollback
                case MessageReceived(message=message):
                    self.received.add(message, event.seq, event.size)
                case ChildCalled(key=key):
                    self.children[key] = (body, None, event.seq)
                case ChildEnded(key=key):
                    self.children[key] = (self.children[key][0], self._fitting_end(body, event.size), event.seq)
                    self.ended_at[key] = event.seq
                case DelegationRefused(key=key):
                    self.refused[key] = (event.seq, body)
                    self.children.pop(key, None)
                case ToolRefused(key=key):
                    self.refused[key] = (event.seq, body)
                case Said(key=key, run=None):
                    self.said[key] = (event.seq, body)
                case ErrorHandled(key=key):
                    self.handled[key] = (event.seq, body)
                case Warned(step=str(step)) if step.startswith(LATE):
                    pass
                case _ if isinstance(body, EMISSIONS):
                    self.emissions.read(event.seq, body)
        if events:
            self.last_seq = events[-1].seq

    def close_history(self) -> None:
        """All of the history was read."""
        self.emissions.close_history(self.records)

    def _fitting(self, record: Recorded, size: int) -> Recorded:
        """The record as it is kept in memory: without its value where there is no room for that."""
        if self._has_room(record.key, size):
            return record
        return msgspec.structs.replace(record, value=None)

    def _fitting_end(self, ended: ChildEnded, size: int) -> ChildEnded:
        if self._has_room(ended.key, size):
            return ended
        return msgspec.structs.replace(ended, output=None)

    def _has_room(self, key: str, size: int) -> bool:
        if not _comes_once(key):
            return True
        if self._bytes + size > self._most_bytes:
            self.in_store.add(key)
            return False
        self._bytes += size
        return True

    def forget(self, key: str) -> None:
        """The handler has this record. Its place comes only once; what has a key of its own may be asked for again."""
        if _comes_once(key):
            self.records.pop(key, None)
            self.in_store.discard(key)

    def forget_end(self, key: str) -> None:
        """The handler has the result of this child."""
        called, ended, seq = self.children[key]
        if ended is not None and _comes_once(key):
            self.children[key] = (called, msgspec.structs.replace(ended, output=None), seq)
            self.in_store.discard(key)

    # -- calls --------------------------------------------------------------------------------------------

    def _note_call(self, key: str, event: Event) -> None:
        place = place_of(key)
        if place is None:
            if kind_of(key) in _KEYED.get(type(event.body), ()):
                self._ahead[key] = _past_call(event)
            return
        known = self._calls.get((place.branch, place.position))
        if known is None or (key == place.key and isinstance(event.body, Recorded | ChildCalled | QuestionAsked)):
            known = self._calls[place.branch, place.position] = _past_call(event)
        self._ahead.setdefault(place.key, known)

    def call_at(self, branch: str, position: int) -> PastCall | None:
        """The call that the history has at a place. None where nothing was recorded of it."""
        return self._calls.get((branch, position))

    def never_began(self, key: str) -> tuple[int, Recorded] | None:
        """The record of a child that was refused when it was submitted, by the key of its call."""
        return self.records.get(key + NEVER_BEGAN)

    def reach(self, key: str) -> None:
        """The handler has come to the record with this key."""
        if self._ahead:
            self._ahead.pop(key, None)

    @property
    def caught_up(self) -> bool:
        """Whether the handler has passed its last record. Open questions and children count as records."""
        return not self._ahead

    def unused(self, branch: str | None = None) -> list[PastCall]:
        """Calls that the handler has not come to: all, or those of one branch."""
        found = [(place_of(key), call) for key, call in self._ahead.items()]
        return [
            call for place, call in found
            if branch is None or (place is not None and place.branch == branch)
        ]  # fmt: skip

    def _close(self, question: str, answer: Answer | None, run: str | None, seq: int, reason: str = "") -> None:
        if run is not None:
            self.relayed.pop(question, None)
            return
        for past in self.questions.values():
            if past.question.id == question:
                past.open, past.answer, past.seq, past.reason = False, answer, seq, reason


def _comes_once(key: str) -> bool:
    """Whether a handler comes to this record at its place, and at no other."""
    place = place_of(key)
    return place is not None and place.kind in ("step", "tool", "call") and place.key == key


def _key_of(body: Any) -> str | None:
    """The key of a record that belongs to a call."""
    match body:
        case QuestionAsked(question=question, run=None):
            return question.key
        case Said(key=key, run=None) | Recorded(key=key) | ChildCalled(key=key) | DelegationRefused(key=key):
            return key or None
        case ToolRefused(key=key) | ErrorHandled(key=key):
            return key or None
    return None


def _past_call(event: Event) -> PastCall:
    body = event.body
    key = _key_of(body)
    assert key is not None
    place = place_of(key)
    base = key if place is None else place.key
    if key != base:
        return PastCall(base, UNKNOWN_ARGUMENTS)
    match body:
        case Recorded(digest=digest, args=args):
            return PastCall(base, Arguments(digest, args))
        case QuestionAsked(question=question):
            return PastCall(base, Arguments(question.digest or UNKNOWN, show(question.payload)))
        case ChildCalled(input=digest, args=args):
            return PastCall(base, Arguments(digest, args))
        case DelegationRefused(input=digest) | ToolRefused(input=digest):
            return PastCall(base, Arguments(digest))
        case Said() as said:
            return PastCall(base, Arguments(said_digest(said.text), show(said.text)))
    return PastCall(base, UNKNOWN_ARGUMENTS)


def said_digest(text: str) -> str:
    """What tells one message to a participant from another."""
    return json_values.digest(text)[:16]
