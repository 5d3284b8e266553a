"""Schemas of stores, and whether what is in them is whole: on both databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import Conflict
from interlingua.store import schema
from interlingua.store.integrity import Damage, check_logs, counts
from interlingua.store.open import migrate as migrate_store
from interlingua.store.postgres import migration as postgres
from interlingua.store.postgres.connection import place
from interlingua.store.schema import Plan, Step
from interlingua.store.sqlite import migration as sqlite
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.databases import sql
from tests.kit.rows import at


@il.agent
async def talk(n: int = 3) -> Any:
    for number in range(n):
        yield f"{number} "


async def filled(store: Path | str, runs: int = 4) -> list[str]:
    async with il.Engine(store, agents=[talk]) as engine:
        made = [await engine.runs.submit(il.RunRequest("talk")) for _ in range(runs)]
        for run in made:
            await engine.runs.wait(run.id)
    return [run.id for run in made]


async def damage(store: Path | str, sample: int | None = None) -> list[Damage]:
    opened = at(store)
    await opened.open()
    try:
        return await check_logs(opened, sample)
    finally:
        await opened.close()


async def test_a_store_that_is_whole_is_found_whole_and_counted(store: Path | str) -> None:
    await filled(store)
    assert await damage(store) == []
    assert await damage(store, 2) == []
    opened = at(store)
    await opened.open()
    found = await counts(opened)
    await opened.close()
    assert found.runs == {"succeeded": 4}
    assert found.events == sql(store, "SELECT count(*) FROM events")[0][0]


@pytest.mark.parametrize(
    ("change", "seq"),
    [
        ("UPDATE events SET body=? WHERE run=? AND seq=2", 2),
        ("UPDATE events SET time=time+length(?)*0+1 WHERE run=? AND seq=1", 1),
        ("DELETE FROM events WHERE length(?)>0 AND run=? AND seq=2", 2),
    ],
)
async def test_a_log_that_was_changed_is_found_with_the_first_event_that_does_not_fit(
    store: Path | str, change: str, seq: int
) -> None:
    _, changed, *_ = await filled(store)
    sql(store, change, b'{"kind":"started"}', changed)
    (found,) = await damage(store)
    assert (found.run, found.seq) == (changed, seq)


async def test_a_log_whose_end_was_cut_off_is_found(store: Path | str) -> None:
    _, cut, *_ = await filled(store)
    last = sql(store, "SELECT max(seq) FROM events WHERE run=?", cut)[0][0]
    sql(store, "DELETE FROM events WHERE run=? AND seq=?", cut, last)
    (found,) = await damage(store)
    assert (found.run, found.seq) == (cut, last)


async def test_a_run_that_has_ended_without_its_log_is_found(store: Path | str) -> None:
    (early,) = await filled(store, 1)
    before = sql(store, "SELECT max(seq)-1 FROM events WHERE run=?", early)[0][0]
    head = bytes(sql(store, "SELECT hash FROM events WHERE run=? AND seq=?", early, before)[0][0])
    sql(store, "DELETE FROM events WHERE run=? AND seq>?", early, before)
    sql(store, "UPDATE runs SET next_seq=?, head=? WHERE id=?", before + 1, head, early)
    (found,) = await damage(store)
    assert found.what == "it is succeeded, and its log does not end with that"


async def test_events_without_their_run_are_found(store: Path | str) -> None:
    _, gone, *_ = await filled(store)
    sql(store, "DELETE FROM runs WHERE id=?", gone)
    (found,) = await damage(store)
    assert (found.run, found.what) == (gone, "there are events of a run that is not there")


async def test_a_sample_has_the_newest_runs_and_never_one_twice(store: Path | str) -> None:
    runs = await filled(store, 30)
    seen: list[int] = []
    opened = at(store)
    await opened.open()
    sql(store, "UPDATE events SET time=time+1 WHERE run=? AND seq=1", runs[-1])
    found = await check_logs(opened, 10, seen.append)
    await opened.close()
    assert [one.run for one in found] == [runs[-1]]
    assert seen == list(range(1, len(seen) + 1))
    assert 5 <= len(seen) <= 10


# -- schemas -----------------------------------------------------------------------------------------------


def migrate(store: Path | str, *, dry: bool = False, more: list[Step] | None = None) -> Plan:
    """To this version's schema, or to one that is further on."""
    if isinstance(store, str):
        return postgres.migrate(place(store), dry=dry, known=schema.steps("postgres") + (more or []))
    return sqlite.migrate(store, dry=dry, known=schema.steps("sqlite") + (more or []))


def ahead(store: Path | str, alone: str = "") -> Step:
    number = len(schema.steps("postgres" if isinstance(store, str) else "sqlite")) + 1
    text = f"-- alone: {alone}\n" if alone else ""
    return schema.step(number, f"{number:04}_more.sql", f"{text}CREATE TABLE more (id TEXT)")


def test_a_dry_run_tells_what_would_be_done_and_does_nothing(store: Path | str) -> None:
    told = migrate_store(store, dry=True)
    assert told.found == 0
    assert len(told.ahead) == told.known
    assert migrate_store(store).found == 0
    assert migrate_store(store).ahead == []
    more = [ahead(store)]
    assert [step.name for step in migrate(store, dry=True, more=more).ahead] == [more[0].name]
    assert migrate_store(store).ahead == []


def test_a_store_of_a_newer_program_is_refused_with_both_versions_and_not_changed(store: Path | str) -> None:
    known = migrate_store(store).known
    migrate(store, more=[ahead(store)])
    for dry in (True, False):
        with pytest.raises(Conflict, match=f"its schema is {known + 1}, and this program knows {known}"):
            migrate_store(store, dry=dry)


async def test_a_step_that_must_be_taken_alone_waits_for_older_processes_to_end(store: Path | str) -> None:
    migrate_store(store)
    more = [ahead(store, "an older process would forget more")]
    async with il.Engine(store, agents=[talk]) as engine:
        (alive,) = migrate(store, dry=True, more=more).alive
        assert alive.id == engine.core.worker.id
        with pytest.raises(Conflict, match=rf"an older process would forget more.*pid {alive.pid}"):
            migrate(store, more=more)
        assert migrate(store, dry=True, more=more).found == more[0].number - 1
    assert migrate(store, more=more).ahead == more


async def test_a_step_that_others_do_not_mind_is_taken_beside_them(store: Path | str) -> None:
    async with il.Engine(store, agents=[talk]) as engine:
        assert migrate(store, more=[ahead(store)]).alive == []
        run = await engine.runs.submit(il.RunRequest("talk"))
        assert (await engine.runs.wait(run.id)).status is il.Status.SUCCEEDED


async def test_pages_of_a_file_that_are_damaged_are_found(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    await filled(file, 40)
    conn = sqlite3.connect(file)
    page = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name='events'").fetchone()[0]
    size = conn.execute("PRAGMA page_size").fetchone()[0]
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size + 8)
        raw.write(b"\xff" * 64)
    opened = SQLiteStore(file)
    await opened.open()
    try:
        assert await opened.damaged_pages(thorough=False)
    finally:
        await opened.close()
