"""What a store promises when several processes use it at once: nothing is decided twice, lost, or out of order."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from interlingua.engine.ids import new_id, now
from interlingua.model.filters import QuestionFilter, RunFilter
from interlingua.model.run import Question, RunRequest
from interlingua.store.changes import PutQuestion, Submission
from interlingua.store.sql.store import SqlStore
from tests.kit import processes
from tests.kit.rows import append, event, owned, row

from .racer import BUDGET, MANY


async def race(store: Path | str, *what: str) -> list[Any]:
    """Let processes do these at the same time."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(60):
        racers = []
        for number, one in enumerate(what):
            process = await processes.start_warm("store.sql.racer", store, one, f"racer{number}")
            racers.append(await stack.enter_async_context(processes.ended(process)))
        assert await asyncio.gather(*map(processes.said, racers)) == ["ready"] * len(racers)
        for racer in racers:
            processes.tell(racer)
        results = await asyncio.gather(*map(processes.said, racers))
        assert {await racer.wait() for racer in racers} == {0}
        return results


async def test_a_key_means_one_run_whoever_uses_it_first(made: SqlStore, store: Path | str) -> None:
    await made.open()
    one, other = await race(store, "keys", "keys")
    assert one == other
    assert len(set(one)) == MANY
    assert len(await made.runs.search(RunFilter(limit=1000))) == MANY
    await made.close()


async def test_the_first_answer_wins_and_each_change_has_a_number_of_its_own(made: SqlStore, store: Path | str) -> None:
    await made.open()
    asked = []
    for _ in range(MANY):
        r = await owned(made)
        question = Question(new_id(), r.id, "confirm", {}, {}, now())
        asked.append(question.id)
        r.next_seq = 3
        assert await append(made, r, 2, event(r.id, 2), changes=[PutQuestion(question, f"/{r.id}/")]) is None
    won = await race(store, "answers", "answers")
    assert sorted(won[0] + won[1]) == sorted(asked)
    records = await made.questions.search(QuestionFilter(state="answered", limit=1000))
    assert {r.question.id: r.answer and r.answer.value for r in records} == {
        question: f"racer{n}" for n in range(2) for question in won[n]
    }
    assert sorted(r.change for r in records) == list(range(MANY + 1, 2 * MANY + 1))
    for r in records:
        assert len(await made.runs.inbox(r.question.run)) == 1
    await made.close()


async def test_runs_on_one_thread_take_turns_and_none_overwrites_another(made: SqlStore, store: Path | str) -> None:
    await made.open()
    assert await race(store, "turns", "turns") == [[], []]
    thread = await made.threads.get("thread")
    assert thread is not None
    assert (thread.version, thread.active) == (MANY // 2 * 2, None)
    history = await made.threads.history("thread", before=None, limit=1000)
    assert [c.version for c in history] == list(range(thread.version, 0, -1))
    await made.close()


async def test_mail_that_comes_while_a_run_is_parked_is_never_left_lying_and_none_is_kept_of_an_ended_run(
    made: SqlStore, store: Path | str
) -> None:
    await made.open()
    r = row(wake_at=0, next_seq=2)
    await made.runs.submit(Submission(r, RunRequest("a"), "d", [event(r.id, 1, "created")], None, now()))
    read, _ = await race(store, "parks", "writes")
    assert [n for n in read if n < 1000] == [*range(MANY * 2), -1]
    assert await made.runs.inbox(r.id) == []
    await made.close()


async def test_a_feed_is_seen_in_order_and_without_a_gap_while_two_processes_write(
    made: SqlStore, store: Path | str
) -> None:
    await made.open()
    seen: list[str] = []
    over = asyncio.Event()

    async def follow() -> None:
        while not over.is_set() or len(seen) < await made.documents.feed_head("feed"):
            for told in await made.documents.feed("feed", len(seen), 100):
                seen.append(told.body.decode())
                assert told.seq == len(seen)

    following = asyncio.create_task(follow())
    numbers = await race(store, "tells", "tells")
    over.set()
    await following
    assert len(seen) == len(set(seen)) == MANY * 20
    assert sorted(seq for _, seq in numbers[0] + numbers[1]) == list(range(1, MANY * 20 + 1))
    assert sorted(number for number, _ in numbers[0] + numbers[1]) == list(range(1, MANY * 20 + 1))
    await made.close()


async def test_no_run_is_claimed_twice_and_none_is_left(made: SqlStore, store: Path | str) -> None:
    await made.open()
    runs = [row(wake_at=0) for _ in range(300)]
    for r in runs:
        assert await append(made, r, 1, event(r.id, 1, "created"), insert=True) is None
    one, other = await race(store, "claims", "claims")
    assert sorted(one + other) == sorted(r.id for r in runs)
    await made.close()


async def test_a_budget_is_never_exceeded_and_no_label_is_given_twice(made: SqlStore, store: Path | str) -> None:
    await made.open()
    counted = [one for result in await race(store, "delegates", "delegates") for one in result]
    assert sorted(instance for instance, _ in counted) == list(range(1, BUDGET + 1))
    assert len({label for _, label in counted}) == BUDGET
    await made.close()


@pytest.mark.parametrize("what", ["keys", "tells"])
async def test_four_processes_are_no_worse_than_two(made: SqlStore, store: Path | str, what: str) -> None:
    await made.open()
    results = await race(store, what, what, what, what)
    if what == "keys":
        assert len({tuple(result) for result in results}) == 1
    else:
        assert sorted(seq for result in results for _, seq in result) == list(range(1, MANY * 40 + 1))
    await made.close()
