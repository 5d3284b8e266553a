"""Stores that are open for reading: everything can be read, and nothing is changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from interlingua.engine.ids import new_id, now
from interlingua.model.documents import Put
from interlingua.model.errors import Conflict
from interlingua.model.filters import QuestionFilter, RunFilter, ThreadFilter
from interlingua.model.run import Question, Thread
from interlingua.store.changes import PutQuestion
from interlingua.store.open import CannotOpen, NoStore
from interlingua.store.rows import WorkerRow
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.databases import sql
from tests.kit.rows import append, at, event, owned

LIST = """
import asyncio, sys
from interlingua.model.filters import RunFilter
from interlingua.store.open import open_store

async def main():
    store = open_store(sys.argv[1])
    await store.open(read_only=True)
    print(*[row.id for row in await store.runs.search(RunFilter())])
    await store.close()

asyncio.run(main())
"""


async def filled(store: Path | str) -> str:
    """Puts something of each kind into a store. Returns the id of its run."""
    made = at(store)
    await made.open()
    await made.claims.enter(WorkerRow("w", "here", 1, 0, []))
    run = await owned(made)
    question = Question(new_id(), run.id, "confirm", {}, {}, now())
    await append(made, run, 2, event(run.id, 2), changes=[PutQuestion(question, f"/{run.id}/")])
    await made.threads.create(Thread("t", "idle", now(), now(), "me"), if_exists="raise")
    await made.documents.write([Put("space", "d", b"body")])
    await made.keys.put("k", b"record")
    await made.close()
    return run.id


@contextlib.asynccontextmanager
async def reading(store: Path | str) -> AsyncIterator[SqlStore]:
    opened = at(store)
    await opened.open(read_only=True)
    try:
        yield opened
    finally:
        await opened.close()


def content(store: Path | str) -> Any:
    """Everything that a store holds, with the versions of its rows where the database has some."""
    if isinstance(store, Path):
        return store.read_bytes(), sorted(path.name for path in store.parent.iterdir() if path.suffix != ".db-shm")
    tables = "SELECT tablename FROM pg_tables WHERE schemaname=current_schema() ORDER BY tablename"
    version = "CAST(xmin AS text) || ' ' || CAST(xmax AS text) || ' ' || CAST(ctid AS text)"
    return [(name, sorted(sql(store, f"SELECT {version} FROM {name}"))) for (name,) in sql(store, tables)]


async def test_reading_changes_nothing_and_finds_everything(store: Path | str) -> None:
    run = await filled(store)
    before = content(store)
    async with reading(store) as opened:
        assert [row.id for row in await opened.runs.search(RunFilter())] == [run]
        assert [each.seq for each in await opened.runs.events(run, 0, 10)] == [1, 2]
        assert [record.question.run for record in await opened.questions.search(QuestionFilter())] == [run]
        assert [thread.id for thread in await opened.threads.search(ThreadFilter())] == ["t"]
        assert await opened.threads.get("t") is not None
        assert await opened.documents.get("space", "d") is not None
        assert await opened.keys.get("k") == b"record"
        assert [worker.id for worker in await opened.claims.workers()] == ["w"]
        assert opened.batches == 0
        assert opened.runs.backlog() == 0
    after = content(store)
    if isinstance(store, Path):
        left = Path(f"{store}-wal")  # SQLite leaves an empty one to the next process that writes
        assert left.stat().st_size == 0
        after[1].remove(left.name)
    assert before == after


async def test_every_write_is_refused(store: Path | str) -> None:
    run = await filled(store)
    before = content(store)[0]
    async with reading(store) as opened:
        writes = [
            lambda: opened.claims.enter(WorkerRow("v", "here", 1, 0, [])), lambda: opened.claims.release("w", [run]),
            lambda: opened.runs.deliver(run, "cancel", b"{}", now()), lambda: opened.threads.delete("t", now()),
            lambda: opened.keys.put("l", b""), lambda: opened.documents.link("kind", "a", "b"),
        ]  # fmt: skip
        for write in writes:
            with pytest.raises(Conflict, match="open for reading"):
                await write()
        with pytest.raises(Conflict, match="open for reading"):
            await opened.documents.write([Put("space", "e", b"")])
    assert content(store)[0] == before


async def test_what_others_write_is_seen_and_noticed(store: Path | str) -> None:
    await filled(store)
    writer = at(store)
    await writer.open()
    async with reading(store) as opened:
        noticed = asyncio.Event()
        opened.on_change = noticed.set
        await writer.keys.put("l", b"another")
        await asyncio.wait_for(noticed.wait(), 20)
        assert await opened.keys.get("l") == b"another"
    await writer.close()


async def test_where_there_is_no_store_none_is_made(store: Path | str) -> None:
    opened = at(store)
    with pytest.raises(NoStore, match="there is no store"):
        await opened.open(read_only=True)
    if isinstance(store, Path):
        assert not store.exists()
        store.touch()
        with pytest.raises(NoStore):
            await at(store).open(read_only=True)
        assert store.stat().st_size == 0
    else:
        assert sql(store, "SELECT count(*) FROM pg_tables WHERE schemaname=current_schema()") == [(0,)]


async def test_a_store_of_another_schema_is_left_as_it_is(store: Path | str) -> None:
    await filled(store)
    if isinstance(store, Path):
        sql(store, "PRAGMA user_version=2")
    else:
        sql(store, "INSERT INTO interlingua_schema (version, name) VALUES (2, 'later')")
    with pytest.raises(Conflict, match="newer version"):
        await at(store).open(read_only=True)


async def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    sql(file, "CREATE TABLE songs (id TEXT)")
    with pytest.raises(Conflict, match="another program"):
        await SQLiteStore(file).open(read_only=True)
    file.write_bytes(b"this is no database, whoever looks at it" * 100)
    with pytest.raises(CannotOpen):
        await SQLiteStore(file).open(read_only=True)


def list_read_only(folder: Path, store: Path) -> str:
    """Lists the runs of a store in a process for which its folder is read-only."""
    command = [sys.executable, "-c", LIST, str(store)]
    if os.geteuid():
        folder.chmod(0o500)
    else:  # nothing is forbidden to root but by the file system
        inner = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", inner, str(folder), *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    finally:
        folder.chmod(0o700)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "geteuid") or shutil.which("unshare") is None, reason="needs Linux")
@pytest.mark.parametrize("journal", ["gone", "left", "in use"])
async def test_a_store_in_a_read_only_folder_is_listed(tmp_path: Path, journal: str) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    file = folder / "store.db"
    run = await filled(file)
    if journal == "left":  # by one who only read
        async with reading(file):
            pass
        assert Path(f"{file}-wal").exists()
    elif journal == "gone":
        assert not Path(f"{file}-wal").exists()
    before = file.read_bytes()
    if journal == "in use":
        writer = SQLiteStore(file)
        await writer.open()
        await writer.keys.put("l", b"")
        assert await asyncio.to_thread(list_read_only, folder, file) == run
        await writer.close()
    else:
        assert await asyncio.to_thread(list_read_only, folder, file) == run
        assert file.read_bytes() == before
