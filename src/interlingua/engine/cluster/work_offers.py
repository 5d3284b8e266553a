"""Runs that the bus offers to this worker one by one, claimed together: while some are being claimed, the next gather.

An offer says that a run of a queue is due. The store decides which run is claimed for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runs.worker import Worker


class _Round:
    """Offers that are claimed together."""

    def __init__(self) -> None:
        self.slots: list[Callable[[], None]] = []  # frees the slot that is kept for an offer
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class WorkOffers:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._next: dict[str, _Round] = {}  # by queue
        self._claiming: dict[str, asyncio.Lock] = {}

    def waiting(self, queue: str) -> int:
        """Offers that are yet to be claimed."""
        round_ = self._next.get(queue)
        return len(round_.slots) if round_ is not None else 0

    async def take(self, queue: str) -> bool:
        """Claims one due run of a queue, and returns once the store has decided. False: no slot is free here."""
        worker = self._worker
        if worker.registry.serving(queue) is None or not worker.limits.may_claim(queue):
            return False
        gathering = self._next.get(queue)
        if gathering is None:
            gathering = self._next[queue] = _Round()
            worker.spawn(self._claim(queue, gathering))
        gathering.slots.append(worker.limits.reserve(queue))
        await asyncio.shield(gathering.decided)
        return True

    async def _claim(self, queue: str, these: _Round) -> None:
        worker = self._worker
        try:
            async with self._claiming.setdefault(queue, asyncio.Lock()):
                del self._next[queue]  # later offers belong to the next round
                entries = await worker.claims.claim_for(queue, len(these.slots))
        except BaseException as error:
            if not these.decided.done():
                these.decided.set_exception(error)
                these.decided.exception()  # for callers that still wait; without one, nothing is logged
            if not isinstance(error, Exception):
                raise
            return
        finally:
            if self._next.get(queue) is these:
                del self._next[queue]
            for let_go in these.slots:
                let_go()
        if not these.decided.done():
            these.decided.set_result(None)
        await worker.claims.enter(entries)
