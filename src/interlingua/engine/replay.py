"""What a run's log already holds, for a handler that is entered again.

Records (steps, answers, children's results, messages) are given back instead of being made again. What the handler
emits is compared with what it emitted before: the same is skipped, and the first difference voids the rest.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..model import values
from ..model.content import Message
from ..model.delta import ABSENT, DeltaError, Joiner, combine, compose_all, diff
from ..model.events import (
    EMISSIONS,
    CancelRequested,
    ChildCalled,
    ChildEnded,
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

LATE = "late:"
"""What the step of a warning begins with that no handler gives, and so none gives again: an answer came too late."""

_NONE: deque[tuple[int, Emission]] = deque(maxlen=0)  # of runs that are new: a deque of its own is larger than the rest


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
    _matched = 0  # seq of the last event that the handler has caught up with
    _held_size = 0
    _voided = False

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, Recorded]] = {}
        self.questions: dict[str, PastQuestion] = {}
        self.relayed: dict[str, str] = {}  # open questions of descendants: id → run
        self.children: dict[str, tuple[ChildCalled, ChildEnded | None, int]] = {}
        self.refused: dict[str, tuple[int, DelegationRefused | ToolRefused]] = {}
        self.said: dict[str, tuple[int, Said]] = {}  # by this run
        self.handled: dict[str, tuple[int, ErrorHandled]] = {}
        self.received: list[Message] = []
        self.sent: list[Message] = []
        self.output = Joiner()
        self._standing: list[tuple[int, Emission]] = []
        self._emissions = _NONE  # what stands, outside recorded steps
        self._of_steps: dict[str, list[tuple[int, Emission]]] = {}
        self._held: list[OutputDelta] = []  # output fragments that may still turn out to be the next expected delta

    @classmethod
    def of(cls, events: list[Event]) -> Replay:
        replay = cls()
        emissions: list[tuple[int, Emission]] = []
        for event in events:
            body = event.body
            match body:
                case RunCreated():
                    replay.created = body
                case RunStarted():
                    if not replay.started:
                        replay.checkpoint, replay.thread_version = body.checkpoint, body.thread_version
                    replay.started = True
                case RunRestarted(keep=keep):
                    emissions = [(seq, e) for seq, e in emissions if seq <= keep]
                case Recorded(key=key):
                    replay.records[key] = (event.seq, body)
                case QuestionAsked(question=question, run=run):
                    if run is None:
                        replay.questions[question.key] = PastQuestion(question)
                    else:
                        replay.relayed[question.id] = run
                case QuestionAnswered(question=question_id, answer=answer, run=run):
                    replay._close(question_id, answer, run, event.seq)
                case QuestionWithdrawn(question=question_id, reason=reason, run=run):
                    replay._close(question_id, None, run, event.seq, reason)
                case CancelRequested(rollback=rollback):
                    replay.cancelled = True
                    replay.rollback = replay.rollback or rollback
                case MessageReceived(message=message):
                    replay.received.append(message)
                case ChildCalled(key=key):
                    replay.children[key] = (body, None, event.seq)
                case ChildEnded(key=key):
                    replay.children[key] = (replay.children[key][0], body, event.seq)
                case DelegationRefused(key=key):
                    replay.refused[key] = (event.seq, body)
                    replay.children.pop(key, None)
                case ToolRefused(key=key):
                    replay.refused[key] = (event.seq, body)
                case Said(key=key, run=None):
                    replay.said[key] = (event.seq, body)
                case ErrorHandled(key=key):
                    replay.handled[key] = (event.seq, body)
                case Warned(step=str(step)) if step.startswith(LATE):
                    pass
                case _ if isinstance(body, EMISSIONS):
                    emissions.append((event.seq, body))
        replay._standing = emissions
        replay._rebuild()
        replay._emissions = deque()
        for seq, body in emissions:
            if body.step is not None and body.step in replay.records:
                replay._of_steps.setdefault(body.step, []).append((seq, body))
            else:
                replay._emissions.append((seq, body))
        return replay

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
