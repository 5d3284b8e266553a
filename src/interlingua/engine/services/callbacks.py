"""Callbacks: notify addresses of changes of a run's status, in order per run, at least once, over restarts.

The changes are rows, written in the transaction of the change. Here they are sent, with retries that wait longer each
time, for about a day; a receiver that is dead or hangs holds up its own runs' news and nothing else: it gets one try at
a time, with growing pauses, on places that healthy receivers do not need. Doors register the formats of the bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ...model.errors import Denied, InterlinguaError, InvalidRequest, NotFound, Unavailable
from ...model.events import RunCreated
from ...model.run import Run, check_id
from ...model.status import Status
from ...runtime.closing import close_all
from ...runtime.job_group import JobGroup
from ...security.redaction import redact_text, redact_url
from ...store.ports import Store
from ...store.rows import CallbackRow, Places, RunRow, Standing

log = logging.getLogger("interlingua.callbacks")

Send = Callable[[str, Any, int], Awaitable[None]]  # (address, body as JSON, delivery id); raises unless it was taken

_AT_ONCE = 64
_NEW, _FAILING = 32, 8  # of those: for receivers that have not answered well yet, and for those that are silent
_PER_RECEIVER = 4  # of those: for each that answers well. The others get one
_SEND_WITHIN = 15.0
_LONGEST_URL = 2000
_PROMPT = 2.0  # answering well is answering within this
_LEASE = 20.0  # longer than sending can take: what a killed process was sending is sent again after this
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 3600.0
_REMEMBER = 30 * 86_400.0  # how long those that were taken or given up can still be looked at
_TIDY_EVERY = 3600.0


class RunViews(Protocol):
    """Reads the runs that callbacks tell of."""

    async def get(self, run: str, /) -> Run: ...

    def view(self, row: RunRow, created: RunCreated | None, /) -> Run: ...


class NotTaken(Unavailable):
    """The receiver answered, but did not accept the callback."""


def pause_after(attempts: int) -> float:
    """The delay after so many failures: it doubles each time, up to an hour."""
    return min(_FIRST_PAUSE * 2.0 ** min(attempts - 1, 60), _LONGEST_PAUSE)


def tried_for(attempts: int) -> float:
    """For how long a delivery that failed so often has been tried. Time in which no server ran does not count."""
    return sum(pause_after(n) for n in range(1, attempts))


class CallbackQueries:
    """Finds callbacks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def search(self, *, failing: bool = False, newest: bool = False, limit: int = 100) -> list[CallbackRow]:
        """Returns callbacks in the store: `failing` ones only, or all."""
        return await self._store.callbacks.search(failing=failing, newest=newest, limit=limit)

    async def counts(self) -> dict[str, int]:
        """Returns how many callbacks there are in each state."""
        return await self._store.callbacks.counts()

    async def next_due(self) -> int | None:
        """Returns when the next callback is due."""
        return await self._store.callbacks.next_due()


