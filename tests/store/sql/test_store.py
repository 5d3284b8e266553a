"""The promises of a store, below the engine. Every back end runs these."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlingua.engine.ids import new_id, now
from interlingua.model import json_values
from interlingua.model.card import AgentCard
from interlingua.model.errors import AlreadyAnswered, AlreadyFinished, Conflict, RunNotFound, StoreError
from interlingua.model.filters import QuestionFilter
from interlingua.model.run import Answer, Question, RunRequest
from interlingua.model.status import Status
from interlingua.store.changes import DropInbox, Fenced, PutInbox, PutQuestion, Sealed, Submission
from interlingua.store.postgres.store import PostgresStore
from interlingua.store.rows import Found, StoredCard, WorkerRow
from interlingua.store.sql.dialect import Connection
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite.migration import migrate
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.rows import append, at, event, owned, row


async def test_a_page_of_a_log_ends_at_its_bytes_and_holds_at_least_one_event(made: SqlStore) -> None:
    await made.open()
    r = await owned(made)
    large = [event(r.id, seq, body=b'"%s"' % (b"x" * 998)) for seq in range(2, 6)]
    r.next_seq = 6
    assert await append(made, r, 2, *large) is None
    for most, expected in ((1, [2]), (1000, [2]), (1001, [2, 3]), (3000, [2, 3, 4]), (9000, [2, 3, 4, 5])):
        assert [e.seq for e in await made.runs.event_rows(r.id, 1, 10, most)] == expected
    assert [e.seq for e in await made.runs.event_rows(r.id, 1, 2, 9000)] == [2, 3]
    await made.close()


async def test_a_page_of_a_log_costs_the_same_however_much_comes_after_it(sqlite: SQLiteStore) -> None:
    """SQLite reads all the bytes of a row that it passes."""
    await sqlite.open()
    steps, plain = 0, sqlite.database.with_connection

    def count() -> None:
        nonlocal steps
        steps += 1

    def counting(fn: Callable[[Any], Any]) -> Any:
        def read(conn: Any) -> Any:
            conn.set_progress_handler(count, 1)
            return fn(conn)

        return plain(read)

    sqlite.database.with_connection = counting  # type: ignore[method-assign]
    costs = []
    for more in (2, 200):
        r = await owned(sqlite)
        r.next_seq = 2 + more
        assert await append(sqlite, r, 2, *(event(r.id, seq) for seq in range(2, 2 + more))) is None
        steps = 0
        assert len(await sqlite.runs.event_rows(r.id, 0, 1000, 1)) == 1
        costs.append(steps)
    assert costs[1] < 2 * costs[0]
    await sqlite.close()


async def test_what_is_appended_is_there_and_in_order(made: SqlStore) -> None:
    await made.open()
    r = await owned(made)
    r.next_seq = 4
    assert await append(made, r, 2, event(r.id, 2), event(r.id, 3)) is None
    assert [e.seq for e in await made.runs.event_rows(r.id, 0, 10)] == [1, 2, 3]
    assert [e.seq for e in await made.runs.event_rows(r.id, 1, 1)] == [2]
    found = await made.runs.get(r.id)
    assert found is not None
    assert found.next_seq == 4
    await made.close()


@pytest.mark.parametrize("wrong", ["epoch", "seq"])
async def test_an_owner_from_before_cannot_write_and_disturbs_nobody_in_the_same_transaction(
    made: SqlStore, wrong: str
) -> None:
    await made.open()
    good, bad = await owned(made), await owned(made)
    good.next_seq = bad.next_seq = 3
    if wrong == "epoch":
        bad.epoch = 0
    results = await asyncio.gather(
        append(made, good, 2, event(good.id, 2)), append(made, bad, 2 if wrong == "epoch" else 7, event(bad.id, 2))
    )
    assert results[0] is None
    assert isinstance(results[1], Fenced)
    assert len(await made.runs.event_rows(good.id, 0, 10)) == 2
    assert len(await made.runs.event_rows(bad.id, 0, 10)) == 1
    await made.close()


async def test_one_refused_call_does_not_undo_its_neighbours(made: SqlStore) -> None:
    await made.open()
    r = await owned(made)

    def broken(conn: Connection) -> None:
        conn.execute("INSERT INTO nowhere VALUES (1)")

    results = await asyncio.gather(
        made.documents.link("k", "a", "1"), made.database.write(broken),
        made.runs.deliver("nothing", "cancel", b"{}", now()),
        made.runs.deliver(r.id, "message", b"{}", now()), return_exceptions=True,
    )  # fmt: skip
    assert results[0] == "1"
    assert isinstance(results[1], StoreError)
    assert isinstance(results[2], RunNotFound)
    assert isinstance(results[3], tuple)
    assert await made.documents.linked("k", "a") == "1"
    first, refused, last = await asyncio.gather(
        made.database.write(lambda _: 1),
        made.database.write(broken),
        made.database.write(lambda _: 3),
        return_exceptions=True,
    )
    assert (first, last) == (1, 3)
    assert isinstance(refused, StoreError)
    await made.close()


async def test_only_output_need_not_wait_for_the_disk_and_everything_else_does(sqlite: SQLiteStore) -> None:
    await sqlite.open()
    r = await owned(sqlite)
    level = []
    plain_write = sqlite.database.writer._write

    def spy(conn: sqlite3.Connection, batch: list[Sealed]) -> None:
        level.append(conn.execute("PRAGMA synchronous").fetchone()[0])
        plain_write(conn, batch)

    sqlite.database.writer._write = spy  # type: ignore[method-assign]
    full, normal = 2, 1
    for seq, (kind, expected) in enumerate(
        [("delta", normal), ("recorded", full), ("delta", normal), ("finished", full)], start=2
    ):
        r.next_seq = seq + 1
        assert await append(sqlite, r, seq, event(r.id, seq, kind)) is None
        assert level[-1] == expected, kind
    r.next_seq += 1
    assert await append(sqlite, r, r.next_seq - 1, event(r.id, r.next_seq - 1), changes=[DropInbox([1])]) is None
    assert level[-1] == full
    await sqlite.documents.link("k", "a", "1")
    assert level[-1] == full
    await sqlite.close()


async def test_a_parked_run_with_something_in_its_inbox_is_due_at_once(made: SqlStore) -> None:
    await made.open()
    r, s = await owned(made), await owned(made)
    await made.runs.deliver(r.id, "message", b"{}", now())
    for run in (r, s):
        run.worker, run.wake_at = None, None
        assert await append(made, run, 2) is None
    assert [c.id for c in await made.claims.claim("w2", ["a@1"], now(), 10)] == [r.id]
    await made.close()


async def test_news_wakes_a_run_that_nobody_owns_and_not_one_in_a_queue(made: SqlStore) -> None:
    await made.open()
    parked = await owned(made)
    parked.worker = None
    await append(made, parked, 2)
    assert await made.claims.claim("w", ["a@1"], now(), 10) == []
    _, owner = await made.runs.deliver(parked.id, "message", b"{}", now())
    assert owner is None
    (claimed,) = await made.claims.claim("w2", ["a@1"], now(), 10)
    assert (claimed.id, claimed.worker, claimed.epoch) == (parked.id, "w2", 2)
    assert await made.claims.claim("w3", ["a@1"], now(), 10) == []
    await made.close()


async def test_a_worker_claims_only_what_it_has_code_for_and_only_what_is_due(made: SqlStore) -> None:
    await made.open()
    later = now() + 3_600_000_000
    for agent, wake_at in (("a", 0), ("b", 0), ("a", later)):
        r = row(agent=agent, wake_at=wake_at)
        await made.runs.submit(Submission(r, RunRequest(agent), "d", [event(r.id, 1, "created")], None, now()))
    assert [c.agent for c in await made.claims.claim("w", ["a@1"], now(), 10)] == ["a"]
    assert await made.claims.next_wake(["a@1"]) == later
    assert await made.claims.next_wake(["b@1"]) == 0
    assert await made.claims.next_wake(["c@1"]) is None
    await made.close()


async def test_what_there_is_of_a_run_comes_with_its_claim_where_it_is_little(made: SqlStore) -> None:
    await made.open()
    runs = []
    for events in (1, 3, 20, 1):
        r = row(next_seq=events + 1)
        log = [event(r.id, seq, "thought") for seq in range(1, events + 1)]
        await made.runs.submit(Submission(r, RunRequest("a"), "d", log, None, now()))
        runs.append(r.id)
    quiet, longer, longest, told = runs
    await made.runs.deliver(told, "message", b"{}", now())
    found = dict[str, Found]()
    assert {c.id for c in await made.claims.claim("w", ["a@1"], now(), 10, found=found)} == set(runs)
    assert {run: ([event.seq for event in one.events], one.news) for run, one in found.items()} == {
        quiet: ([1], False), longer: ([1, 2, 3], False), told: ([1], True),
    }  # fmt: skip
    assert found[longer].events == await made.runs.events(longer, 0, 10)
    assert longest not in found
    await made.close()


async def test_of_the_suspects_one_is_claimed_at_a_time(made: SqlStore) -> None:
    await made.open()
    for crashes in (0, 2, 2, 2):
        r = row(crashes=crashes)
        await made.runs.submit(Submission(r, RunRequest("a"), "d", [event(r.id, 1, "created")], None, now()))
    assert [c.crashes for c in await made.claims.claim("w", ["a@1"], now(), 10)] == [2, 0]
    assert await made.claims.claim("w", ["a@1"], now(), 10) == []
    assert await made.claims.claim("w", ["a@1", "b@1"], now(), 10) == []
    assert [c.crashes for c in await made.claims.claim("w2", ["a@1", "b@1"], now(), 10)] == [2], "each worker has one"
    (suspect,) = await made.claims.owned("w2")
    await made.claims.release("w2", [suspect])
    assert [c.id for c in await made.claims.claim("w2", ["a@1"], now(), 1)] == [suspect]
    await made.close()


async def test_the_runs_of_a_dead_worker_are_handed_back_and_those_of_a_live_one_are_not(
    made: SqlStore, store: Path | str
) -> None:
    await made.open()
    await made.claims.enter(WorkerRow("alive", "here", os.getpid(), now(), []))
    await made.claims.enter(WorkerRow("dead", "here", os.getpid(), now(), []))
    mine, lost = row(worker="alive", next_seq=2), row(worker="dead", next_seq=2, status=Status.RUNNING)
    waiting = row(worker="dead", next_seq=2, status=Status.WAITING)
    for r in (mine, lost, waiting):
        assert await append(made, r, 1, event(r.id, 1, "created"), insert=True) is None
    if isinstance(made, SQLiteStore):
        os.close(made.liveness.locks._held.pop("dead"))  # as its death would
    else:  # it gave no sign for longer than its lease
        assert isinstance(made, PostgresStore)
        made.liveness.leases.release("dead")
        await made.database.write(lambda conn: conn.execute("UPDATE workers SET lease_until=now() WHERE id='dead'"))
    other = at(store if isinstance(store, Path) else f"{store}&lease=0.001")
    await other.open()
    assert await other.claims.bury() == ["dead"]
    assert await other.claims.bury() == []
    after = {r.id: await other.runs.get(r.id) for r in (mine, lost, waiting)}
    assert after[mine.id].worker == "alive"  # type: ignore[union-attr]
    assert (after[lost.id].worker, after[lost.id].wake_at, after[lost.id].crashes) == (None, 0, 1)  # type: ignore[union-attr]
    assert after[waiting.id].crashes == 0  # type: ignore[union-attr]
    await other.close()
    await made.close()


async def test_an_answer_is_taken_once(made: SqlStore) -> None:
    await made.open()
    r = await owned(made)
    q = Question(new_id(), r.id, "confirm", {}, {}, now())
    r.next_seq = 3
    assert await append(made, r, 2, event(r.id, 2, "asked"), changes=[PutQuestion(q, f"/{r.id}/")]) is None
    assert [found.question.id for found in await made.questions.search(QuestionFilter())] == [q.id]
    await made.questions.answer(q.id, {"ok": 1}, "me", now())
    with pytest.raises(AlreadyAnswered):
        await made.questions.answer(q.id, {"ok": 2}, "you", now())
    assert not await made.questions.close(q.id, "expired", now())
    record = await made.questions.get(q.id)
    assert record is not None
    assert (record.question, record.state, record.answer) == (q, "answered", Answer({"ok": 1}, "me"))
    assert len(await made.runs.inbox(r.id)) == 1
    await made.close()


async def test_nothing_can_be_put_into_a_finished_run(made: SqlStore) -> None:
    await made.open()
    r = await owned(made)
    r.status, r.next_seq, r.worker = Status.SUCCEEDED, 3, None
    assert await append(made, r, 2, event(r.id, 2, "finished")) is None
    with pytest.raises(AlreadyFinished):
        await made.runs.deliver(r.id, "message", b"{}", now())
    assert await made.claims.claim_one("w", r.id) is None
    await made.close()


async def test_news_for_a_parent_is_written_with_the_childs_end(made: SqlStore) -> None:
    await made.open()
    parent, child = await owned(made), await owned(made)
    child.next_seq = 3
    news = PutInbox(parent.id, "child_ended", json_values.encode({"run": child.id}))
    assert await append(made, child, 2, event(child.id, 2, "finished"), changes=[news]) is None
    assert await made.claims.owned_with_news("w") == [parent.id]
    assert [item.kind for item in await made.runs.inbox(parent.id)] == ["child_ended"]
    await made.close()


async def test_a_foreign_id_keeps_its_first_meaning(made: SqlStore) -> None:
    await made.open()
    assert await made.documents.link("task", "t1", "run-1") == "run-1"
    assert await made.documents.link("task", "t1", "run-2") == "run-1"
    assert await made.documents.link("session", "t1", "run-3") == "run-3"
    await made.documents.unlink("task", "t1")
    assert await made.documents.linked("task", "t1") is None
    await made.close()


async def test_cards_are_known_to_every_process(made: SqlStore, store: Path | str) -> None:
    await made.open()
    await made.cards.put(
        [
            StoredCard("shop file:a.py", AgentCard("a", "1")),
            StoredCard("shop file:a.py", AgentCard("a", "2", description="new")),
            StoredCard("shop file:b.py", AgentCard("a", "2", description="other")),
            StoredCard("shop mount:a#a", AgentCard("a", "2", description="far away")),
        ]
    )
    other = at(store)
    await other.open()
    found = await other.cards.get("a", None)
    assert found is not None
    assert (found.card.description, found.queue) == ("new", "shop file:a.py a@2")
    found = await other.cards.get("a", "2", "shop file:b.py")
    assert found is not None
    assert found.card.description == "other"
    assert await other.cards.get("a", "3") is None
    assert await other.cards.get("a", "1", "shop file:b.py") is None
    await other.close()
    await made.close()


async def test_a_write_in_one_process_is_noticed_by_another(made: SqlStore, store: Path | str) -> None:
    noticed = asyncio.Event()
    made.on_change = noticed.set
    await made.open()
    other = at(store)
    await other.open()
    await made.documents.link("mine", "x", "y")
    noticed.clear()
    await other.documents.link("k", "a", "1")
    async with asyncio.timeout(10):
        await noticed.wait()
    await other.close()
    await made.close()


async def test_a_file_from_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate(path)
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA user_version=999")
    conn.close()
    with pytest.raises(Conflict, match="newer version"):
        migrate(path)


async def test_many_openings_at_once_make_one_schema(store: Path | str) -> None:
    stores = [at(store) for _ in range(8)]
    await asyncio.gather(*(s.open() for s in stores))
    await asyncio.gather(*(s.close() for s in stores))


async def test_a_store_that_is_closed_refuses_further_work(made: SqlStore) -> None:
    await made.open()
    await made.close()
    with pytest.raises(StoreError):
        await made.documents.link("a", "b", "c")


async def test_batches_gather_while_one_is_being_written(made: SqlStore) -> None:
    await made.open()
    before = made.batches
    await asyncio.gather(*(made.documents.link("k", str(n), "x") for n in range(500)))
    assert made.batches - before <= 3
    await made.close()
