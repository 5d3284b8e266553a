"""Attempts of steps that may be tried again: what one has shown no longer stands when the next one begins."""

from __future__ import annotations

from typing import Any

from ...model.events import Emission
from .emissions import copied


class Attempt:
    """Emissions since an attempt began: its own, and all others."""

    def __init__(self, place: str, keep: int, output: Any, sent: int) -> None:
        self.place = place
        self.keep = keep  # seq of the last event before it
        self.output = output  # of the run, as it was then
        self.sent = sent  # messages of the run until then
        self.own: list[Emission] = []
        self.others: list[Emission] = []

    def note(self, body: Emission) -> None:
        (self.own if body.step == self.place else self.others).append(body)


class Attempts:
    """The attempts that are under way in one run. Usually there are none."""

    def __init__(self) -> None:
        self._under_way: list[Attempt] = []

    def begin(self, attempt: Attempt) -> None:
        self._under_way.append(attempt)

    def end(self, attempt: Attempt) -> None:
        self._under_way.remove(attempt)

    def note(self, body: Emission) -> None:
        if self._under_way:
            body = copied(body)
            for attempt in self._under_way:
                attempt.note(body)

    def restarted(self, keep: int, output: Any, sent: int) -> None:
        """All after an event is void, and what stands of it is about to be shown again."""
        for attempt in self._under_way:
            if attempt.keep >= keep:
                attempt.keep, attempt.output, attempt.sent = keep, output, sent
                attempt.own, attempt.others = [], []

    def take_back(self, attempt: Attempt) -> list[Emission]:
        """Emissions of others since an attempt began: everything after that is void, so they must be written again."""
        void, again = {id(body) for body in attempt.own}, list(attempt.others)
        attempt.own = []
        for other in self._under_way:
            if other is attempt:
                continue
            if other.keep >= attempt.keep:
                other.keep, other.output, other.sent = attempt.keep, attempt.output, attempt.sent
                other.own, other.others = [], []
                for body in again:
                    other.note(body)
            else:
                other.others = [body for body in other.others if id(body) not in void]
        return [copied(body) for body in again]
