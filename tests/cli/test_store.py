"""`interlingua store`: migrating, and checking, as an operator meets them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from interlingua.store import schema
from tests.kit.commands import Result
from tests.kit.databases import sql
from tests.kit.postgres import fresh

from .conftest import ZOO

Cli = Callable[..., Result]
KNOWN = len(schema.steps("sqlite"))

pytestmark = pytest.mark.usefixtures("in_a_file")  # but for the last


def test_a_store_that_is_whole_passes(here: Cli) -> None:
    here("run", f"{ZOO}:shout", "hi")
    done = here("store", "check")
    assert done.code == 0, done.err
    assert f"schema {KNOWN}" in done.out
    assert "1 runs (1 succeeded)" in done.out
    assert "the logs of 1 runs prove themselves" in done.out
    told = here("store", "check", "--all", "--json").json
    assert (told["schema"], told["checked"], told["damage"]) == (KNOWN, 1, [])


def test_a_damaged_store_does_not_pass_and_it_is_said_where_and_what_to_do(here: Cli, tmp_path: Path) -> None:
    here("run", f"{ZOO}:shout", "hi")
    sql(tmp_path / "store.db", "UPDATE events SET body=? WHERE seq=2", b"{}")
    done = here("store", "check", "--all")
    assert done.code == 1
    assert "DAMAGED: 1 findings in 1 runs" in done.out
    assert ", event 2: its log does not follow from the event before" in done.out
    assert "Restore the newest backup" in done.out
    assert here("store", "check", "--json").json["damage"][0]["seq"] == 2


def test_a_file_that_is_no_store_is_told_without_a_traceback(here: Cli, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"something else" * 1000)
    for command in ("check", "migrate"):
        done = here("store", command)
        assert done.code == 1
        assert "cannot be read as a store" in done.err
        assert "Traceback" not in done.err
    assert here("store", "check", "--store", "nowhere.db").code == 3


def test_a_store_from_before_the_first_release_is_refused_kindly(here: Cli, tmp_path: Path) -> None:
    conn = sqlite3.connect(tmp_path / "store.db")
    for table in ("runs", "events", "checkpoints"):
        conn.execute(f"CREATE TABLE {table} (id TEXT)")
    conn.execute("PRAGMA user_version=10")
    conn.close()
    for command in (("store", "check"), ("store", "migrate"), ("runs", "list")):
        done = here(*command)
        assert done.code == 5, done
        assert "early version of Interlingua" in done.err
        assert "Traceback" not in done.err


def test_a_newer_store_is_refused_kindly(here: Cli, tmp_path: Path) -> None:
    here("store", "migrate", "--store", "store.db")
    here("run", f"{ZOO}:shout", "hi")
    sql(tmp_path / "store.db", f"PRAGMA user_version={KNOWN + 1}")
    for words in (("store", "migrate"), ("store", "check"), ("runs", "list")):
        done = here(*words)
        assert done.code == 5
        assert f"its schema is {KNOWN + 1}, and this program knows {KNOWN}; upgrade this one first" in done.err
        assert "Traceback" not in done.err


def test_the_same_on_postgresql(here: Cli, postgres: str) -> None:
    where = fresh(postgres)
    told = here("store", "migrate", "--store", where, "--json").json
    assert (told["from"], told["to"], told["done"]) == (0, len(schema.steps("postgres")), True)
    here("run", f"{ZOO}:shout", "hi", "--store", where)
    done = here("store", "check", "--all", "--store", where)
    assert done.code == 0, done.err
    assert "the logs of 1 runs prove themselves" in done.out
    assert ":***@" in done.out
    sql(where, "DELETE FROM events WHERE seq=2")
    assert here("store", "check", "--store", where).code == 1
