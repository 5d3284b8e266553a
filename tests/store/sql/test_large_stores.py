"""What a store promises when there is a lot in it, when others write meanwhile, and when its version is an old one."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from interlingua.engine.ids import new_id, now
from interlingua.model import json_values
from interlingua.model.errors import Conflict
from interlingua.model.filters import RunFilter, ThreadFilter
from interlingua.model.run import Thread
from interlingua.model.status import Status
from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.changes import PutCallback
from interlingua.store.rows import CallbackRow, Places
from interlingua.store.sql.callbacks import put_callback
from interlingua.store.sql.dialect import Connection
from interlingua.store.sql.json_search import json_contains, select_runs
from interlingua.store.sql.keys import SqlKeys
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite import migration as sqlite_migration
from interlingua.store.sqlite.connection import SQLiteConnection, connect
from interlingua.store.sqlite.migration import migrate
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.rows import append, at, event, row

ROOM = Places(16, 16, 16)


async def _claim(store: SqlStore, places: Places = ROOM, **busy: int) -> list[CallbackRow]:
    time = now()
    return await store.callbacks.claim(time, time + 60_000_000, places, busy=busy, per_receiver=4)


async def _put(store: SqlStore, *told: tuple[str, str]) -> None:
    """Callbacks of (run, address)."""
    await store.database.write(
        lambda conn: [put_callback(conn, PutCallback(run, url, "f", Status.SUCCEEDED), now()) for run, url in told]
    )


async def _settle(store: SqlStore, row: CallbackRow, **how: Any) -> None:
    given = {"state": "sent", "attempts": 1, "next_at": 0, "error": None, "standing": "good", "failures": 0,
             "rest_until": 0, "now": now(), **how}  # fmt: skip
    await store.callbacks.settle(row, **given)


async def test_a_revoked_key_stays_revoked_when_its_use_is_noted_at_the_same_time(
    made: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made.open()
    server, cli = StoredKeys(made.keys), StoredKeys(made.keys)
    _, record = make_key("laptop", [], now())
    await server.put(record)
    found = SqlKeys.get

    async def meanwhile(self: SqlKeys, id_: str) -> bytes | None:
        read = await found(self, id_)
        monkeypatch.undo()
        assert await cli.revoke(id_, 5)
        return read

    monkeypatch.setattr(SqlKeys, "get", meanwhile)
    await server.get(record.id)  # where noting its use reads first, the key is revoked after that
    monkeypatch.setattr(SqlKeys, "get", meanwhile)
    await server.touch(record.id, 9)
    monkeypatch.undo()
    kept = await server.get(record.id)
    assert kept is not None
    assert kept.revoked_at == 5
    assert not await cli.revoke(record.id, 7)
    await made.close()


async def test_noting_the_use_of_a_key_and_revoking_it_race_without_loss(store: Path | str) -> None:
    ours, theirs = at(store), at(store)
    await ours.open()
    await theirs.open()
    for _ in range(50):
        _, record = make_key("laptop", [], now())
        await StoredKeys(ours.keys).put(record)
        await asyncio.gather(StoredKeys(ours.keys).touch(record.id, 9), StoredKeys(theirs.keys).revoke(record.id, 5))
        kept = await StoredKeys(ours.keys).get(record.id)
        assert kept is not None
        assert kept.revoked_at == 5
    await ours.close()
    await theirs.close()


async def test_taking_callbacks_costs_the_same_however_many_wait_for_a_silent_receiver(sqlite: SQLiteStore) -> None:
    await sqlite.open()
    conn = sqlite.database.writer._conn
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def cost() -> int:
        """Of noticing, taking and settling one callback of a good receiver, in hundreds of SQLite's steps."""
        nonlocal steps
        run = new_id()
        steps = 0
        await _put(sqlite, (run, "http://good/hook"))
        assert await sqlite.callbacks.next_due() is not None
        (taken,) = await _claim(sqlite)
        assert taken.run == run
        await _settle(sqlite, taken)
        assert await _claim(sqlite) == []
        return steps

    await _put(sqlite, ("first", "http://silent/hook"))
    (taken,) = await _claim(sqlite)
    await _settle(sqlite, taken, state="due", standing="failing", failures=1, rest_until=now() + 60_000_000)
    conn.set_progress_handler(count, 100)
    before = max([await cost() for _ in range(3)])
    conn.set_progress_handler(None, 0)
    await _put(sqlite, *((f"run{n}", "http://silent/hook") for n in range(5000)))
    await _put(sqlite, *(("one", f"http://silent/hook{n}") for n in range(2000)))
    conn.set_progress_handler(count, 100)
    after = min([await cost() for _ in range(3)])
    conn.set_progress_handler(None, 0)
    assert after <= before + 5
    await sqlite.close()


