"""Whose turn it is: callers and agents share what can run, however much one of them wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from interlingua.engine.ids import now
from interlingua.model.run import RunRequest, Thread
from interlingua.model.status import Status
from interlingua.store.changes import CommitThread, Submission
from interlingua.store.rows import RunRow
from interlingua.store.sql import admission, claims
from interlingua.store.sql.dialect import Connection, Cursor, Lock
from interlingua.store.sql.store import SqlStore
from tests.kit.rows import append, event, owned, row


async def due(store: SqlStore, caller: str = "me", *, take: str | None = None, **fields: Any) -> RunRow:
    r = row(caller=caller, **fields)
    request = RunRequest(r.agent, thread=r.thread, when_busy="enqueue")
    await store.runs.submit(Submission(r, request, "d", [event(r.id, 1, "created")], take, now()))
    return r


async def served(store: SqlStore, count: int, agents: Sequence[str] = ("a@1",)) -> list[RunRow]:
    """The next runs, as a worker gets them that has one free slot at a time."""
    found: list[RunRow] = []
    for _ in range(count):
        found += await store.claims.claim("w", list(agents), now(), 1)
    return found


async def test_one_run_of_a_caller_does_not_wait_for_the_many_of_another(made: SqlStore) -> None:
    await made.open()
    for _ in range(60):
        await due(made, "greedy")
    assert [r.caller for r in await served(made, 20)] == ["greedy"] * 20
    await due(made, "modest")
    await due(made, "patient")
    assert {r.caller for r in await served(made, 4)} == {"greedy", "modest", "patient"}
    await made.close()


async def test_callers_who_want_much_get_the_same(made: SqlStore) -> None:
    await made.open()
    for caller, wanted in (("x", 30), ("y", 20), ("z", 20)):
        for _ in range(wanted):
            await due(made, caller)
    shares = Counter(r.caller for r in await served(made, 30))
    assert max(shares.values()) - min(shares.values()) <= 2
    await made.close()


async def test_who_has_much_in_line_is_not_overtaken_for_ever_by_who_comes_again_and_again(made: SqlStore) -> None:
    await made.open()
    for _ in range(40):
        await due(made, "greedy")
    others = ["b", "c", "d"]
    for caller in others:
        await due(made, caller)
    shares: Counter[str] = Counter()
    for _ in range(60):
        (run,) = await served(made, 1)
        shares[run.caller] += 1
        if run.caller in others:  # it has what it wanted, and wants the next
            await due(made, run.caller)
    assert all(12 <= shares[caller] <= 18 for caller in ("greedy", *others)), shares
    await made.close()


async def test_a_run_that_is_woken_does_not_wait_for_what_its_caller_has_wanted_since(made: SqlStore) -> None:
    await made.open()
    parked = await owned(made)
    parked.worker, parked.status = None, Status.WAITING
    await append(made, parked, 2)
    for caller in ("me", "me", "me", "me", "you", "you", "you", "you"):
        await due(made, caller)
    await made.runs.deliver(parked.id, "message", b"{}", now())
    assert parked.id in {r.id for r in await served(made, 3)}
    await made.close()


async def test_many_runs_that_are_woken_together_take_turns_with_others(made: SqlStore) -> None:
    await made.open()
    for _ in range(20):
        parked = await owned(made)
        parked.worker, parked.status = None, Status.WAITING
        await append(made, parked, 2)
        await made.runs.deliver(parked.id, "message", b"{}", now())
    modest = await due(made, "modest")
    assert modest.id in {r.id for r in await served(made, 3)}
    await made.close()


async def test_a_run_in_line_keeps_its_place_when_something_comes_for_it(made: SqlStore) -> None:
    await made.open()
    parked = await owned(made)
    parked.worker, parked.status = None, Status.WAITING
    await append(made, parked, 2)
    await made.runs.deliver(parked.id, "message", b"{}", now())
    for caller in ("x", "y", "z"):
        await due(made, caller)
    await made.runs.deliver(parked.id, "message", b"{}", now())
    assert [r.id for r in await served(made, 1)] == [parked.id]
    await made.close()


async def test_runs_whose_time_has_come_stand_in_line_like_others(made: SqlStore) -> None:
    await made.open()
    soon = now() - 1
    for _ in range(10):
        await due(made, "greedy", wake_at=soon)
    assert await made.claims.next_wake(["a@1"]) == soon
    assert [r.caller for r in await served(made, 1)] == ["greedy"]
    await due(made, "modest", wake_at=soon)
    assert "modest" in {r.caller for r in await served(made, 3)}
    assert len(await served(made, 20)) == 7
    await made.close()


async def test_the_next_run_of_a_thread_stands_in_line_like_others(made: SqlStore) -> None:
    await made.open()
    await made.threads.create(Thread("t", "idle", now(), now(), "greedy"), if_exists="raise")
    first = await due(made, "greedy", thread="t", take="w")
    second = await due(made, "greedy", thread="t")
    for _ in range(20):
        await due(made, "greedy")
    await due(made, "modest")
    first.worker, first.epoch, first.status, first.next_seq, first.wake_at = None, 1, Status.SUCCEEDED, 3, None
    end = CommitThread("t", first.id, 0)
    assert await append(made, first, 1, event(first.id, 2, "finished"), changes=[end]) is None
    order = [r.id for r in await served(made, 23)]
    assert second.id in order[3:]
    await made.close()


async def test_agents_share_the_places_of_a_worker(made: SqlStore) -> None:
    await made.open()
    for agent, wanted in (("a", 30), ("b", 2), ("c", 30)):
        for _ in range(wanted):
            await due(made, agent=agent)
    agents = ["a@1", "b@1", "c@1", "d@1"]
    assert Counter(r.agent for r in await made.claims.claim("w", agents, now(), 12)) == {"a": 4, "b": 2, "c": 6}
    assert Counter(r.agent for r in await made.claims.claim("w", ["c@1", "a@1"], now(), 1)) == {"c": 1}
    assert Counter(r.agent for r in await made.claims.claim("w", agents, now(), 10, at_most=[(["c@1"], 1)])) == {
        "a": 5,
        "c": 1,
    }
    assert (
        len(await made.claims.claim("w", ["b@1", "a@1", "c@1"], now(), 10, at_most=[(["a@1", "b@1", "c@1"], 3)])) == 3
    )
    assert await made.claims.claim("w", ["a@1"], now(), 10, at_most=[(["a@1"], 0)]) == []
    await made.close()


async def test_who_was_running_when_its_worker_went_goes_on_first(made: SqlStore) -> None:
    await made.open()
    running = await owned(made)
    for caller in ("x", "y"):
        await due(made, caller)
    assert running.worker is not None
    await made.claims.release(running.worker, [running.id])
    assert [r.id for r in await served(made, 1)] == [running.id]
    await made.close()


# -- what that costs -------------------------------------------------------------------------------------------


class Explained:
    """A connection that has every statement explained before it is executed."""

    def __init__(self, conn: Connection, plans: list[tuple[str, str]]) -> None:
        self._conn = conn
        self.dialect = conn.dialect
        self._plans = plans

    def execute(self, sql: str, args: Sequence[Any] = (), /) -> Cursor:
        if "runs" in sql:
            explain = "EXPLAIN QUERY PLAN " if not sql_is_postgres(self._conn) else "EXPLAIN "
            plan = self._conn.execute(explain + sql, args).fetchall()
            self._plans.append((sql, "\n".join(str(line[-1]) for line in plan)))
        return self._conn.execute(sql, args)

    def executemany(self, sql: str, args: Iterable[Sequence[Any]], /) -> object:
        return self._conn.executemany(sql, args)

    def lock(self, *names: Lock) -> None:
        self._conn.lock(*names)


def sql_is_postgres(conn: Connection) -> bool:
    return conn.dialect.status_indexes


async def test_nobody_reads_or_sorts_the_whole_line(made: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await made.open()
    for place in range(150):
        await due(made, f"caller {place % 7}", agent="ab"[place % 2])
        await due(made, f"caller {place % 7}", wake_at=now() + 10**9)
    await made.database.write(lambda conn: conn.execute("ANALYZE runs"))
    plans: list[tuple[str, str]] = []
    read = made.database.read

    async def explained(fn: Callable[[Connection], Any]) -> Any:
        return await read(lambda conn: fn(Explained(conn, plans)))

    monkeypatch.setattr(made.database, "read", explained)
    assert await made.claims.next_wake(["a@1", "b@1"]) == 0
    monkeypatch.setattr(made.database, "read", read)
    claimed = await made.database.write(
        lambda conn: claims.claim(Explained(conn, plans), "w", ["a@1", "b@1", "c@1"], now(), 5, ())
    )
    assert len(claimed) == 5
    r = row(caller="caller 3")
    one = Submission(r, RunRequest("a"), "d", [event(r.id, 1, "created")], None, now())
    await made.database.write(lambda conn: admission.submit(Explained(conn, plans), one))
    indexes = " ".join(plan for _, plan in plans)
    assert all(index in indexes for index in ("runs_line", "runs_stand", "runs_wake"))
    for sql, plan in plans:
        for bad in ("SCAN runs", "TEMP B-TREE", "Seq Scan on runs", "Sort"):
            assert bad not in plan, f"{sql}\n{plan}"
    await made.close()
