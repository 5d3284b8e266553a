"""What a run's log already holds, for a handler that is entered again.

Records (steps, answers, children's results, messages) are given back instead of being made again. What the handler
emits is compared with what it emitted before: the same is skipped, and the first difference voids the rest.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from ..model import values
from ..model.content import Message
from ..model.delta import ABSENT, DeltaError, Joiner, combine, compose_all, diff
from ..model.events import (
    EMISSIONS,
    CancelRequested,
    ChildCalled,
    ChildEnded,
    CodeChanged,
    DelegationRefused,
    Emission,
    ErrorHandled,
    Event,
    MessageReceived,
    MessageSent,
    OutputDelta,
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
from ..model.run import Answer, Question
from .mailbox import Mailbox
from .record_keys import UNKNOWN, UNKNOWN_ARGUMENTS, Arguments, describe, kind_of, name_of, place_of, show

STATE = "state"
"""The record in which a run leaves the state of a thread that was lent to it."""

LATE = "late:"
"""What the step of a warning begins with that no handler gives, and so none gives again: an answer came too late."""

# What code of a handler comes to by `key=`. The engine keeps other records for itself.
_KEYED: dict[type, tuple[str, ...]] = {
    Recorded: ("step", "sleep", "tool", "patch"),
    QuestionAsked: ("ask",),
    ChildCalled: ("call", "inner"),
    DelegationRefused: ("call",),
    ToolRefused: ("tool",),
}

_NONE: deque[tuple[int, Emission]] = deque(maxlen=0)  # of runs that are new: a deque of its own is larger than the rest


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
    _matched = 0  # seq of the last event that the handler has caught up with
    _held_size = 0
    _voided = False
    code = ""  # digest of the code that entered last

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, Recorded]] = {}
        self._calls: dict[tuple[str, int], Event] = {}  # by branch and position: what shows best what was called there
        self._ahead: dict[str, Event] = {}  # by key: records that the handler has yet to reach
        self.questions: dict[str, PastQuestion] = {}
        self.relayed: dict[str, str] = {}  # open questions of descendants: id → run
        self.children: dict[str, tuple[ChildCalled, ChildEnded | None, int]] = {}
        self.ended_at: dict[str, int] = {}  # seq of the ends of children that the history has
        self.refused: dict[str, tuple[int, DelegationRefused | ToolRefused]] = {}
        self.said: dict[str, tuple[int, Said]] = {}  # by this run
        self.handled: dict[str, tuple[int, ErrorHandled]] = {}
        self.received = Mailbox()
        self.sent: list[Message] = []
        self.output = Joiner()
        self._standing: list[tuple[int, Emission]] = []
        self._emissions = _NONE  # what stands, outside recorded steps
        self._of_steps: dict[str, list[tuple[int, Emission]]] = {}
        self._held: list[OutputDelta] = []  # output fragments that may still turn out to be the next expected delta

    @classmethod
    def of(cls, events: list[Event]) -> Replay:
        replay = cls()
        replay.read(events)
        replay.close_history()
        return replay

    def read(self, events: list[Event]) -> None:
        """Take in the next page of the history. Of messages only those stay in memory that come first."""
        for event in events:
            body = event.body
            key = _key_of(body)
            if key is not None:
                self._note_call(key, event)
            match body:
                case RunCreated(code=code):
                    self.created, self.code = body, code
                case RunStarted():
                    if not self.started:
                        self.checkpoint, self.thread_version = body.checkpoint, body.thread_version
                    self.started, self.code = True, body.code or self.code
                case CodeChanged(new=code):
                    self.code = code
                case RunRestarted(keep=keep):
                    self._standing = [(seq, e) for seq, e in self._standing if seq <= keep]
                case Recorded(key=key):
                    self.records[key] = (event.seq, body)
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
                    self.children[key] = (self.children[key][0], body, event.seq)
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
                    self._standing.append((event.seq, body))
        if events:
            self.last_seq = events[-1].seq

    def close_history(self) -> None:
        """All of the history was read."""
        self._rebuild()
        self._emissions = deque()
        for seq, body in self._standing:
            if body.step is not None and body.step in self.records:
                self._of_steps.setdefault(body.step, []).append((seq, body))
            else:
                self._emissions.append((seq, body))

    # -- calls --------------------------------------------------------------------------------------------

    def _note_call(self, key: str, event: Event) -> None:
        place = place_of(key)
        if place is None:
            if kind_of(key) in _KEYED.get(type(event.body), ()):
                self._ahead[key] = event
            return
        known = self._calls.get((place.branch, place.position))
        if known is None or (key == place.key and isinstance(event.body, Recorded | ChildCalled | QuestionAsked)):
            self._calls[place.branch, place.position] = event
        self._ahead.setdefault(place.key, event)

    def call_at(self, branch: str, position: int) -> PastCall | None:
        """The call that the history has at a place. None where nothing was recorded of it."""
        event = self._calls.get((branch, position))
        return _past_call(event) if event is not None else None

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
        found = [(place_of(key), event) for key, event in self._ahead.items()]
        return [
            _past_call(event) for place, event in found
            if branch is None or (place is not None and place.branch == branch)
        ]  # fmt: skip

    def _rebuild(self) -> None:
        """Output and messages, from what stands."""
        self.output, self.sent = Joiner(), []
        for _, body in self._standing:
            if isinstance(body, OutputDelta):
                self.output.add(body.delta)
            elif isinstance(body, MessageSent):
                self.sent.append(body.message)

    def _close(self, question: str, answer: Answer | None, run: str | None, seq: int, reason: str = "") -> None:
        if run is not None:
            self.relayed.pop(question, None)
            return
        for past in self.questions.values():
            if past.question.id == question:
                past.open, past.answer, past.seq, past.reason = False, answer, seq, reason

    @property
    def standing(self) -> list[Emission]:
        """What was emitted and still counts."""
        return [body for _, body in self._standing]

    # -- records ------------------------------------------------------------------------------------------

    def emissions_of_step(self, key: str) -> list[Emission]:
        """What a recorded step emitted, if that was voided since: it must be said again."""
        emitted = self._of_steps.pop(key, [])
        if self._voided:
            return [body for _, body in emitted]
        if emitted:
            self._matched = max(self._matched, emitted[-1][0])
        return []

    def standing_of_step(self, key: str) -> list[Emission]:
        """What a recorded step emitted, if that need not be said again."""
        return [] if self._voided else [body for _, body in self._of_steps.get(key, ())]

    def emitted_by(self, key: str) -> list[Emission]:
        """What a step emitted that was cut short, as far as it stands and has not been emitted again."""
        return [body for _, body in self._emissions if body.step == key]

    def passed(self, seq: int) -> tuple[list[Emission], int | None]:
        """The handler has taken the record at `seq`.

        Where it said something else before that than it did the first time: what to append, and what to keep.
        """
        if not self._held and not (self._emissions and self._emissions[0][0] < seq):
            if seq > self._matched and not self._voided:
                self._matched = seq
            return [], None
        return self._release(), self.void()

    def step_ended(self, key: str) -> tuple[list[Emission], int | None]:
        """A step has its result, or is begun anew. What an attempt before it has shown, and it has not, is void.

        Returns the same as `passed`.
        """
        if any(body.step == key for _, body in self._emissions) or any(body.step == key for body in self._held):
            return self._release(), self.void()
        return [], None

    # -- emissions ----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is left to compare: emissions go straight to the log."""
        return not self._emissions and not self._held

    def match(self, body: Emission) -> tuple[bool, list[Emission], int | None]:
        """Compare one emission with the log.

        Returns whether it was taken in (it stands, or is held back for now), emissions to append, and what to keep if
        the rest of the old ones is void from here.
        """
        if isinstance(body, OutputDelta):
            return self._match_delta(body)
        seq, expected = self._emissions[0] if self._emissions else (0, None)
        if not self._held and expected is not None and _same(expected, body):
            self._emissions.popleft()
            self._matched = seq
            return True, [], None
        held = self._release()
        keep = self.void()
        return False, held, keep

    def _match_delta(self, body: OutputDelta) -> tuple[bool, list[Emission], int | None]:
        seq, expected = self._emissions[0] if self._emissions else (0, None)
        if not isinstance(expected, OutputDelta) or expected.step != body.step:
            if not self._held and _changes_nothing(self.output.value, body.delta):
                return True, [], None  # it was merged into the one before
            held = self._release()
            return False, held, self.void()
        self._held.append(body)
        self._held_size += _chars(body.delta)
        size = _chars(expected.delta)
        if self._held_size < size and len(self._held) & (len(self._held) - 1):
            return (
                True,
                [],
                None,
            )  # look closely only at powers of two: a long text is not compared per fragment
        joined = compose_all(held.delta for held in self._held)
        if self._held_size == size and values.canonical(joined) == values.canonical(expected.delta):
            self._emissions.popleft()
            self._matched = seq
            self._held, self._held_size = [], 0
            return True, [], None
        if self._held_size <= size and _may_become(joined, expected.delta):
            return True, [], None
        held = self._release()
        return True, held, self.void()

    def _release(self) -> list[Emission]:
        held: list[Emission] = [*self._held]
        self._held, self._held_size = [], 0
        return held

    def finish(self) -> tuple[list[Emission], int | None]:
        """The handler is done. What it did not emit again no longer stands."""
        if self.idle:
            return [], None
        return self._release(), self.void()

    def void(self) -> int | None:
        """Nothing that stood after the last match counts any more. Returns what to keep."""
        stood = self._standing and self._standing[-1][0] > self._matched
        self._emissions.clear()
        self._voided = True
        self._standing = [(seq, body) for seq, body in self._standing if seq <= self._matched]
        self._rebuild()
        return self._matched if stood else None


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
    return values.digest(text)[:16]


def _same(old: Emission, new: Emission) -> bool:
    return type(old) is type(new) and values.encode(old) == values.encode(new)


def _changes_nothing(output: Any, delta: Any) -> bool:
    if output is ABSENT:
        return False
    try:
        return values.canonical(combine(output, delta)) == values.canonical(output)
    except DeltaError:
        return False


def _chars(delta: Any) -> int:
    """How much text a delta holds. Adds up under compose, so it tells when to compare."""
    if isinstance(delta, str):
        return len(delta)
    if isinstance(delta, dict):
        return sum(_chars(member) for member in delta.values())
    if isinstance(delta, list):
        return sum(_chars(member) for member in delta)
    return 0


def _may_become(part: Any, whole: Any) -> bool:
    try:
        diff(part if part is not ABSENT else None, whole)
    except DeltaError:
        return False
    return True
