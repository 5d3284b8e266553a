"""Who is alive, on PostgreSQL: a worker's row says until when, by the database's clock, and a thread renews it.

A thread of its own, with a connection of its own: agents that block the event loop, or a writer that waits, do not make
a process look dead. One that was stopped for longer than its lease finds its row gone, and is told.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import psycopg

from .postgres_connection import Place, PostgresConnection, connect

log = logging.getLogger("interlingua.store")

_RENEW = (
    "UPDATE workers SET lease_until=clock_timestamp()+make_interval(secs => %s) WHERE id=ANY(%s) RETURNING id"
)  # fmt: skip


class Leases:
    """The leases that this process holds. `on_lost` is called in the thread."""

    def __init__(self, where: Place, on_lost: Callable[[str], None]) -> None:
        self._where = where
        self._on_lost = on_lost
        self._held = set[str]()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._conn: PostgresConnection | None = None
        self._failed = False
        self._thread: threading.Thread | None = None

    def hold(self, worker: str) -> None:
        """Its row has just been written, with a lease."""
        with self._lock:
            self._held.add(worker)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="interlingua-lease", daemon=True)
            self._thread.start()

    def holds(self, worker: str) -> bool:
        """Whether it is of this process, which is alive."""
        with self._lock:
            return worker in self._held

    def release(self, worker: str) -> None:
        with self._lock:
            self._held.discard(worker)

    def close(self) -> None:
        """Whoever still holds one here has died without a word: others need not wait for it to run out."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(psycopg.Error):
            if self._held:
                self._renew(-1.0)
        if self._conn is not None:
            self._conn.raw.close()

    def _run(self) -> None:
        while not self._stop.wait(self._where.lease / 4):
            try:
                gone = self._renew(self._where.lease)
            except psycopg.Error as error:
                if not self._failed:
                    log.warning("leases could not be renewed: %s", " ".join(str(error).split()))
                self._failed = True
                if self._conn is not None:
                    self._conn.raw.close()
                    self._conn = None
                continue
            self._failed = False
            for worker in gone:
                self._on_lost(worker)

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
