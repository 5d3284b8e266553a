"""New SQLite stores that need not be built table by table: the tests make thousands of them, and to build one takes as
long as what many a test does with it. The first is built as always, and the others begin as a copy of its file. Tests
of the store itself are not for this.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import cache
from pathlib import Path

from interlingua.store.sqlite.migration import migrate
from interlingua.store.sqlite.store import SQLiteStore

built = SQLiteStore.open  # as it is without this


def begin() -> None:
    """From now on, in this process and those that are split off from it."""
    SQLiteStore.open = _open  # type: ignore[method-assign]


@cache
def _new_file() -> bytes:
    with tempfile.TemporaryDirectory(prefix="il-store-") as folder:
        path = Path(folder, "store.db")
        migrate(path)
        return path.read_bytes()


async def _open(store: SQLiteStore, *, read_only: bool = False) -> None:
    # Whatever is there already, or cannot be written, is for the store to find.
    if not read_only:
        with contextlib.suppress(OSError):
            _put_if_there_is_none(store.path)
    await built(store, read_only=read_only)


def _put_if_there_is_none(path: Path) -> None:
    """Nobody sees a part of it, also where several processes open a new store at once."""
    if path.exists():
        return
    fd, draft = tempfile.mkstemp(prefix=f"{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(_new_file())
        os.link(draft, path)
    finally:
        Path(draft).unlink()
