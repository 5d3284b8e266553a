"""An agent whose code only other processes of the store have."""

from __future__ import annotations

from typing import Any

from ...model.run_identity import Origin
from ...runtime.clock import Clock
from ...store.rows import StoredCard
from .agent import Agent


class RemoteAgent(Agent[..., Any]):
    """An agent of which only the card is here. It cannot be entered."""

    here = False

    def __init__(self, stored: StoredCard, workers: int, clock: Clock) -> None:
        async def nothing() -> None:
            raise AssertionError("the code of this agent is elsewhere")

        super().__init__(stored.card, nothing, shape="async", source=Origin.parse(stored.origin).source)
        self.stored = stored
        self.workers = workers  # that have it and are there
        self.since = clock.now()  # when it became available, or ceased to be
        self.gone_at = clock.monotonic()  # where it has

    @property
    def available(self) -> bool:
        return self.workers > 0
