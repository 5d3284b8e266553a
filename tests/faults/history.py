"""What clients noted while a cluster was broken on purpose, and what its store holds in the end.

Pure: it reads nothing and waits for nothing. Whoever breaks a cluster gathers a `History`. What it proves is found in
`history_check`; here are its words, and how long runs stood still after a fault.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from interlingua.model.status import Status
from interlingua.store.rows import EventRow

Kind = Literal["delta", "reset", "end", "asked", "other"]
Place = tuple[int, int]


# -- what the store holds -------------------------------------------------------------------------------------


class Row(msgspec.Struct):
    """A run, as its row stands."""

    id: str
    status: Status
    epoch: int
    next_seq: int
    head: bytes
    worker: str | None = None


class QuestionRow(msgspec.Struct):
    id: str
    run: str
    state: str
    answer: Any = None


# -- what was noted meanwhile: times are seconds since 1970, by the clock of the machine ----------------------


class Accepted(msgspec.Struct):
    """A client was told that its run is there."""

    run: str
    key: str
    time: float
    door: str = "connect"


class Piece(msgspec.Struct):
    """What a reader was told, in the order in which it came, over all its connections."""

    kind: Kind
    value: Any = None  # the delta, the output after a reset, or the output of a run that succeeded
    place: Place | None = None  # None: this wire does not say where in the log it is
    time: float = 0.0
    status: Status | None = None  # of an end


class Reader(msgspec.Struct):
    name: str
    run: str
    pieces: list[Piece] = []
    connections: int = 0


class Answered(msgspec.Struct):
    """A client was told that its answer was taken."""

    run: str
    value: Any
    time: float
    question: str | None = None  # where the wire names it


class Stopped(msgspec.Struct):
    """A client was told that its run is being cancelled."""

    run: str
    time: float


class Sighting(msgspec.Struct):
    """A run's row, as somebody saw it who looked now and then."""

    time: float
    run: str
    epoch: int
    worker: str | None
    next_seq: int
    head: bytes


class Fault(msgspec.Struct):
    """Something was broken. `runs`: those that stood still because of it, and had to be taken up again."""

    what: str
    time: float
    runs: list[str] = []
    within: float | None = None  # seconds in which that must be; None: it is only measured


class History(msgspec.Struct):
    rows: dict[str, Row] = {}
    logs: dict[str, list[EventRow]] = {}
    questions: dict[str, QuestionRow] = {}
    accepted: list[Accepted] = []
    readers: list[Reader] = []
    answered: list[Answered] = []
    stopped: list[Stopped] = []
    sightings: list[Sighting] = []
    faults: list[Fault] = []
    unfinished: bool = False  # runs may still be under way
    crashes: int = 3  # after so many faults without a record a run is given up
    cancel_within: float = 5.0  # seconds in which a run that is being cancelled may still end by itself


def takeovers(history: History) -> list[tuple[Fault, str, float | None]]:
    """Of each fault and each run that it stopped: how long it took until something was written again. None: never.

    A run that had ended before is none of these. The time of a fault is noted when it is complete (the process is
    gone): whatever has a later time was written by somebody else.
    """
    found: list[tuple[Fault, str, float | None]] = []
    for fault in history.faults:
        at = int(fault.time * 1e6)
        for run in fault.runs:
            events = history.logs.get(run, [])
            if any(event.kind == "finished" and event.time <= at for event in events):
                continue
            after = next((event.time for event in events if event.time > at), None)
            found.append((fault, run, None if after is None else (after - at) / 1e6))
    return found


def distribution(seconds: list[float]) -> str:
    """A few numbers that say it all."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    middle = ordered[len(ordered) // 2]
    return f"{len(ordered)}: {ordered[0]:.2f} to {ordered[-1]:.2f} s, half within {middle:.2f} s"
