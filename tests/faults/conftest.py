"""Stores of the fault tests: most faults must do no harm on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.postgres import forget, fresh

LEASE = 1.0  # seconds after which a process that was killed is missed on PostgreSQL


@pytest.fixture(params=["sqlite", "postgres"])
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Where a new store is: in a file, and on a PostgreSQL server of the tests."""
    if request.param == "sqlite":
        yield tmp_path / "store.db"
        return
    where = f"{fresh(request.getfixturevalue('postgres'))}&lease={LEASE:g}"
    yield where
    forget(where)