async def test_callbacks_of_a_run_stay_in_order_and_receivers_take_turns(made: SqlStore) -> None:
    await made.open()
    await _put(made, ("a", "http://one/1"), ("a", "http://one/2"), ("b", "http://ONE/3"), ("c", "http://two/4"))
    first = await _claim(made)
    assert [row.url for row in first] == ["http://one/1", "http://two/4"], "one each, until they have answered"
    assert await _claim(made) == []
    await _settle(made, first[0])
    assert sorted(row.url for row in await _claim(made)) == ["http://ONE/3", "http://one/2"]
    assert await _claim(made, one=2) == []
    await _settle(made, first[1], state="failed", standing="new")
    assert await made.callbacks.retry(None, now()) == [first[1].id]
    assert [row.url for row in await _claim(made, Places(1, 0, 0))] == []
    assert [row.url for row in await _claim(made)] == ["http://two/4"]
    await made.close()


async def test_receivers_that_nobody_hears_of_any_more_are_forgotten(made: SqlStore) -> None:
    await made.open()
    await _put(made, ("a", "http://one/1"), ("b", "http://two/1"))
    (one, _) = await _claim(made)
    await _settle(made, one)
    await made.callbacks.forget(now() + 1)
    assert await made.database.read(lambda conn: conn.execute("SELECT receiver FROM receivers").fetchall()) == [
        ("two",)
    ]
    await made.close()


@pytest.mark.parametrize("marked", [False, True])
async def test_a_store_from_before_the_first_release_is_refused_and_not_changed(
    sqlite: SQLiteStore, marked: bool
) -> None:
    with sqlite3.connect(sqlite.path) as conn:
        for table in ("runs",) if marked else ("runs", "events", "checkpoints"):
            conn.execute(f"CREATE TABLE {table} (id TEXT)")
        if marked:
            conn.execute(f"PRAGMA application_id={0x494C4753}")
        conn.execute(f"PRAGMA user_version={1 if marked else 10}")
    conn.close()
    before = sqlite.path.read_bytes()
    with pytest.raises(Conflict, match="early version"):
        await sqlite.open()
    assert sqlite.path.read_bytes() == before


@pytest.mark.parametrize(
    "theirs",
    [
        "CREATE TABLE songs (id TEXT)",
        "CREATE VIEW songs AS SELECT 1",
        "PRAGMA application_id=12345",
        "PRAGMA user_version=7",
    ],
)
async def test_a_sqlite_file_of_another_program_is_refused_and_not_changed(sqlite: SQLiteStore, theirs: str) -> None:
    with sqlite3.connect(sqlite.path) as conn:
        conn.execute(theirs)
    conn.close()
    sqlite.path.chmod(0o644)
    before = sqlite.path.read_bytes()
    with pytest.raises(Conflict, match="another program"):
        await sqlite.open()
    assert sqlite.path.read_bytes() == before
    assert sqlite.path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in sqlite.path.parent.iterdir()] == [sqlite.path.name]


async def test_a_store_that_another_process_creates_meanwhile_is_not_taken_for_an_old_one(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = []

    class Slow(SQLiteConnection):
        """Lets another process create the tables after this one has read who wrote the file."""

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *args)
            if sql == "PRAGMA application_id" and not created:
                created.append(sqlite.path)
                migrate(sqlite.path)
            return cursor

    connect(sqlite.path).close()
    assert sqlite.path.stat().st_size, "the other process has begun"
    monkeypatch.setattr(sqlite_migration, "SQLiteConnection", Slow)
    await sqlite.open()
    assert created
    await sqlite.close()


