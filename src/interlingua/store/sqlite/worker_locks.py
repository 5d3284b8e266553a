"""Liveness by file locks: a worker holds one, and the operating system releases that of a dead one.

No clock is involved, so a laptop that slept for a night has not died.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from weakref import WeakSet

from ...model import json_values
from ..rows import WorkerRow
from ..sql.claims import hand_back
from ..sql.database import Database
from ..sql.dialect import Connection

try:
    import fcntl

    def _lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

except ImportError:  # Windows
    import msvcrt

    def _lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True


_all: WeakSet[Locks] = WeakSet()


def _forked() -> None:
    """A lock belongs to the open file, which a forked child shares: there it would keep a dead parent alive."""
    for locks in _all:
        for fd in locks._held.values():
            os.close(fd)
        locks._held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Locks:
    """The lock files of one store, in a folder beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        _all.add(self)

    def hold(self, worker: str) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._path(worker), os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(fd):
            os.close(fd)
            raise RuntimeError(f"worker {worker} is already running")
        self._held[worker] = fd

    def release(self, worker: str) -> None:
        fd = self._held.pop(worker, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                self._path(worker).unlink()
            os.close(fd)

    def dead(self, worker: str) -> bool:
        """Returns true if no process holds this worker's lock. A missing lock file was released, or swept."""
        if worker in self._held:
            return False
        try:
            fd = self._open(worker)
        except FileNotFoundError:
            return True
        try:
            return _lock(fd)
        finally:
            os.close(fd)

    def _open(self, worker: str) -> int:
        try:
            return os.open(self._path(worker), os.O_RDWR)
        except FileNotFoundError:
            raise
        except OSError:  # it may be read only
            return os.open(self._path(worker), os.O_RDONLY)

    def sweep(self, worker: str) -> None:
        with contextlib.suppress(OSError):
            self._path(worker).unlink()

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker}.lock"

    def release_all(self) -> None:
        for worker in list(self._held):
            self.release(worker)


class FileLiveness:
    """Liveness by file locks. A death shows at once."""

    missed_after = 0.0

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self.locks = Locks(folder)

    def lives(self, conn: Connection, worker: str) -> bool:
        """Returns true: a worker that asks lives."""
        return True

    def release_all(self) -> None:
        self.locks.release_all()

    async def enter(self, worker: WorkerRow) -> None:
        self.locks.hold(worker.id)
        await self._database.write(
            lambda conn: conn.execute(
                "INSERT OR REPLACE INTO workers (id, host, pid, started_at, queues) VALUES (?,?,?,?,?)",
                (worker.id, worker.host, worker.pid, worker.started_at, json_values.encode(worker.queues)),
            )
        )

    async def leave(self, worker: str) -> None:
        await self._database.write(lambda conn: hand_back(conn, worker, crashed=False))
        self.locks.release(worker)

    async def dead(self) -> list[str]:
        rows = await self._database.read(
            lambda conn: conn.execute(
                "SELECT id FROM workers UNION SELECT DISTINCT worker FROM runs WHERE worker IS NOT NULL"
            ).fetchall()
        )
        return [row[0] for row in rows if self.locks.dead(row[0])]

    async def bury(self) -> list[str]:
        """Hands back the runs of workers that died. Returns those workers."""
        dead = await self.dead()
        if not dead:
            return []

        def bury(conn: Connection) -> None:
            for worker in dead:
                hand_back(conn, worker, crashed=True)

        await self._database.write(bury)
        for worker in dead:
            self.locks.sweep(worker)
        return dead


def folder_of(path: Path) -> Path:
    """Returns the folder with the locks of a store file's workers."""
    return Path(f"{path}.workers")
