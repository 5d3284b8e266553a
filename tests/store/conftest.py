"""Everything here that asks for a store runs on each of the databases; what is true of one only names that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit import ready_stores
from tests.kit.postgres import fresh
from tests.kit.rows import at


@pytest.fixture(autouse=True)
def _built_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store here is built, table by table."""
    monkeypatch.setattr(SQLiteStore, "open", ready_stores.built)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a new store is."""
    if request.param == "sqlite":
        return tmp_path / "store.db"
    return fresh(request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives where a new store is, as often as it is called."""
    if request.param == "sqlite":
        return lambda: tmp_path_factory.mktemp("store") / "store.db"
    url = request.getfixturevalue("postgres")
    return lambda: fresh(url)


@pytest.fixture
def made(store: Path | str) -> SqlStore:
    return at(store)


@pytest.fixture
def sqlite(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(tmp_path / "store.db")
