"""Searches that find nothing follow an index there, and read no table to its end, on each database."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlingua.engine.ids import new_id, now
from interlingua.model.filters import RunFilter, ThreadFilter
from interlingua.model.run import Thread
from interlingua.model.status import Status
from interlingua.store.postgres.connection import PostgresConnection
from interlingua.store.sql.dialect import Connection, Cursor
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.databases import sql
from tests.kit.rows import append, at, event, row

from .test_claim_order import Explained

RUNS = [
    RunFilter(caller="ann"),
    RunFilter(agent="a"),
    RunFilter(caller="ann", agent="a"),
    RunFilter(caller="ann", tag="stateless"),
    *(
        RunFilter(caller=caller, agent=agent, tag=tag, status=status)
        for caller in (None, "ann")
        for agent in (None, "a")
        for tag in (None, "stateless")
        for status in ([Status.FAILED, Status.CANCELLED], [Status.WAITING], [Status.PENDING, Status.RUNNING])
    ),
    RunFilter(metadata={"ticket": "none"}),
    RunFilter(metadata={"ticket": "none"}, caller="ann", tag="stateless"),
    RunFilter(metadata={"ticket": "none", "env": "prod"}),
    RunFilter(metadata={"env": "prod"}, status=[Status.WAITING]),
    RunFilter(root="none"),
]
THREADS = [
    ThreadFilter(caller="ann"),
    *(ThreadFilter(caller=caller, status=status) for caller in (None, "ann") for status in ("busy", "interrupted")),
    *(ThreadFilter(caller=caller, status="error") for caller in (None, "ann")),
    *(ThreadFilter(caller=caller, metadata={"ticket": "none"}) for caller in (None, "ann")),
    *(ThreadFilter(caller=caller, values={"stage": "none"}) for caller in (None, "ann")),
    ThreadFilter(values={"stage": "none"}, metadata={"env": "prod"}, status="idle"),
]
PARTIAL = ("runs_open", "runs_unmet", "threads_active", "threads_failed")  # without what is not looked for


async def _explained(store: SqlStore, search: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The plans of what a search asks the database."""
    plans: list[tuple[str, str]] = []
    find = store.database.search

    async def explained(fn: Callable[[Connection], Any]) -> Any:
        return await find(lambda conn: fn(Explained(conn, plans)))

    with monkeypatch.context() as patched:
        patched.setattr(store.database, "search", explained)
        await search()
    assert plans
    return "\n".join(f"{asked}\n{plan}" for asked, plan in plans)


