"""Which runs stay in memory although they only wait."""

from __future__ import annotations

from typing import Any

from interlingua.engine.execution.parking import Listeners


class Waiting:
    """A run that is set aside when it may not stay."""

    def __init__(self, listeners: Listeners, id_: str, asked_at: int) -> None:
        self.run = id_
        self.listeners, self.asked_at = listeners, asked_at
        self.aside = False

    def park_if_idle(self) -> None:
        run: Any = self
        self.aside = not self.listeners.stays(run, self.asked_at)


def test_runs_that_were_asked_at_the_same_moment_do_not_push_each_other_out() -> None:
    listeners = Listeners(2)
    runs = [Waiting(listeners, str(number), 1) for number in range(5)]
    for run in runs:
        run.park_if_idle()
    assert len(listeners) == 2
    assert sum(run.aside for run in runs) == 3
