"""Telling others when a run changes its status: in order per run, at least once, over restarts.

The changes are rows, written in the transaction of the change. Here they are sent, with retries that wait longer each
time; a receiver that is dead holds up its own runs' news and nothing else. How a body looks is a door's business: it
registers a format.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..model.errors import Denied, InterlinguaError, NotFound
from ..model.run import Run
from ..model.status import Status
from ..store.base import CallbackRow, Store
from .ids import now

if TYPE_CHECKING:
    from .engine import Engine

log = logging.getLogger("interlingua.callbacks")

Send = Callable[[str, Any, int], Awaitable[None]]  # (address, body as JSON, delivery id); raises unless it was taken

_AT_ONCE = 16
_LEASE = 60.0
_TRIES = 12
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 3600.0


class Callbacks:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self.formats: dict[str, Callable[[Run], Any]] = {}
        self.send: Send | None = None  # given by the app, which knows the network
        self.sent = 0
        self.failed = 0  # given up
        self.retried = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.send is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def hint(self) -> None:
        self._wake.set()

    async def _loop(self) -> None:
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._wake.clear()
                room = _AT_ONCE - len(under_way)
                try:
                    rows = await self._store.claim_callbacks(now(), now() + int(_LEASE * 1e6), room) if room else []
                    due = await self._store.next_callback()
                except InterlinguaError as error:
                    log.error("could not read callbacks: %s", error)
                    rows, due = [], None
                for row in rows:
                    task = asyncio.get_running_loop().create_task(self._deliver(row))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                    task.add_done_callback(lambda _: self._wake.set())
                pause = 30.0 if due is None or not room else min(30.0, max(0.005, (due - now()) / 1e6))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _deliver(self, row: CallbackRow) -> None:
        assert self.send is not None
        attempts = row.attempts + 1
        try:
            run = await self._engine.run(row.run)
        except NotFound:
            await self._store.settle_callback(row.id, state="failed", attempts=attempts, next_at=0, error="deleted")
            return
        run.status, run.updated_at = Status(row.status), row.time
        try:
            body = self.formats[row.format](run)
            await self.send(row.url, body, row.id)
        except Exception as error:
            final = attempts >= _TRIES or isinstance(error, Denied)
            pause = min(_FIRST_PAUSE * 2 ** (attempts - 1), _LONGEST_PAUSE)
            self.failed += final
            self.retried += not final
            log.warning("callback %d of run %s to %s failed: %s", row.id, row.run, row.url, error)
            await self._store.settle_callback(
                row.id, state="failed" if final else "due", attempts=attempts, next_at=now() + int(pause * 1e6),
                error=f"{type(error).__name__}: {error}"[:500],
            )  # fmt: skip
        else:
            self.sent += 1
            await self._store.settle_callback(row.id, state="sent", attempts=attempts, next_at=0, error=None)
