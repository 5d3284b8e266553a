"""A PostgreSQL server of these tests' own, and a schema of it for each store that is asked for."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interlingua.app.local_servers import LocalPostgres

# postgresql://…: every test that asks for a store gets one there; postgresql:// alone: on a server of the tests' own.
SWITCH = "INTERLINGUA_TEST_STORE"
_OWN = "postgresql://"

# Others are noticed as soon as with SQLite: most tests with two engines wait for that.
_QUICK = "poll=0.05"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server: the one that somebody named, or a new one. Started when the first test needs it."""
    named = os.environ.get(SWITCH)
    if named and named != _OWN:
        yield named
        return
    with own_server() as server:
        yield server.url


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder for a server. Not below one of pytest's: where these tests run as root, the server is another user's,
    who may not look into ours."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="il-pg-", dir=place) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def own_server() -> Iterator[LocalPostgres]:
    with open_folder() as folder:
        server = LocalPostgres(folder / "pg", durable=False)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def fresh(url: str) -> str:
    """A store that nobody has used."""
    mark = "&" if "?" in url else "?"
    return f"{url}{mark}schema=t{os.getpid()}_{next(_numbers)}&{_QUICK}"
