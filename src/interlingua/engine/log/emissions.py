"""Emissions of a handler that is replayed: each branch is compared with what it emitted before.

The same is skipped. At the first difference all that is not repeated yet is void: the log then keeps what came before
it, and what stands and came later is written again. Branches are compared one by one, because the order in which they
emit says nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from ...model import json_values
from ...model.content import Message
from ...model.delta import ABSENT, DeltaError, Joiner, combine, compose_all, diff
from ...model.events import Emission, MessageSent, OutputDelta

Again = tuple[list[Emission], int | None]
"""Emissions to write, after a restart that keeps the log up to a seq; None: no restart."""

_NOTHING: Again = ([], None)


class Expected:
    """Emissions that one branch has yet to repeat."""

    __slots__ = ("_size", "held", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[int, Emission]] = deque()
        self.held: list[OutputDelta] = []  # fragments that may still turn out to be the next delta
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self.queue)

    @property
    def next_seq(self) -> int:
        return self.queue[0][0]

    def take(self, body: Emission, output: Any) -> tuple[bool, int]:
        """Tells whether this is what is expected next, or a part of it; and the seq of what it completes, or 0."""
        seq, expected = self.queue[0]
        if isinstance(body, OutputDelta):
            if isinstance(expected, OutputDelta) and expected.step == body.step:
                return self._take_fragment(body, expected, seq)
            return not self.held and _changes_nothing(output, body.delta), 0  # else it was merged into the one before
        if self.held or not _same(expected, body):
            return False, 0
        self.queue.popleft()
        return True, seq

    def _take_fragment(self, body: OutputDelta, expected: OutputDelta, seq: int) -> tuple[bool, int]:
        self.held.append(body)
        self._size += _chars(body.delta)
        size = _chars(expected.delta)
        if self._size < size and len(self.held) & (len(self.held) - 1):
            return True, 0  # look closely only at powers of two: a long text is not compared per fragment
        joined = compose_all(held.delta for held in self.held)
        if self._size == size and json_values.canonical(joined) == json_values.canonical(expected.delta):
            self.queue.popleft()
            self.held, self._size = [], 0
            return True, seq
        if self._size <= size and _may_become(joined, expected.delta):
            return True, 0
        self.held.pop()
        return False, 0

    def has_step(self, step: str) -> bool:
        return any(body.step == step for _, body in self.queue) or any(body.step == step for body in self.held)


class Emissions:
    """Emissions of a run that still count, and those of them that the handler has yet to repeat."""

    _matched = 0  # seq of the last event that the handler has caught up with
    _kept: int | None = None  # seq up to which the history stands, once something of it was voided

    def __init__(self) -> None:
        self.output = Joiner()
        self.sent: list[Message] = []
        self._standing: list[tuple[int, Emission]] = []
        self._expected: dict[str | None, Expected] = {}  # by branch: what stands, outside recorded steps
        self._of_steps: dict[str, list[tuple[int, Emission]]] = {}  # of recorded steps that were not passed yet
        self._since: list[Emission] = []  # emitted in this entry, while some branch has not repeated all

    # -- history ------------------------------------------------------------------------------------------

    def read(self, seq: int, body: Emission) -> None:
        self._standing.append((seq, body))

    def restarted(self, keep: int) -> None:
        self._standing = [(seq, body) for seq, body in self._standing if seq <= keep]

    def close_history(self, records: Collection[str]) -> None:
        """All of the history was read."""
        self._rebuild()
        for seq, body in self._standing:
            if body.step is not None and body.step in records:
                self._of_steps.setdefault(body.step, []).append((seq, body))
            else:
                self._expected.setdefault(body.branch, Expected()).queue.append((seq, body))

    def _rebuild(self) -> None:
        """Output and messages, from what stands."""
        self.output, self.sent = Joiner(), []
        for _, body in self._standing:
            if isinstance(body, OutputDelta):
                self.output.add(body.delta)
            elif isinstance(body, MessageSent):
                self.sent.append(body.message)

    @property
    def standing(self) -> list[Emission]:
        """Emissions that still count."""
        return [body for _, body in self._standing]

    # -- steps --------------------------------------------------------------------------------------------

    def of_step(self, key: str) -> tuple[list[Emission], list[Emission]]:
        """Emissions of a recorded step: those that still stand, and those that were voided and must be emitted
        again."""
        emitted = self._of_steps.pop(key, [])
        if self._kept is None:
            self._caught_up(emitted[-1][0] if emitted else 0)
            return [body for _, body in emitted], []
        kept = self._kept
        return [body for seq, body in emitted if seq <= kept], [body for seq, body in emitted if seq > kept]

    def emitted_by(self, key: str) -> list[Emission]:
        """Emissions of a step that was cut short, as far as they stand and have not been emitted again."""
        return [body for one in self._expected.values() for _, body in one.queue if body.step == key]

    def step_ended(self, key: str) -> Again:
        """A step has its result, or is begun anew. What an attempt before it has shown, and it has not, is void."""
        if any(one.has_step(key) for one in self._expected.values()):
            return self._void()
        return _NOTHING

    def taken_back(self, step: str) -> None:
        """An attempt of a step has failed: what it has shown is void."""
        self._since = [body for body in self._since if body.step != step]

    # -- comparing ----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is left to compare: emissions go straight to the log."""
        return not self._expected

    def match(self, body: Emission) -> tuple[bool, list[Emission], int | None]:
        """Compare one emission with what its branch emitted before.

        Returns whether it was taken in (it stands, or is held back for now), emissions to write, and what to keep if
        the rest of the old ones is void from here.
        """
        expected = self._expected.get(body.branch)
        if expected is None:
            self._since.append(copied(body))
            return False, [], None
        fits, seq = expected.take(body, self.output.value)
        if not fits:
            again, keep = self._void()
            return False, again, keep
        if seq:
            self._caught_up(seq)
            if not expected:
                del self._expected[body.branch]
                if not self._expected:
                    self._since = []
        return True, [], None

    def passed(self, seq: int, branch: str | None) -> Again:
        """A branch has taken the record at `seq`: what it emitted before that, and has not repeated, is void."""
        expected = self._expected.get(branch)
        if expected is not None and (expected.held or expected.next_seq < seq):
            return self._void()
        self._caught_up(seq)
        return _NOTHING

    def finish(self) -> Again:
        """The handler is done. What it did not emit again no longer stands."""
        return self._void() if self._expected else _NOTHING

    def _caught_up(self, seq: int) -> None:
        if seq > self._matched and self._kept is None:
            self._matched = seq

    def _void(self) -> Again:
        """Void everything that is expected. Emissions that stand beyond it have to be written again."""
        expected = list(self._expected.values())
        keep = min(self._matched, *(one.next_seq - 1 for one in expected))
        deltas = {seq for seq, body in self._standing if isinstance(body, OutputDelta)}
        while keep in deltas:  # a reader that fell behind got neighbouring deltas as one event, and cannot keep a half
            keep -= 1
        void = {seq for one in expected for seq, _ in one.queue}
        later = {seq for emitted in self._of_steps.values() for seq, _ in emitted}  # said again with their steps
        again = [copied(body) for seq, body in self._standing if seq > keep and seq not in void and seq not in later]
        again += [*self._since, *(body for one in expected for body in one.held)]
        self._standing = [(seq, body) for seq, body in self._standing if seq <= keep]
        self._expected, self._since, self._kept = {}, [], keep
        self._rebuild()
        return again, keep


def copied(body: Emission) -> Emission:
    """The log joins fragments of output in the body that it was given."""
    return replace(body) if isinstance(body, OutputDelta) else body


def _same(old: Emission, new: Emission) -> bool:
    return type(old) is type(new) and json_values.encode(old) == json_values.encode(new)


def _changes_nothing(output: Any, delta: Any) -> bool:
    if output is ABSENT:
        return False
    try:
        return json_values.canonical(combine(output, delta)) == json_values.canonical(output)
    except DeltaError:
        return False


def _chars(delta: Any) -> int:
    """Count the characters of text in a delta. The counts add up under compose, so they tell when to compare."""
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
