"""Which runs stay in memory although they only wait: those whose question may be answered where their agent is mounted
from. In memory, a run hears of that when it happens; set aside, it can only look from time to time. So a number of them
stays, those with the newest questions: the longer one has waited, the less it matters when exactly its end is heard of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .execution import Execution


class Listeners:
    def __init__(self, most: int) -> None:
        self._most = most
        self._asked_at: dict[Execution, int] = {}

    @contextlib.contextmanager
    def listening(self, run: Execution) -> Iterator[None]:
        """While it waits here, it would miss something if it were set aside."""
        run.listens += 1
        try:
            yield
        finally:
            run.listens -= 1
            self.left(run)

    def stays(self, run: Execution, asked_at: int) -> bool:
        """Whether a run that could be set aside stays. Then another one may have to go."""
        self._asked_at[run] = asked_at
        if len(self._asked_at) <= self._most:
            return True
        oldest = min(self._asked_at, key=lambda one: (self._asked_at[one], one.log.row.id))
        del self._asked_at[oldest]
        if oldest is run:
            return False
        oldest.park_if_idle()
        return True

    def left(self, run: Execution) -> None:
        self._asked_at.pop(run, None)

    def __contains__(self, run: object) -> bool:
        return run in self._asked_at

    def __len__(self) -> int:
        return len(self._asked_at)
