"""The project of a store, the queues of its runs, and runs that change their queue."""

from __future__ import annotations

import asyncio
import copy
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlingua.engine.ids import now
from interlingua.model import hash_chain
from interlingua.model.errors import AlreadyFinished, Conflict, RunNotFound
from interlingua.model.events import RunMoved
from interlingua.model.status import Status
from interlingua.store import integrity
from interlingua.store.changes import BlockRun
from interlingua.store.rows import MoveTo, ProjectRow, RunRow, WorkerRow
from interlingua.store.sql.dialect import Connection
from interlingua.store.sql.log_side_effects import apply_change
from interlingua.store.sql.store import SqlStore
from tests.kit.rows import append, at, event, row

OLD, NEW = "shop file:old.py", "shop file:new.py"
QUEUE = f"{OLD} a@1.0"


def to(origin: str = NEW, version: str = "1.0") -> MoveTo:
    return MoveTo(origin, version, "owner", now())


async def put(store: SqlStore, **fields: Any) -> RunRow:
    """A run of the old origin in the store, with one event."""
    given: dict[str, Any] = {"agent": "a", "version": "1.0", "worker": None, "wake_at": 0, "origin": OLD}
    r = row(**{**given, "queue": QUEUE, "next_seq": 2, "epoch": 1, **fields})
    first = event(r.id, 1, "created")
    r.head = first.hash = hash_chain.link(
        hash_chain.GENESIS, r.id, 1, "created", first.time, hash_chain.body_hash(first.body or b"")
    )
    assert await append(store, copy.copy(r), 1, first, insert=True) is None
    return r


# -- the project --------------------------------------------------------------------------------------------


async def test_a_store_belongs_to_the_first_project_that_claims_it(made: SqlStore, store: Path | str) -> None:
    await made.open()
    assert await made.claims.project() is None
    assert (await made.claims.claim_project(ProjectRow("shop", "/srv/shop", 1))).id == "shop"
    assert await made.claims.claim_project(ProjectRow("bank", "/srv/bank", 2)) == ProjectRow("shop", "/srv/shop", 1)
    await made.close()
    again = at(store)
    await again.open()
    assert (await again.claims.claim_project(ProjectRow("shop", "/srv/v2/shop", 3))).id == "shop"
    assert await again.claims.project() == ProjectRow("shop", "/srv/v2/shop", 3)
    await again.close()


async def test_of_two_projects_at_once_one_gets_the_store(made: SqlStore, store: Path | str) -> None:
    other = at(store)
    await made.open()
    await other.open()
    found = await asyncio.gather(
        made.claims.claim_project(ProjectRow("shop", "", 1)), other.claims.claim_project(ProjectRow("bank", "", 1))
    )
    assert found[0].id == found[1].id
    await other.close()
    await made.close()


# -- queues -------------------------------------------------------------------------------------------------


async def test_a_worker_claims_only_runs_of_the_queues_that_it_serves(made: SqlStore) -> None:
    await made.open()
    await made.claims.enter(WorkerRow("w", "here", 1, 0, [QUEUE]))
    mine = await put(made)
    await put(made, origin=NEW, queue=f"{NEW} a@1.0")
    assert await made.claims.next_wake(["shop file:third.py a@1.0"]) is None
    assert [claimed.id for claimed in await made.claims.claim("w", [QUEUE], now(), 10)] == [mine.id]
    await made.close()


async def test_a_worker_says_which_queues_it_serves(made: SqlStore, store: Path | str) -> None:
    other = at(store)
    await made.open()
    await other.open()
    await made.claims.enter(WorkerRow("w", "here", 1, 0, [QUEUE]))
    assert [worker.queues for worker in await other.claims.workers()] == [[QUEUE]]
    await made.claims.serve("w", [QUEUE, f"{NEW} a@1.0"])
    assert [worker.queues for worker in await other.claims.workers()] == [[QUEUE, f"{NEW} a@1.0"]]
    await made.claims.leave("w")
    await other.close()
    await made.close()


async def test_unfinished_runs_are_counted_by_queue(made: SqlStore) -> None:
    await made.open()
    waiting = await put(made, status=Status.WAITING, wake_at=None)
    due = await put(made)
    await put(made, status=Status.SUCCEEDED, wake_at=None)
    await put(made, origin=NEW, queue=f"{NEW} a@2.0", version="2.0")
    assert [(one.queue, one.runs) for one in await made.claims.open_queues()] == [(f"{NEW} a@2.0", 1), (QUEUE, 2)]
    assert sorted(await made.claims.open_runs(QUEUE)) == sorted([waiting.id, due.id])
    await made.close()


