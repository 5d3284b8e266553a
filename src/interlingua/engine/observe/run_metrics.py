"""Metrics of the runs of this process: durations and counts, by agent and by caller, for a bounded number of names.

The numbers are in memory and only grow; the program that reads them computes rates. No run depends on them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, NamedTuple

from ...model.events import Event, RunCreated
from ...model.run import OWNER, Caller, RunRequest
from ...model.status import Status
from ...model.trace_context import Carrier

SHOWN = 20  # names with their own numbers
OTHER = "other"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds

_SHORT = BOUNDS[0]
_KEY = "key:"  # prefix of the ids of callers with an API key
_NAMED = (OWNER.id, "anonymous")
_MAX_OUTSIDE = 1000  # names without their own numbers whose activity is counted
_AGE_AFTER = 10_000  # observations of one name after which all activity counts are halved

LossSign = Literal["gap", "silence"]
"""How a reader noticed lost messages about a remote run: by a gap in them, or by polling the store."""


class Histogram:
    """A histogram of seconds."""

    __slots__ = ("count", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # by the first bound that is not smaller; the last counts longer times
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds) if seconds > _SHORT else 0] += 1
        self.count += 1
        self.total += seconds

    def merge(self, other: Histogram) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total


class Numbers:
    """The metrics of one agent or of one caller."""

    __slots__ = ("delivery", "finished", "from_store", "queued", "ran", "recent", "stood_still")

    def __init__(self) -> None:
        self.queued = Histogram()  # seconds from when a run could start to its start
        self.ran = Histogram()  # seconds of execution of ended runs, without waiting
        self.stood_still = Histogram()  # seconds from the last event of a dead worker until the run was resumed
        self.delivery = Histogram()  # seconds from the commit of events in another process to their arrival
        self.from_store: dict[LossSign, int] = {}  # number of times that readers found undelivered events in the store
        self.finished: dict[Status, int] = {}
        self.recent = 0

    def end(self, status: Status, ran: float) -> None:
        self.ran.add(ran)
        try:
            self.finished[status] += 1
        except KeyError:
            self.finished[status] = 1

    def merge(self, other: Numbers) -> None:
        self.queued.merge(other.queued)
        self.ran.merge(other.ran)
        self.stood_still.merge(other.stood_still)
        self.delivery.merge(other.delivery)
        for why, count in other.from_store.items():
            self.from_store[why] = self.from_store.get(why, 0) + count
        for status, count in other.finished.items():
            self.finished[status] = self.finished.get(status, 0) + count


class Busiest:
    """Numbers by name for the busiest names, and together for all others.

    No number ever falls: a name that is displaced adds its numbers to the others, and a new name starts from zero.
    """

    def __init__(self, most: int = SHOWN) -> None:
        self.by_name: dict[str, Numbers] = {}
        self.others = Numbers()
        self._most = most
        self._outside: dict[str, int] = {}  # activity of names without their own numbers

    def of(self, name: str) -> Numbers:
        """Returns the numbers in which an observation about a name is counted."""
        numbers = self.by_name.get(name)  # the common case, several times per run
        if numbers is None:
            numbers = self._let_in(name) if name != OTHER else self.others
        numbers.recent += 1
        if numbers.recent >= _AGE_AFTER:
            self._age()
        return numbers

    def _let_in(self, name: str) -> Numbers:
        if len(self.by_name) >= self._most:
            busy = self._outside[name] = self._outside.get(name, 0) + 1
            if len(self._outside) > _MAX_OUTSIDE:
                self._age()
            least = min(self.by_name, key=lambda other: self.by_name[other].recent)
            if busy <= 2 * self.by_name[least].recent:  # a clear lead, or two equal names would displace each other
                return self.others
            self.others.merge(self.by_name.pop(least))
            self._outside.pop(name, None)
        numbers = self.by_name[name] = Numbers()
        return numbers

    def _age(self) -> None:
        for numbers in (*self.by_name.values(), self.others):
            numbers.recent -= numbers.recent // 2
        self._outside = {name: count // 2 for name, count in self._outside.items() if count > 1}

    def all(self) -> list[tuple[str, Numbers]]:
        """Lists the numbers by name; the others come last, if there are any."""
        named = sorted(self.by_name.items())
        return [*named, (OTHER, self.others)] if self.others.recent else named


class RunMetrics:
    def __init__(self) -> None:
        self.agents = Busiest()
        self.callers = Busiest()
        self.taken_over = 0  # runs of dead workers

    def started(self, agent: str, caller: Caller, waited: float) -> None:
        self.agents.of(agent).queued.add(waited)
        self.callers.of(label(caller)).queued.add(waited)

    def finished(self, agent: str, caller: Caller, status: Status, ran: float) -> None:
        self.agents.of(agent).end(status, ran)
        self.callers.of(label(caller)).end(status, ran)

    def resumed(self, agent: str, caller: Caller, stood_still: float) -> None:
        self.taken_over += 1
        self.agents.of(agent).stood_still.add(stood_still)
        self.callers.of(label(caller)).stood_still.add(stood_still)

    def delivered(self, agent: str, caller: str, late: float) -> None:
        """Counts the arrival of events of a remote run. `caller`, here and below, is a label."""
        self.agents.of(agent).delivery.add(late)
        self.callers.of(caller).delivery.add(late)

    def found_in_store(self, agent: str, caller: str, why: LossSign) -> None:
        for numbers in (self.agents.of(agent), self.callers.of(caller)):
            numbers.from_store[why] = numbers.from_store.get(why, 0) + 1


def label(caller: Caller) -> str:
    """The label of a caller in metrics: the name that the owner gave to its key.

    Callers with a token, and peers, are counted as others: their names were chosen elsewhere or are private.
    """
    if caller.id.startswith(_KEY):
        return caller.name or OTHER
    return caller.id if caller.id in _NAMED else OTHER


class RunLabels(NamedTuple):
    """Agent and caller of a run, for metrics and traces."""

    agent: str = OTHER
    caller: str = OTHER  # its label
    caller_id: str = ""
    trace: Carrier | None = None

    @classmethod
    def of(cls, first: Event) -> RunLabels:
        """Reads them from the first event of a log."""
        if not isinstance(first.body, RunCreated):
            return cls()  # it was erased
        return cls.asked(first.body.request)

    @classmethod
    def asked(cls, request: RunRequest) -> RunLabels:
        return cls(request.agent, label(request.caller), request.caller.id, request.trace)