class Callbacks(CallbackQueries):
    """Sends callbacks."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.runs: RunViews | None = None  # from the start of the engine on
        self.formats: dict[str, Callable[[Run], Any]] = {}
        self.send: Send | None = None  # given by the app, which knows the network
        self.judge: Callable[[str], None] | None = None  # raises Denied for an address that is never called
        self.keep_trying = 86_400.0  # seconds: a receiver that is down overnight still gets everything
        self.sent = 0
        self.failed = 0  # given up
        self.retried = 0
        self._wake = asyncio.Event()
        self._jobs = JobGroup("callbacks")
        self._deliveries = JobGroup("callbacks", _not_noted)
        self._under_way: dict[asyncio.Task[None], CallbackRow] = {}
        self._tidied = -_TIDY_EVERY

    @property
    def _runs(self) -> RunViews:
        assert self.runs is not None
        return self.runs

    async def retry(self, ids: list[int] | None) -> list[int]:
        """Sends callbacks that were given up again: these, or all. Returns the ids of those that are."""
        return await self._store.callbacks.retry(ids, self._store.clock.now())

    def check(self, url: str, path: str) -> None:
        """Raises InvalidRequest for an address that may never be called."""
        check_id(url, "the address for callbacks", path, most=_LONGEST_URL)
        if self.judge is not None:
            try:
                self.judge(url)
            except Denied as error:
                raise InvalidRequest(f"callbacks cannot be sent to this address: {error.message}", path=path) from error

    def start(self) -> None:
        if self.send is not None and not self._jobs:
            self._jobs.spawn(self._loop())

    async def stop(self) -> None:
        await close_all([self._jobs.close, self._deliveries.close])

    def hint(self) -> None:
        self._wake.set()

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._tidy()
                pause = await self._take()
            except InterlinguaError as error:
                log.error("could not read callbacks: %s", error)
                pause = 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _take(self) -> float:
        """Start sending what is due, and say how long nothing will be. Whatever ends, or is new, wakes the loop."""
        under_way = self._under_way.values()
        standings = Counter(row.standing for row in under_way)
        places = Places(_AT_ONCE - len(under_way), _NEW - standings["new"], _FAILING - standings["failing"])
        due = await self._store.callbacks.next_due()
        if due is None or not places.all:
            return 30.0
        time = self._store.clock.now()
        if due > time:
            return min(30.0, (due - time) / 1e6 + 0.001)
        busy = Counter(row.receiver for row in under_way)
        rows = await self._store.callbacks.claim(
            time, time + int(_LEASE * 1e6), places, busy=busy, per_receiver=_PER_RECEIVER
        )

        for row in rows:
            task = self._deliveries.spawn(self._deliver(row))
            self._under_way[task] = row
            task.add_done_callback(self._delivered)
        return 0.0 if rows else 1.0  # without any, what is due is for receivers whose places are taken

    def _delivered(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._wake.set()

    async def _tidy(self) -> None:
        time = self._store.clock.monotonic()
        if time - self._tidied >= _TIDY_EVERY:
            self._tidied = time
            await self._store.callbacks.forget(self._store.clock.now() - int(_REMEMBER * 1e6))

    async def _deliver(self, row: CallbackRow) -> None:
        assert self.send is not None
        attempts = row.attempts + 1
        clock = self._store.clock.monotonic
        asked: float | None = None
        try:
            run = await self._run_of(row)
            body = self.formats[row.format](run)
            asked = clock()
            async with asyncio.timeout(_SEND_WITHIN):
                await self.send(row.url, body, row.id)
        except Exception as error:
            await self._failed(row, attempts, error, None if asked is None else clock() - asked)
        else:
            self.sent += 1
            standing: Standing = "good" if clock() - asked <= _PROMPT else "new"
            await self._store.callbacks.settle(
                row, state="sent", attempts=attempts, next_at=0, error=None,
                standing=standing, failures=0, rest_until=0, now=self._store.clock.now(),
            )  # fmt: skip

    async def _run_of(self, row: CallbackRow) -> Run:
        """The run as it was when it changed; one that is gone still tells how it ended."""
        try:
            run = await self._runs.get(row.run)
        except NotFound:
            kept = await self._store.callbacks.deleted_run(row.id)
            if kept is None:
                raise
            run = self._runs.view(*kept)
        run.status, run.updated_at = Status(row.status), row.time
        return run

    async def _failed(self, row: CallbackRow, attempts: int, error: Exception, took: float | None) -> None:
        time = self._store.clock.now()
        standing: Standing = row.standing
        failures, rest_until = row.failures, 0
        if isinstance(error, NotTaken):  # it is there: only this one callback has to wait
            prompt = took is not None and took <= _PROMPT
            standing, failures = "good" if prompt and standing == "good" else "new", 0
        elif took is not None and not isinstance(error, Denied):
            standing, failures = "failing", failures + 1
            rest_until = time + int(pause_after(failures) * 1e6)
        hopeless = tried_for(failures) >= self.keep_trying and standing == "failing"
        too_old = time - int((self.keep_trying + _LONGEST_PAUSE) * 1e6)  # some of it was never tried: others were
        # What may not be sent, or is not there any more, will not be better tomorrow.
        final = (
            isinstance(error, Denied | NotFound)
            or tried_for(attempts) >= self.keep_trying
            or (hopeless and row.time < too_old)
        )
        said = f"no answer within {_SEND_WITHIN:g} s" if isinstance(error, TimeoutError) else redact_text(str(error))
        shown = f"{'Unavailable' if isinstance(error, NotTaken) else type(error).__name__}: {said}"[:500]
        self.failed += final
        self.retried += not final
        log.log(
            logging.ERROR if final else logging.WARNING, "callback %d to %s failed%s: %s", row.id, redact_url(row.url),
            " for good" if final else "", said, extra={"fields": {"run": row.run, "attempts": attempts}},
        )  # fmt: skip
        await self._store.callbacks.settle(
            row, state="failed" if final else "due", attempts=attempts,
            next_at=time + int(pause_after(attempts) * 1e6), error=shown,
            standing=standing, failures=failures, rest_until=rest_until, now=time,
        )  # fmt: skip
        while hopeless and (given_up := await self._store.callbacks.give_up(row.receiver, too_old, shown)):
            self.failed += given_up
            log.error("%d callbacks to %s are given up: it has been silent too long", given_up, row.receiver)


def _not_noted(error: BaseException) -> None:
    log.error("could not note how a callback went; it is sent again: %s", error)
