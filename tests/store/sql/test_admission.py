"""Runs that are admitted in one transaction: those that nothing can refuse are written together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlingua.engine.ids import now
from interlingua.model.errors import KeyReused, StoreError
from interlingua.model.run import RunRequest
from interlingua.store.changes import Submission
from interlingua.store.rows import RunRow
from interlingua.store.sql.store import SqlStore
from tests.kit.rows import event, row


def new(r: RunRow, **how: Any) -> Submission:
    return Submission(r, RunRequest("a", **how), "d", [event(r.id, 1, "created")], "w", now())


@pytest.fixture
def widths(made: SqlStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each statement has written."""
    dialect, noted = made.database.dialect, list[int]()
    insert = dialect.insert_runs

    def counted(conn: Any, rows: list[Any]) -> None:
        noted.append(len(rows))
        insert(conn, rows)

    monkeypatch.setattr(dialect, "insert_runs", counted)
    return noted


async def test_runs_that_are_submitted_together_are_written_together(made: SqlStore, widths: list[int]) -> None:
    await made.open()
    rows = [row(metadata=b'{"n":%d}' % at) for at in range(20)]
    submitted = await asyncio.gather(*(made.runs.submit(new(r)) for r in rows))
    assert widths == [20]
    for r, s in zip(rows, submitted, strict=True):
        assert (s.row.id, s.row.worker, s.row.epoch, s.existing) == (r.id, "w", 1, False)
        assert await made.runs.get(r.id) == s.row
        assert [e.kind for e in await made.runs.event_rows(r.id, 0, 10)] == ["created"]
        assert r.worker is None, "the caller's row is its own: a batch that fails is tried again"
    await made.close()


async def test_runs_with_a_key_are_decided_one_by_one_beside_them(made: SqlStore, widths: list[int]) -> None:
    await made.open()
    first = row()
    await made.runs.submit(new(first, key="k"))
    widths.clear()
    again, other, plain = row(), row(), [row() for _ in range(4)]
    changed = new(other, key="k")
    changed.digest = "another"
    wanted = [new(plain[0]), new(plain[1]), new(again, key="k"), changed, new(plain[2]), new(plain[3])]
    found = await asyncio.gather(*map(made.runs.submit, wanted), return_exceptions=True)
    assert widths == [2, 2]
    assert isinstance(found[3], KeyReused)
    ids = [s.row.id for s in found if not isinstance(s, BaseException)]
    assert ids == [plain[0].id, plain[1].id, first.id, plain[2].id, plain[3].id]
    await made.close()


async def test_one_that_cannot_be_written_does_not_take_those_along_that_are_written_with_it(made: SqlStore) -> None:
    await made.open()
    there = row()
    await made.runs.submit(new(there))
    before, after = row(), row()
    wanted = [new(before), new(row(id=there.id)), new(after)]
    found = await asyncio.gather(*map(made.runs.submit, wanted), return_exceptions=True)
    assert isinstance(found[1], StoreError)
    for r in (before, after):
        assert await made.runs.get(r.id) is not None
        assert len(await made.runs.event_rows(r.id, 0, 10)) == 1
    await made.close()