@pytest.mark.parametrize("form", ["deep", "wide"])
async def test_searches_by_metadata_are_neither_too_deep_nor_too_wide_for_the_store(made: SqlStore, form: str) -> None:
    await made.open()
    metadata: Any = {"leaf": 1}
    if form == "deep":
        for _ in range(60):
            metadata = {"a": metadata}
    else:
        metadata = {f"k{n}": n for n in range(1500)}
    r = row(metadata=json_values.encode(metadata))
    assert await append(made, r, 1, event(r.id, 1, "created"), insert=True) is None
    thread = Thread(new_id(), "idle", now(), now(), "me", metadata=metadata, values=metadata)
    await made.threads.create(thread, if_exists="raise")
    assert [found.id for found in await made.runs.search(RunFilter(metadata=metadata))] == [r.id]
    assert [found.id for found in await made.threads.search(ThreadFilter(metadata=metadata, values=metadata))] == [
        thread.id
    ]
    other = {**metadata, "k7": 8, "b": 1}
    assert await made.runs.search(RunFilter(metadata=other)) == []
    assert await made.threads.search(ThreadFilter(values=other)) == []
    await made.close()


@pytest.mark.parametrize(
    ("have", "want", "found"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 0}, {"a": False}, False),
        ({"a": None}, {"a": None}, True),
        ({"b": None}, {"a": None}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}, True),
        ({"a": {"b": 1}}, {"a": {}}, False),
        ({"a": {}}, {"a": {}}, True),
        ({"a": []}, {"a": {}}, False),
        ({"a": [1, {"b": 1}]}, {"a": [1, {"b": 1}]}, True),
        ({"a": [1, {"b": 1, "c": 2}]}, {"a": [1, {"b": 1}]}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": 'é "x"\n'}, {"a": 'é "x"\n'}, True),
        ({"a": "x"}, {"a": "y"}, False),
    ],
)
async def test_objects_match_by_member_and_all_else_by_equality(
    made: SqlStore, have: Any, want: Any, found: bool
) -> None:
    assert json_contains(json_values.encode(have), json_values.encode(want)) is found
    await made.open()
    r = row(metadata=json_values.encode(have))
    assert await append(made, r, 1, event(r.id, 1, "created"), insert=True) is None
    assert bool(await made.runs.search(RunFilter(metadata=want))) is found
    await made.close()


async def test_searches_under_way_hold_up_no_other_reading(made: SqlStore) -> None:
    await made.open()
    go = threading.Event()
    began = threading.Semaphore(0)

    def slow(conn: Connection) -> None:
        began.release()
        go.wait(20)

    searches = [asyncio.ensure_future(made.database.search(slow)) for _ in range(8)]
    searches.append(asyncio.ensure_future(made.runs.search(RunFilter())))  # type: ignore[arg-type]
    searches.append(asyncio.ensure_future(made.threads.search(ThreadFilter())))  # type: ignore[arg-type]
    try:
        await asyncio.to_thread(began.acquire)
        async with asyncio.timeout(10):
            assert await made.runs.get("nobody") is None
            assert await made.keys.get("nobody") is None
        assert not any(search.done() for search in searches)
    finally:
        go.set()
        await asyncio.gather(*searches)
    await made.close()


async def test_a_callers_search_reads_only_what_is_theirs_and_no_events(sqlite: SQLiteStore) -> None:
    await sqlite.open()
    sql, args = select_runs(sqlite.database.dialect, "id", RunFilter(caller="me", tag="stateless"))
    plan = await sqlite.database.read(lambda conn: conn.execute(f"EXPLAIN QUERY PLAN {sql}", args).fetchall())
    assert [step[3] for step in plan] == ["SEARCH runs USING INDEX runs_tag_caller (caller=?)"], "and nothing to sort"
    assert "events" not in sql
    await sqlite.close()
