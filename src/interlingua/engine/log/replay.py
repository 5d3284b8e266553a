"""The history of a run, for a handler that is replayed.

Records (steps, answers, children's results, messages) are returned instead of being made again. What the handler emits
is compared with what it emitted before: see `emissions`.
"""

from __future__ import annotations

from collections.abc import Callable
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
        self.withdrawn_by = ""  # the caller that withdrew it
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
            if (read := _READERS.get(type(body))) is not None:
                read(self, event, body)
            elif isinstance(body, EMISSIONS):
                self.emissions.read(event.seq, body)
        if events:
            self.last_seq = events[-1].seq

    def _read_created(self, event: Event, body: RunCreated) -> None:
        self.created, self.code = body, body.code

    def _read_started(self, event: Event, body: RunStarted) -> None:
        if not self.started:
            self.checkpoint, self.thread_version = body.checkpoint, body.thread_version
            self.first_code = body.code or self.code
        self.started, self.code = True, body.code or self.code

    def _read_code(self, event: Event, body: CodeChanged) -> None:
        self.code = body.new

    def _read_restarted(self, event: Event, body: RunRestarted) -> None:
        self.emissions.restarted(body.keep)

    def _read_record(self, event: Event, body: Recorded) -> None:
        self.records[body.key] = (event.seq, self._fitting(body, event.size))

    def _read_question(self, event: Event, body: QuestionAsked) -> None:
        if body.run is None:
            self.questions[body.question.key] = PastQuestion(body.question)
        else:
            self.relayed[body.question.id] = body.run

    def _read_answer(self, event: Event, body: QuestionAnswered) -> None:
        self._close(body.question, body.answer, body.run, event.seq)

    def _read_withdrawn(self, event: Event, body: QuestionWithdrawn) -> None:
        self._close(body.question, None, body.run, event.seq, body.reason, body.by)

    def _read_cancel(self, event: Event, body: CancelRequested) -> None:
        self.cancelled = True
        self.rollback = self.rollback or body.rollback

    def _read_message(self, event: Event, body: MessageReceived) -> None:
        self.received.add(body.message, event.seq, event.size)

    def _read_child(self, event: Event, body: ChildCalled) -> None:
        self.children[body.key] = (body, None, event.seq)

    def _read_child_end(self, event: Event, body: ChildEnded) -> None:
        called = self.children[body.key][0]
        self.children[body.key] = (called, self._fitting_end(body, event.size), event.seq)
        self.ended_at[body.key] = event.seq

    def _read_refused_child(self, event: Event, body: DelegationRefused) -> None:
        self.refused[body.key] = (event.seq, body)
        self.children.pop(body.key, None)

    def _read_refused_tool(self, event: Event, body: ToolRefused) -> None:
        self.refused[body.key] = (event.seq, body)

    def _read_said(self, event: Event, body: Said) -> None:
        if body.run is None:
            self.said[body.key] = (event.seq, body)

    def _read_handled(self, event: Event, body: ErrorHandled) -> None:
        self.handled[body.key] = (event.seq, body)

    def _read_warning(self, event: Event, body: Warned) -> None:
        if body.step is None or not body.step.startswith(LATE):
            self.emissions.read(event.seq, body)

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
        """True when the handler has passed its last record. Open questions and children count as records."""
        return not self._ahead

    def unused(self, branch: str | None = None) -> list[PastCall]:
        """Calls that the handler has not come to: all, or those of one branch."""
        found = [(place_of(key), call) for key, call in self._ahead.items()]
        return [
            call for place, call in found
            if branch is None or (place is not None and place.branch == branch)
        ]  # fmt: skip

    def _close(
        self, question: str, answer: Answer | None, run: str | None, seq: int, reason: str = "", by: str = ""
    ) -> None:
        if run is not None:
            self.relayed.pop(question, None)
            return
        for past in self.questions.values():
            if past.question.id == question:
                past.open, past.answer, past.seq, past.reason, past.withdrawn_by = False, answer, seq, reason, by


_READERS: dict[type, Callable[[Any, Event, Any], None]] = {
    RunCreated: Replay._read_created,
    RunStarted: Replay._read_started,
    CodeChanged: Replay._read_code,
    RunRestarted: Replay._read_restarted,
    Recorded: Replay._read_record,
    QuestionAsked: Replay._read_question,
    QuestionAnswered: Replay._read_answer,
    QuestionWithdrawn: Replay._read_withdrawn,
    CancelRequested: Replay._read_cancel,
    MessageReceived: Replay._read_message,
    ChildCalled: Replay._read_child,
    ChildEnded: Replay._read_child_end,
    DelegationRefused: Replay._read_refused_child,
    ToolRefused: Replay._read_refused_tool,
    Said: Replay._read_said,
    ErrorHandled: Replay._read_handled,
    Warned: Replay._read_warning,
}


def _comes_once(key: str) -> bool:
    """Tells whether a handler comes to this record at its place, and at no other."""
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
    """The digest that tells one message to a participant from another."""
    return json_values.digest(text)[:16]
