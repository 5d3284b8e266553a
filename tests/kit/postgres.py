"""A PostgreSQL server of these tests' own, and a schema of it for each store that is asked for."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from interlingua.server.dev.local_servers import LocalPostgres
from interlingua.store.postgres.connection import place

# postgresql://…: every test that asks for a store gets one there; postgresql:// alone: on a server of the tests' own,
# one for all of their processes.
SWITCH = "INTERLINGUA_TEST_STORE"
_OWN = "postgresql://"

# Others are noticed as soon as with SQLite: most tests with two engines wait for that.
_QUICK = "poll=0.05"
_numbers = itertools.count(1)


_QUICK_TO_DIE = "lease=1"  # seconds; processes that are killed are missed as soon as tests can wait for
_named: list[str] = []  # what the switch said: tests may have an environment of their own


def begin(config: pytest.Config) -> None:
    """Start the server that the switch asks for, before the processes that share it."""
    if os.environ.get(SWITCH) == _OWN and not hasattr(config, "workerinput"):
        held = ExitStack()
        config.add_cleanup(held.close)
        os.environ[SWITCH] = held.enter_context(own_server()).url
    _named.extend(name for name in [os.environ.get(SWITCH)] if name)


def store_in(folder: Path) -> Path | str:
    """The store of processes that live in a folder: a file there, or a place of the folder's own on the server."""
    if not _named:
        return folder / "store.db"
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    mark = "&" if "?" in _named[0] else "?"
    return f"{_named[0]}{mark}schema=f{name}&{_QUICK}&{_QUICK_TO_DIE}"


def forget(where: str) -> None:
    """What was in a store is not needed any more. A server with thousands of schemas takes gigabytes of memory."""
    at = place(where)
    assert at.schema is not None
    with contextlib.suppress(psycopg.errors.LockNotAvailable), psycopg.connect(at.conninfo, autocommit=True) as conn:
        conn.execute("SET lock_timeout='2s'")
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(at.schema)))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server: the one that somebody named, or a new one. Started when the first test needs it."""
    if _named:
        yield _named[0]
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


def beside(store: Path | str, name: str) -> Path | str:
    """Another store, of the same kind."""
    if not isinstance(store, str):
        return store.with_name(f"{name}.db")
    schema = place(store).schema
    return store.replace(f"schema={schema}", f"schema={schema}_{name}")
