"""Connections that watch runs which shall not outlive their watchers (`on_disconnect: cancel`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from starlette.types import Receive, Scope, Send

from ....doors.streams import PiecesStream
from ....engine.engine import Engine
from ....engine.ids import now
from ....model.errors import Conflict, NotFound
from ....model.filters import QuestionFilter
from ....model.status import Status

_RESOLUTION = 0.01  # seconds by which a timer may ring early
_MANY = 100_000


class Watch:
    """A connection to a run with `on_disconnect: cancel`."""

    answered = False  # it got its answer: the state of the run, or a time-out


class Watchers:
    """Counts the connections of each run, and cancels a run some time after its last one dropped."""

    def __init__(self, engine: Engine, grace: Callable[[], float]) -> None:
        self._engine = engine
        self._grace = grace
        self.stopping = False  # the server is about to cut off the open connections
        self.counts: dict[str, int] = {}
        # Runs without watchers: until when one may return, and since when there is none.
        self._left: dict[str, tuple[float, int]] = {}

    @contextlib.contextmanager
    def watch(self, run: str, cancels: bool) -> Iterator[Watch]:
        """Counts the watchers of a run that ends with its last watcher. A watcher that got its answer did not drop."""
        watch = Watch()
        if not cancels:
            yield watch
            return
        self.counts[run] = self.counts.get(run, 0) + 1
        self._left.pop(run, None)
        try:
            yield watch
        finally:
            self.counts[run] -= 1
            if not self.counts[run]:
                del self.counts[run]
                ended = self._engine.running and self._engine.runs.ended_here(run)
                if not watch.answered and not ended:
                    timer = asyncio.get_running_loop().call_later(self._grace(), self._unwatched, run)
                    self._left[run] = timer.when(), now()

    def _unwatched(self, run: str) -> None:
        until, since = self._left.get(run, (0.0, 0))
        if not since or until > asyncio.get_running_loop().time() + _RESOLUTION:
            return  # a watcher returned; if it dropped again, another timer runs
        del self._left[run]
        if self.stopping or not self._engine.running:
            return  # the server stops, and another process goes on with the run
        if not self._engine.runs.ended_here(run):
            self._engine.spawn(self._cancel_unwatched(run, since))

    async def _cancel_unwatched(self, run: str, since: int) -> None:
        """Cancels a run without watchers. At an interrupt a stream ends by itself: a run that asks, or has asked since,
        needs no watcher."""
        with contextlib.suppress(NotFound, Conflict):
            view = await self._engine.runs.get(run)
            asked = await self._engine.questions.search(QuestionFilter(run=run, state=None, limit=_MANY))
            if (
                view.status is Status.WAITING
                or view.status.final
                or any(record.question.asked_at >= since for record in asked)
            ):
                return
            await self._engine.runs.cancel(run, reason="its client disconnected")


class WatchedStream(PiecesStream):
    """A stream that counts as a watcher while it is open, and as answered when it was sent to its end."""

    def __init__(
        self, updates: AsyncIterator[bytes], watching: contextlib.AbstractContextManager[Watch], keep_alive: float
    ) -> None:
        super().__init__(updates, keep_alive=keep_alive)
        self._watching = watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watching as self._watch:
            await super().__call__(scope, receive, send)

    async def produce(self) -> bool:
        self._watch.answered = await super().produce()
        return self._watch.answered
