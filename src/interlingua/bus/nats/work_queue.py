"""The work queue: workers with a free slot pull offers of the queues that they serve.

An offer is a hint that a run is due. The store decides who owns the run; an unacknowledged offer is delivered again,
and a worker that polls for due runs finds a run whose offer was lost. Independent of the network: `nats_bus` provides
the queues.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

import msgspec

from ...runtime.clock import Clock, sleep
from ...runtime.closing import close_all
from ...runtime.job_group import JobGroup
from ..port import BusListener, Health
from .address import Subjects

log = logging.getLogger("interlingua.bus")

_AGAIN = 1.0  # seconds after which an offer that found no free slot here is delivered again
CANCEL_AGAIN = 0.05
"""Seconds after which a job is cancelled again. Once is not enough: nats-py swallows a cancellation during a flush, and
turns one into another error when its connection is closed."""
_RETRY_FIRST, _RETRY_LAST = 0.5, 30.0


class _Ticket(msgspec.Struct, array_like=True):
    sent: int
    run: str


_tickets = msgspec.msgpack.Decoder(_Ticket)


class Offer(Protocol):
    """An offer of a run, from a queue."""

    @property
    def data(self) -> bytes: ...

    @property
    def again(self) -> bool:
        """True if it was delivered before."""

    async def taken(self) -> None:
        """Acknowledges the offer, which is then not delivered again."""

    async def later(self, seconds: float) -> None: ...


class Queue(Protocol):
    """The offers for one queue of runs."""

    async def next(self) -> Offer | None:
        """The next offer; None if none came for a while."""

    async def close(self) -> None: ...


class Queues(Protocol):
    async def of(self, subject: str) -> Queue: ...


class WorkQueue:
    def __init__(self, subjects: Subjects, health: Health, clock: Clock) -> None:
        self.listener: BusListener | None = None
        self._subjects = subjects
        self._health = health
        self._clock = clock
        self._queues: Queues | None = None
        self._served: list[str] = []
        self._pulling: dict[str, asyncio.Task[None]] = {}
        self._pulls = JobGroup("bus")
        self._offers = JobGroup("bus", _not_taken)

    @property
    def ready(self) -> bool:
        return self._queues is not None

    def start(self, queues: Queues) -> None:
        self._queues = queues
        self.serve(self._served)

    async def stop(self) -> None:
        """Stops after the connection was lost. Unsettled offers are delivered again, to any worker."""
        self._queues = None
        self._pulling = {}
        await close_all([partial(self._pulls.close, CANCEL_AGAIN), partial(self._offers.close, CANCEL_AGAIN)])

    def serve(self, served: list[str]) -> None:
        self._served = served
        gone = [self._pulling.pop(runs) for runs in self._pulling.keys() - set(served)]
        if gone:
            self._offers.spawn(_end(gone))
        if self._queues is not None and self.listener is not None:
            for runs in served:
                if runs not in self._pulling:
                    self._pulling[runs] = self._pulls.spawn(self._pull(self._queues, self.listener, runs))

    def encode_offer(self, run: str, now: int) -> bytes:
        return msgspec.msgpack.encode(_Ticket(now, run))

    async def _pull(self, queues: Queues, listener: BusListener, runs: str) -> None:
        wait = _RETRY_FIRST
        while True:
            queue: Queue | None = None
            try:
                queue = await queues.of(self._subjects.work(runs))
                while True:
                    await listener.wait_for_slot(runs)
                    offer = await queue.next()
                    wait = _RETRY_FIRST
                    if offer is not None:
                        self._offers.spawn(self._settle(listener, runs, offer))
            except Exception as error:
                log.debug("work for %s cannot be pulled: %s", runs, error)  # polling workers find the runs
            finally:
                if queue is not None:
                    await queue.close()
            await sleep(self._clock, wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, _RETRY_LAST)

    async def _settle(self, listener: BusListener, runs: str, offer: Offer) -> None:
        try:
            ticket = _tickets.decode(offer.data)
        except msgspec.MsgspecError:
            await offer.taken()  # a foreign message
            return
        lag = max(0, self._clock.now() - ticket.sent) / 1e6
        self._health.work_lag += 0.1 * (lag - self._health.work_lag)
        if await listener.offered(runs, ticket.run, again=offer.again):
            await offer.taken()
        else:
            await offer.later(_AGAIN * random.uniform(0.5, 1.5))


def _not_taken(error: BaseException) -> None:
    log.warning("work that was offered could not be taken: %s", error)  # the offer is delivered again


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