async def test_no_search_on_sqlite_reads_all_runs_or_threads(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.store.sqlite.connection._FEW", 3)
    await sqlite.open()
    for number in range(6):
        one = row(metadata=b'{"env":"prod"}', status=Status.SUCCEEDED, wake_at=None)
        await append(sqlite, one, 1, event(one.id, 1), insert=True)
        thread = Thread(f"t{number}", "idle", now(), now(), "bob", metadata={"env": "prod"}, values={"stage": 1})
        await sqlite.threads.create(thread, if_exists="raise")
    searches = [(where, lambda where=where: sqlite.runs.search(where)) for where in RUNS]
    searches += [(where, lambda where=where: sqlite.threads.search(where)) for where in THREADS]
    for where, search in searches:
        plan = await _explained(sqlite, search, monkeypatch)
        for line in plan.splitlines():
            whole = line.startswith(("SCAN runs", "SCAN t")) and not any(index in line for index in PARTIAL)
            assert not whole, f"{where}\n{plan}"
    await sqlite.close()


async def test_a_search_by_status_on_sqlite_reads_no_run_of_another_status_or_of_another_door(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of one status are found by it, and stand in order: nothing is sorted before the newest are taken."""
    await sqlite.open()
    statuses = [Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.SUCCEEDED]
    wanted = [where for where in RUNS if where.status is None or where.status[0] is Status.FAILED]
    for where in [*wanted, *(msgspec.structs.replace(where, status=statuses) for where in wanted)]:
        if where.metadata or where.root is not None:
            continue
        plan = await _explained(sqlite, lambda where=where: sqlite.runs.search(where), monkeypatch)
        found = [line for line in plan.splitlines() if line.startswith(("SEARCH runs", "SCAN runs"))]
        assert found
        assert not re.search(r"^SEARCH runs .*\nUSE TEMP B-TREE", plan, re.MULTILINE), f"{where}\n{plan}"
        for line in found:
            assert "_unmet" not in line or "status=?" in line, f"{where}\n{plan}"
            assert ("runs_tag" in line) is (where.tag is not None), f"{where}\n{plan}"
    await sqlite.close()


async def test_a_search_by_status_and_metadata_on_sqlite_reads_no_run_without_that_metadata(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.store.sqlite.connection._FEW", 1)
    await sqlite.open()
    made = []
    for number in range(6):
        metadata = b'{"env":"prod"}' if number % 2 else b'{"env":"test"}'
        status = Status.FAILED if number < 4 else Status.CANCELLED
        one = row(metadata=metadata, status=status, wake_at=None)
        await append(sqlite, one, 1, event(one.id, 1), insert=True)
        made.append(one.id)
    where = RunFilter(metadata={"env": "prod"}, status=[Status.FAILED])
    plan = await _explained(sqlite, lambda: sqlite.runs.search(where), monkeypatch)
    assert "SEARCH runs USING INDEX runs_unmet (status=? AND id=?)" in plan
    assert [one.id for one in await sqlite.runs.search(where)] == [made[3], made[1]]
    monkeypatch.setattr("interlingua.store.sqlite.connection._SOME", 2)  # a list of all would be too long
    plan = await _explained(sqlite, lambda: sqlite.runs.search(where), monkeypatch)
    assert "SEARCH runs USING INDEX runs_unmet (status=?)" in plan
    assert [one.id for one in await sqlite.runs.search(where)] == [made[3], made[1]]
    await sqlite.close()


async def test_searches_by_metadata_on_postgresql_follow_the_index_of_terms(
    store: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(store, str):
        pytest.skip("SQLite is tested by itself")
    made = at(store)
    await made.open()
    one = row(metadata=b'{"env":"prod"}', wake_at=None)
    await append(made, one, 1, event(one.id, 1), insert=True)
    plans = list[str]()
    execute = PostgresConnection.execute

    def explained(conn: PostgresConnection, query: str, args: Sequence[Any] = (), /) -> Cursor:
        if "FROM runs" in query:
            execute(conn, "SET enable_seqscan=off")  # with so few rows the database would rather read them all
            plans.extend(str(line[0]) for line in execute(conn, f"EXPLAIN {query}", args).fetchall())
        return execute(conn, query, args)

    monkeypatch.setattr(PostgresConnection, "execute", explained)
    for caller in (None, "ann"):
        plans.clear()
        assert await made.runs.search(RunFilter(metadata={"ticket": "none"}, caller=caller)) == []
        assert "runs_terms" in "\n".join(plans)
    await made.close()


async def test_terms_follow_what_runs_and_threads_become_and_go_with_them(sqlite: SQLiteStore) -> None:
    await sqlite.open()
    one = row(metadata=b'{"ticket":"a","n":{"m":1}}', status=Status.SUCCEEDED, wake_at=None)
    await append(sqlite, one, 1, event(one.id, 1), insert=True)
    thread = Thread("t", "idle", now(), now(), "ann", metadata={"ticket": "a"}, values={"stage": 1, "left": [1]})
    await sqlite.threads.create(thread, if_exists="raise")

    def terms(of: str) -> int:
        return int(sql(sqlite.path, "SELECT count(*) FROM terms WHERE id=?", of)[0][0])

    assert (terms(one.id), terms("t")) == (4, 6)
    assert [found.id for found in await sqlite.runs.search(RunFilter(metadata={"n": {"m": 1}}))] == [one.id]
    await sqlite.threads.patch(
        "t", checkpoint=new_id(), values_={"stage": 2}, metadata={"ticket": "b"}, base=None, messages=None, now=now()
    )
    assert terms("t") == 6
    await sqlite.threads.copy("t", "u", new_id, now())
    for member in ({"ticket": "b"}, {"ticket": "a"}):
        found = [thread.id for thread in await sqlite.threads.search(ThreadFilter(metadata=member))]
        assert sorted(found) == (["t", "u"] if member["ticket"] == "b" else [])
    await sqlite.threads.delete("t", now())
    await sqlite.runs.delete(one.id, now())
    assert (terms(one.id), terms("t"), terms("u")) == (0, 0, 6)
    await sqlite.close()
