"""The report on blocked runs: why one is blocked, how many there are, and which ones nobody serves.

A run that is due and that no living worker serves is blocked, too. Nobody owns it, so nothing in the store says so:
that is found here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...model import run_identity
from ...model.filters import RunFilter
from ...model.run import Blocked
from ...store.ports import Store
from ...store.rows import RunRow
from ..agents.agent import Registry
from .blocked_runs import read_reason

if TYPE_CHECKING:
    from ..log.log_source import BlockedReader

log = logging.getLogger("interlingua.runs")

_AT_ONCE = 10_000
_FRESH = 1.0  # seconds for which it is known whether somebody serves a queue
REASONS = ("no_code", "history_mismatch", "failed_on_resume")


async def nobody() -> Collection[str]:
    return ()


class BlockedReport:
    """Finds blocked runs, and why they are blocked."""

    def __init__(
        self,
        store: Store,
        agents: Registry,
        is_served: Callable[[str], Awaitable[bool]],
        dead: Callable[[], Awaitable[Collection[str]]] = nobody,
    ) -> None:
        """`is_served` tells if a living process executes runs of a queue. `dead` returns the workers that died, where
        nobody hands back their runs."""
        self._dead = dead
        self._store = store
        self._agents = agents
        self._look_up = is_served
        self._served: dict[str, tuple[float, bool]] = {}  # queues: when somebody looked, and whether one is served
        self._readers: dict[str, set[BlockedReader]] = {}  # of runs that nobody executes here
        self._unserved: set[str] = set()  # queues with runs that were due, and that nobody served at the last look

    async def reason(self, row: RunRow) -> Blocked | None:
        """Returns why a run is blocked; None if it is not."""
        if row.worker is not None and row.worker in await self._dead():
            row = replace(row, worker=None, wake_at=0)  # as it will be handed back
        if row.blocked_reason is not None:
            return read_reason(row.blocked_reason)
        if row.worker is not None or row.status.final or row.wake_at is None or row.wake_at > self._store.clock.now():
            return None
        if not await self.is_served(row.queue):
            return _no_code(row)
        if row.blocked is not None:
            why = "it went on with other code, which is gone; the code that is there could not go on with it"
            return Blocked("no_code", f"{why}. Serve that code again, or: interlingua runs retry {row.id}")
        return None

    async def counts(self) -> dict[str, int]:
        """Counts blocked runs by reason."""
        counts = dict.fromkeys(REASONS, 0)
        for reason, count in await self._store.claims.blocked_reasons():
            counts[read_reason(reason).reason if reason is not None else "no_code"] += count
        for queue, count in await self._store.claims.due_counts(self._store.clock.now()):
            if not await self.is_served(queue):
                counts["no_code"] += count
        return counts

    async def rows(self, where: RunFilter) -> list[RunRow]:
        """Returns the rows of blocked runs, the newest first."""
        store = self._store
        rows = await store.runs.search(where)
        for queue, _ in await store.claims.due_counts(self._store.clock.now()):
            if not await self.is_served(queue):
                rows += await store.claims.due_runs(queue, self._store.clock.now(), where.limit)
        matching = [row for row in rows if where.agent in (None, row.agent) and where.thread in (None, row.thread)]
        if where.status is not None:
            matching = [row for row in matching if row.status in where.status]
        matching = sorted({row.id: row for row in matching}.values(), key=lambda row: row.id, reverse=True)
        return matching[: where.limit]

    async def is_abandoned(self, run: str) -> bool:
        """Returns True if a run that has not ended goes on only when somebody resumes it: no living worker has it or
        serves its queue."""
        row = await self._store.runs.get(run)
        if row is None or row.status.final:
            return False
        if row.worker is not None and row.worker not in await self._store.claims.dead():
            return False
        return not await self.is_served(row.queue)

    # -- readers ------------------------------------------------------------------------------------------

    def watch(self, run: str, reader: BlockedReader) -> None:
        """A reader waits for news of a run that nobody executes here."""
        self._readers.setdefault(run, set()).add(reader)

    def unwatch(self, run: str, reader: BlockedReader) -> None:
        self._readers[run].discard(reader)
        if not self._readers[run]:
            del self._readers[run]

    async def tell_readers(self) -> None:
        """Tell readers whose runs are due and have no code. A queue that nobody serves for a moment, as while a process
        is started anew, is not told: only one that nobody served the last time either."""
        before, self._unserved = self._unserved, set()
        if not self._readers:
            return
        store = self._store
        for queue, _ in await store.claims.due_counts(self._store.clock.now()):
            if not await self.is_served(queue):
                self._unserved.add(queue)
        for queue in self._unserved & before:
            for row in await store.claims.due_runs(queue, self._store.clock.now(), _AT_ONCE):
                for reader in list(self._readers.get(row.id, ())):
                    reader.tell_blocked(_no_code(row))

    async def announce(self) -> list[str]:
        """Log which unfinished runs this process cannot execute, and why. Returns the lines."""
        lines = await self._unexecutable()
        for line in lines:
            log.warning("%s", line)
        return lines

    async def _unexecutable(self) -> list[str]:
        store, codes = self._store, self._agents.codes()
        lines: list[str] = []
        for one in await store.claims.open_queues():
            queue = run_identity.queue(one.origin, one.agent, one.version)
            if queue not in codes and not await self.is_served(queue):
                what = f"{_counted(one.runs, 'waits', 'wait')} for {_shown(one.origin, one.agent, one.version)}"
                move = f"interlingua runs move --from '{one.origin}' --to TARGET"
                lines.append(f"{what}, which nobody serves. Serve it, or: {move}")
        for line in await store.claims.blocked_lines():
            if line.reason and (line.queue not in codes or codes[line.queue] in line.codes.split()):
                why = read_reason(line.reason).message
                key = run_identity.split_queue(line.queue)[1]
                what = _counted(line.runs, f"of {key} is blocked", f"of {key} are blocked")
                lines.append(f"{what}: {why} (interlingua runs list --blocked)")
        return lines

    async def is_served(self, queue: str) -> bool:
        """Returns True if a living process executes the runs of a queue, as of a moment ago."""
        time = self._store.clock.monotonic()
        known = self._served.get(queue)
        if known is None or time - known[0] > _FRESH:
            known = self._served[queue] = (time, await self._look_up(queue))
        return known[1]


def _no_code(row: RunRow) -> Blocked:
    what = f"it waits for {_shown(row.origin, row.agent, row.version)}, which nobody serves"
    return Blocked("no_code", f"{what}. Serve it, or: interlingua runs move {row.id} --to TARGET")


def _shown(origin: str, agent: str, version: str) -> str:
    return f"{agent} {version} ({origin.strip()})" if origin.strip() else f"{agent} {version}"


def _counted(runs: int, verb: str, verbs: str) -> str:
    return f"1 run {verb}" if runs == 1 else f"{runs} runs {verbs}"
