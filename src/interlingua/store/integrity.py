"""Checks a store: its counts, and the hash chains of its logs. It only reads.

A run's log is a chain of hashes whose end is in the run's row, so anything that was changed, lost or added behind the
store's back shows, down to the event.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from ..model import hash_chain
from ..model.events import KINDS, RunFinished
from .rows import EventRow, RunRow
from .sql.dialect import Connection
from .sql.store import SqlStore

_PAGE = 1000
_ORPHANS = 100  # that are named
_FINISHED = KINDS[RunFinished]

Progress = Callable[[int], None]
"""Told how many runs have been checked."""


class Logs(Protocol):
    """The reading half of a store's runs."""

    async def get(self, run: str) -> RunRow | None: ...

    async def event_rows(self, run: str, after: int, limit: int) -> list[EventRow]: ...


class Damage(msgspec.Struct, frozen=True):
    what: str
    run: str | None = None
    seq: int | None = None  # of the first event that does not fit


class Counts(msgspec.Struct, frozen=True):
    runs: dict[str, int]  # by status
    events: int  # that the rows of the runs tell of
    threads: int
    questions: int  # that are open
    tombstones: int
    inbox: int

    @property
    def all_runs(self) -> int:
        return sum(self.runs.values())


async def verify(runs: Logs, run: str) -> int | None:
    """Check the hash chain of a run's log. Returns the seq of the first event that does not fit, or None."""
    after, previous = 0, hash_chain.GENESIS
    while rows := await runs.event_rows(run, after, _PAGE):
        broken = hash_chain.first_broken(
            ((r.run, r.seq, r.kind, r.time, _body_hash(r), r.hash) for r in rows), previous, after + 1
        )
        if broken is not None:
            return broken
        after, previous = rows[-1].seq, rows[-1].hash
    row = await runs.get(run)
    if row is None or (after, previous) == (row.next_seq - 1, row.head):
        return None
    if await runs.event_rows(run, after, 1):
        return await verify(runs, run)  # it has grown meanwhile
    return after + 1  # the tail was cut off


def _body_hash(row: EventRow) -> bytes:
    return hash_chain.body_hash(row.body) if row.body is not None else row.erased or b""


async def counts(store: SqlStore) -> Counts:
    def read(conn: Connection) -> Counts:
        def number(sql: str) -> int:
            return int(conn.execute(sql).fetchone()[0])

        return Counts(
            {row[0]: int(row[1]) for row in conn.execute("SELECT status, count(*) FROM runs GROUP BY status")},
            number("SELECT COALESCE(SUM(next_seq-1), 0) FROM runs"),
            number("SELECT count(*) FROM threads"),
            number("SELECT count(*) FROM questions WHERE state='open'"),
            number("SELECT count(*) FROM tombstones"),
            number("SELECT count(*) FROM inbox"),
        )  # fmt: skip

    return await store.database.search(read)


async def check_logs(store: SqlStore, sample: int | None, progress: Progress = lambda done: None) -> list[Damage]:
    """Check the logs of all runs, or of so many: half of them the newest, half of them at random."""
    damage = list[Damage]()
    done = 0
    async for run in _every(store) if sample is None else _some(store, sample):
        if (broken := await verify(store.runs, run)) is not None:
            damage.append(Damage("its log does not follow from the event before", run, broken))
        elif (wrong := await _wrong_end(store.runs, run)) is not None:
            damage.append(wrong)
        done += 1
        progress(done)
    if sample is None:
        damage += await _orphans(store)
    return damage


async def _wrong_end(runs: Logs, run: str) -> Damage | None:
    """A run has ended when its log has, and not otherwise."""
    row = await runs.get(run)  # before its last event: one that ends meanwhile has not ended here
    if row is None or not row.status.final:
        return None
    last = await runs.event_rows(run, row.next_seq - 2, 2)
    if not last and await runs.get(run) is None:
        return None  # deleted meanwhile
    if [event.kind for event in last] == [_FINISHED]:
        return None
    return Damage(f"it is {row.status.value}, and its log does not end with that", run, row.next_seq - 1)


async def _every(store: SqlStore) -> AsyncIterator[str]:
    after = ""
    while page := await _ids(store, after, _PAGE):
        for run in page:
            yield run
        after = page[-1]


async def _ids(store: SqlStore, after: str, limit: int) -> list[str]:
    sql = "SELECT id FROM runs WHERE id>? ORDER BY id LIMIT ?"
    return [row[0] for row in await store.database.read(lambda conn: conn.execute(sql, (after, limit)).fetchall())]


async def _some(store: SqlStore, most: int) -> AsyncIterator[str]:
    sql = "SELECT id FROM runs ORDER BY id DESC LIMIT ?"
    newest = [row[0] for row in await store.database.read(lambda conn: conn.execute(sql, (most,)).fetchall())]
    if len(newest) < most:
        for run in newest:
            yield run
        return
    chosen = set(newest[: most // 2])
    for run in newest[: most // 2]:
        yield run
    first = int((await _ids(store, "", 1))[0].replace("-", ""), 16)
    last = int(newest[most // 2].replace("-", ""), 16)
    for _ in range(most - most // 2):  # ids begin with the time: any of them leads to the next run after it
        at = f"{random.randint(min(first, last), last):032x}"
        for run in await _ids(store, f"{at[:8]}-{at[8:12]}-{at[12:16]}-{at[16:20]}-{at[20:]}", 1):
            if run not in chosen:
                chosen.add(run)
                yield run


async def _orphans(store: SqlStore) -> list[Damage]:
    """Events whose run has no row."""
    sql = (
        "SELECT run FROM events WHERE seq=1 AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id=events.run) "
        "ORDER BY run LIMIT ?"
    )
    rows = await store.database.search(lambda conn: conn.execute(sql, (_ORPHANS,)).fetchall())
    # In the transaction that makes a run, its row and its first event are written together; in the one that deletes it
    # both go. What is not there a moment later was deleted in between.
    return [
        Damage("there are events of a run that is not there", run, 1)
        for (run,) in rows
        if await store.runs.get(run) is None and await store.runs.event_rows(run, 0, 1)
    ]
