"""A store for as long as a process lives: a SQLite file in memory where the system has a place for that."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from ...runtime.clock import SYSTEM_CLOCK, Clock
from .store import SQLiteStore

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a folder of its own is made in it


class MemoryStore(SQLiteStore):
    """Nothing else has this store. It is gone when it is closed."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
        self._folder = Path(place, f"interlingua-{secrets.token_hex(8)}")
        super().__init__(self._folder / "store.db", clock)

    async def open(self, *, read_only: bool = False) -> None:
        self._folder.mkdir(mode=0o700)
        try:
            await super().open(read_only=read_only)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    async def close(self) -> None:
        await super().close()
        shutil.rmtree(self._folder, ignore_errors=True)
