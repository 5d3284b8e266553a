"""Blocked runs: why a run is blocked, and the worker's search for those that its code may go on with.

A run is blocked where the code could not go on with it. It keeps its history, questions and answers, and waits for code
with another digest. Any worker of its queue whose digest is not among those that failed takes it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...model.run import Blocked
from ...store.ports import Store
from ...store.rows import BlockedLine
from ..agents.agent import Registry
from ..settings import Settings

if TYPE_CHECKING:
    from .claims import Claims

_AT_ONCE = 200
_LATER = 0.5  # seconds until the next look where all slots are taken, or others were faster
_NOTHING = 60.0

_blocked = msgspec.json.Decoder(Blocked)


def read_reason(reason: str) -> Blocked:
    """Why a run is blocked, as it stands in its row."""
    return _blocked.decode(reason)


class BlockedRuns:
    """The search of one worker for blocked runs that its code may go on with."""

    def __init__(self, claims: Claims, store: Store, registry: Registry, settings: Settings) -> None:
        self._claims = claims
        self._store = store
        self._registry = registry
        self._settings = settings
        self._there = False  # at the last look there were some
        self._looked_at = float("-inf")

    def hint(self) -> None:
        """The code here, or the runs that are blocked, may be others than at the last look."""
        self._looked_at = float("-inf")
        self._claims.wake()

    async def claim_some(self) -> float:
        """Claim what may go on here, and say how long there is nothing to do."""
        time = self._store.clock.monotonic()
        if not self._settings.max_running:
            return _NOTHING
        if not self._there and time - self._looked_at < self._settings.sweep_every:
            return _NOTHING
        self._looked_at = time
        lines = await self._store.claims.blocked_lines()
        self._there = bool(lines)
        codes = self._registry.codes()
        return min([_NOTHING, *[await self._claim(line, codes.get(line.queue)) for line in lines]])

    async def _claim(self, line: BlockedLine, code: str | None) -> float:
        if code is None:
            return _NOTHING
        fits = code not in line.codes.split()
        due = not line.reason or not fits
        if due:
            # Where other code goes on with them, they are taken like all runs that are due; and a cancel ends one
            # wherever it is seen.
            if line.wake_at is None or not (fits or line.reason or line.ending):
                return _NOTHING
            if (left := line.wake_at - self._store.clock.now()) > 0:
                return left / 1e6
        return 0.0 if await self._claims.claim_blocked(line, _AT_ONCE, due=due) else _LATER