# -- moving -------------------------------------------------------------------------------------------------


async def test_a_moved_run_stands_in_the_other_line_and_its_log_says_so(made: SqlStore) -> None:
    await made.open()
    await made.claims.enter(WorkerRow("w", "here", 1, 0, []))
    r = await put(made, crashes=2)
    moved = await made.claims.move(r.id, to(version="2.0"))
    assert await made.runs.get(r.id) == msgspec.structs.replace(moved, turn=1)
    assert (moved.origin, moved.queue, moved.version, moved.crashes) == (NEW, f"{NEW} a@2.0", "2.0", 0)
    assert moved.epoch == r.epoch + 1  # an owner from before cannot write any more
    last = (await made.runs.ends(r.id))[-1]
    assert last.body == RunMoved(QUEUE, f"{NEW} a@2.0", "owner")
    assert moved.head == last.hash
    assert await integrity.verify(made.runs, r.id) is None
    assert await made.claims.claim("w", [QUEUE], now(), 10) == []
    assert [claimed.id for claimed in await made.claims.claim("w", [f"{NEW} a@2.0"], now(), 10)] == [r.id]
    await made.close()


@pytest.mark.parametrize("wake_at", [None, 2**60])
async def test_a_run_that_waits_still_waits_when_it_was_moved(made: SqlStore, wake_at: int | None) -> None:
    await made.open()
    r = await put(made, status=Status.WAITING, wake_at=wake_at)
    assert (await made.claims.move(r.id, to())).wake_at == wake_at
    found = await made.runs.get(r.id)
    assert found is not None
    assert (found.wake_at, found.queue) == (wake_at, f"{NEW} a@1.0")
    await made.close()


async def test_a_run_that_hundreds_of_codes_could_not_go_on_with_is_still_blocked(made: SqlStore) -> None:
    """It waits for months, and each deploy tries it."""
    await made.open()
    r = await put(made, wake_at=None)
    codes = [secrets.token_hex(8) for _ in range(400)]

    def block(conn: Connection) -> None:
        for code in codes:
            apply_change(conn, BlockRun(r.id, code, "{}"), now())

    await made.database.write(block)
    found = await made.runs.get(r.id)
    assert found is not None
    assert found.blocked is not None
    kept = found.blocked.split()
    assert kept == codes[-len(kept) :]
    assert len(kept) == 50  # more than are alive side by side
    await made.close()


async def test_a_blocked_run_is_tried_at_once_when_it_was_moved(made: SqlStore) -> None:
    await made.open()
    r = await put(made, wake_at=None, blocked="abc", blocked_reason="{}")
    await made.claims.move(r.id, to())
    found = await made.runs.get(r.id)
    assert found is not None
    assert (found.blocked, found.blocked_reason, found.wake_at) == (None, None, 0)
    await made.close()


async def test_only_an_unfinished_run_that_no_worker_has_is_moved(made: SqlStore) -> None:
    await made.open()
    owned, ended = await put(made, worker="w", wake_at=None), await put(made, status=Status.SUCCEEDED, wake_at=None)
    with pytest.raises(Conflict, match="is executing at worker w"):
        await made.claims.move(owned.id, to())
    with pytest.raises(AlreadyFinished):
        await made.claims.move(ended.id, to())
    with pytest.raises(RunNotFound):
        await made.claims.move("nothing", to())
    for r in (owned, ended):
        found = await made.runs.get(r.id)
        assert found is not None
        assert (found.queue, found.next_seq) == (QUEUE, 2)
    await made.close()


async def test_moving_a_run_to_where_it_is_changes_nothing(made: SqlStore) -> None:
    await made.open()
    r = await put(made)
    assert (await made.claims.move(r.id, to(OLD))).next_seq == 2
    await made.close()


async def test_a_claim_and_a_move_at_once_leave_one_log(made: SqlStore, store: Path | str) -> None:
    """Whichever is first: the run is moved, or refused because it executes."""
    other = at(store)
    await made.open()
    await other.open()
    await made.claims.enter(WorkerRow("w", "here", 1, 0, [QUEUE]))
    for _ in range(20):
        r = await put(made)
        claimed, moved = await asyncio.gather(
            made.claims.claim("w", [QUEUE], now(), 1), other.claims.move(r.id, to()), return_exceptions=True
        )
        assert not isinstance(claimed, BaseException)
        assert isinstance(moved, RunRow if not claimed else Conflict), moved
        assert await integrity.verify(made.runs, r.id) is None
    await other.close()
    await made.close()
