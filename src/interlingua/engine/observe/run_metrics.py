"""How long runs of this process waited and ran, counted for whoever watches: by agent and by caller, within bounds.

Only numbers that grow, in memory: what they mean over time is for the program that reads them. No run depends on them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from ...model.run import OWNER, Caller
from ...model.status import Status

SHOWN = 20  # names that have numbers of their own
OTHER = "other"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds

_SHORT = BOUNDS[0]
_KEY = "key:"  # what the ids of callers begin with who have shown a key
_NAMED = (OWNER.id, "anonymous")
_NOTED = 1000  # names without numbers of their own, of which it is known how busy they are
_AGED = 10_000  # notes of one name after which what was before counts half

Why = Literal["gap", "silence"]
"""How a reader of a run elsewhere noticed that it had not been told of something: by what came after, or by looking."""


class Histogram:
    """How many seconds, how often."""

    __slots__ = ("count", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # by the first bound that is not smaller; the last: beyond all
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds) if seconds > _SHORT else 0] += 1
        self.count += 1
        self.total += seconds

    def take(self, other: Histogram) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total


class Numbers:
    """Of one agent, or of one caller."""

    __slots__ = ("finished", "from_store", "queued", "ran", "recent", "stood_still", "told")

    def __init__(self) -> None:
        self.queued = Histogram()  # from when a run could start to its start
        self.ran = Histogram()  # of runs that ended: how long they ran, waiting left out
        self.stood_still = Histogram()  # of runs whose worker died: from their last event until they were entered again
        self.told = Histogram()  # what runs elsewhere had committed: from then until it was here
        self.from_store: dict[Why, int] = {}  # times that their readers found in the store what they had not been told
        self.finished: dict[Status, int] = {}
        self.recent = 0

    def end(self, status: Status, ran: float) -> None:
        self.ran.add(ran)
        try:
            self.finished[status] += 1
        except KeyError:
            self.finished[status] = 1

    def take(self, other: Numbers) -> None:
        self.queued.take(other.queued)
        self.ran.take(other.ran)
        self.stood_still.take(other.stood_still)
        self.told.take(other.told)
        for why, count in other.from_store.items():
            self.from_store[why] = self.from_store.get(why, 0) + count
        for status, count in other.finished.items():
            self.finished[status] = self.finished.get(status, 0) + count


class Busiest:
    """Numbers by name: of the busiest their own, of all others together.

    No number ever falls, whoever comes and goes: one that gives way leaves what it had to the others, and one that
    comes begins anew.
    """

    def __init__(self, most: int = SHOWN) -> None:
        self.by_name: dict[str, Numbers] = {}
        self.others = Numbers()
        self._most = most
        self._outside: dict[str, int] = {}  # how busy those are that have none of their own

    def of(self, name: str) -> Numbers:
        """Where something about a name is to be noted."""
        found = self.by_name.get(name)  # which is all that most need; it is done some times for every run
        if found is None:
            found = self._let_in(name) if name != OTHER else self.others
        found.recent += 1
        if found.recent >= _AGED:
            self._age()
        return found

    def _let_in(self, name: str) -> Numbers:
        if len(self.by_name) >= self._most:
            busy = self._outside[name] = self._outside.get(name, 0) + 1
            if len(self._outside) > _NOTED:
                self._age()
            least = min(self.by_name, key=lambda one: self.by_name[one].recent)
            if busy <= 2 * self.by_name[least].recent:  # well ahead, or two of a kind would push each other out
                return self.others
            self.others.take(self.by_name.pop(least))
            self._outside.pop(name, None)
        found = self.by_name[name] = Numbers()
        return found

    def _age(self) -> None:
        for numbers in (*self.by_name.values(), self.others):
            numbers.recent -= numbers.recent // 2
        self._outside = {name: count // 2 for name, count in self._outside.items() if count > 1}

    def all(self) -> list[tuple[str, Numbers]]:
        """By name, and the others last, if there are any."""
        found = sorted(self.by_name.items())
        return [*found, (OTHER, self.others)] if self.others.recent else found


class Meters:
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

    def entered_again(self, agent: str, caller: Caller, stood_still: float) -> None:
        self.taken_over += 1
        self.agents.of(agent).stood_still.add(stood_still)
        self.callers.of(label(caller)).stood_still.add(stood_still)

    def told(self, agent: str, caller: str, late: float) -> None:
        """Something of a run elsewhere came over the bus. `caller`, here and below: its label."""
        self.agents.of(agent).told.add(late)
        self.callers.of(caller).told.add(late)

    def found_in_store(self, agent: str, caller: str, why: Why) -> None:
        for numbers in (self.agents.of(agent), self.callers.of(caller)):
            numbers.from_store[why] = numbers.from_store.get(why, 0) + 1


def label(caller: Caller) -> str:
    """What a caller is called where many may read it: by the name that the owner gave to its key. Who came with a
    token, or as a peer, has a name that others chose, or that is nobody's business."""
    if caller.id.startswith(_KEY):
        return caller.name or OTHER
    return caller.id if caller.id in _NAMED else OTHER
