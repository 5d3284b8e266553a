"""Leases of workers on PostgreSQL: a worker's row says until when it lives, by the database's clock.

A thread with a connection of its own renews the leases, so agents that block the event loop and a writer that waits do
not make a process look dead. A process that was stopped for longer than its lease finds its row gone, and learns it.
The same thread ends the connections of dead processes: their open transactions may hold up every writer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import psycopg

from ...runtime.clock import Clock
from ..sql.dialect import Lock
from .connection import Place, PostgresConnection, connect

log = logging.getLogger("interlingua.store")

_RENEW = (
    "UPDATE workers SET lease_until=clock_timestamp()+make_interval(secs => %s) WHERE id=ANY(%s) RETURNING id"
)  # fmt: skip

_LOOK_EVERY = 1.0  # seconds between looks for the dead, where leases are long

# A server that has just started has heard of nobody for a while, through no fault of theirs.
RUN_OUT = (
    "lease_until<clock_timestamp() AND pg_postmaster_start_time()+make_interval(secs => ?)<clock_timestamp()"
)  # fmt: skip


def alive(worker: str) -> Lock:
    """Returns the lock that a worker's writing connection holds as long as it lasts."""
    return ("alive", worker)


class Leases:
    """The leases that this process holds. `on_lost` is called in the thread."""

    def __init__(self, where: Place, on_lost: Callable[[str], None], clock: Clock) -> None:
        self._clock = clock
        self._where = where
        self._on_lost = on_lost
        self._held = set[str]()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._conn: PostgresConnection | None = None
        self._failed = False
        self._refused = False
        self._thread: threading.Thread | None = None

    def hold(self, worker: str) -> None:
        """Keeps renewing the lease of a worker whose row has just been written."""
        with self._lock:
            self._held.add(worker)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="interlingua-lease", daemon=True)
            self._thread.start()

    def holds(self, worker: str) -> bool:
        """Returns true if this process holds the lease of a worker."""
        with self._lock:
            return worker in self._held

    def release(self, worker: str) -> None:
        with self._lock:
            self._held.discard(worker)

    def close(self) -> None:
        """Ends the leases that are still held: their workers died without leaving, and others need not wait."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(psycopg.Error):
            if self._held:
                self._renew(-1.0)
        if self._conn is not None:
            self._conn.raw.close()

    def _run(self) -> None:
        every = self._where.lease / 4
        due = self._clock.monotonic() + every
        while not self._stop.wait(min(every, _LOOK_EVERY)):
            try:
                if self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + every
                    for worker in self._renew(self._where.lease):
                        self._on_lost(worker)
                    self._failed = False
                if self._conn is not None:
                    self._end_dead(self._conn)
            except psycopg.Error as error:
                if not self._failed:
                    log.warning("leases could not be renewed: %s", " ".join(str(error).split()))
                self._failed = True
                due = self._clock.monotonic()
                if self._conn is not None:
                    self._conn.raw.close()
                    self._conn = None

    def _end_dead(self, conn: PostgresConnection) -> None:
        """A worker that is dead writes no more: what it has locked is free then, for those who bury it."""
        dead = conn.execute(f"SELECT id FROM workers WHERE {RUN_OUT}", (self._where.lease,)).fetchall()
        if not dead:
            return
        try:
            conn.end_keepers([alive(worker) for (worker,) in dead])
        except psycopg.errors.InsufficientPrivilege as error:  # all should have one name at the server
            if not self._refused:
                log.warning("what a dead process was writing cannot be ended: %s", " ".join(str(error).split()))
            self._refused = True

    def _renew(self, seconds: float) -> list[str]:
        """Returns the workers that are taken for dead."""
        if self._conn is None:
            self._conn = connect(self._where, writes=True)
        with self._lock:
            held = list(self._held)
        if not held:
            return []
        kept = {row[0] for row in self._conn.raw.execute(_RENEW, (seconds, held)).fetchall()}
        with self._lock:  # one that has left meanwhile is not lost
            gone = [worker for worker in held if worker not in kept and worker in self._held]
            self._held.difference_update(gone)
        return gone
