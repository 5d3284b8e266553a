"""A process that uses a store as fast as it can, beside another one that does the same.

    python -m tests.store.sql.racer STORE WHAT NAME

It says that it is ready, begins when a line comes, and says what came of it, as JSON.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from interlingua.engine.ids import now
from interlingua.model.documents import Post, Tell
from interlingua.model.errors import AlreadyAnswered, AlreadyFinished, OverBudget
from interlingua.model.run import RunRequest
from interlingua.model.status import Status
from interlingua.store.changes import CommitThread, CountDelegation, DropInbox, Submission, Tally
from interlingua.store.open import open_store
from tests.kit.processes import say
from tests.kit.rows import append, event, row

MANY = 60
BUDGET = 20


async def keys(store: Any, name: str) -> Any:
    """Submit with keys that the other one uses too."""

    async def one(n: int) -> str:
        r = row(caller="me")
        request = RunRequest("a", key=f"key {n}")
        return str(
            (await store.runs.submit(Submission(r, request, "d", [event(r.id, 1, "created")], None, now()))).row.id
        )

    return await asyncio.gather(*(one(n) for n in range(MANY)))


async def answers(store: Any, name: str) -> Any:
    """Answer all questions; which of the answers were taken."""
    from interlingua.model.filters import QuestionFilter

    async def one(question: str) -> str | None:
        try:
            await store.questions.answer(question, name, name, now())
        except AlreadyAnswered:
            return None
        return question

    asked = [record.question.id for record in await store.questions.search(QuestionFilter(limit=1000))]
    return [won for won in await asyncio.gather(*(one(question) for question in asked)) if won]


async def turns(store: Any, name: str) -> Any:
    """Submit runs to one thread, each in line, and run whatever has its turn; what was refused."""
    refused = []
    for n in range(MANY // 2):
        r = row(caller=name, thread="thread", next_seq=2)
        request = RunRequest("a", thread="thread", when_busy="enqueue", create_thread=True, input={"n": n})
        await store.runs.submit(Submission(r, request, "d", [event(r.id, 1, "created")], None, now()))
        refused += await _take_turns(store, name)
    while await store.database.read(
        lambda conn: conn.execute("SELECT 1 FROM runs WHERE status<>'succeeded' LIMIT 1").fetchone()
    ):
        refused += await _take_turns(store, name)
    return refused


async def _take_turns(store: Any, name: str) -> list[str]:
    refused = []
    for mine in await store.claims.claim(name, ["a@1"], now(), 10):
        thread = await store.threads.get("thread")
        if thread.active != mine.id:
            refused.append(f"{mine.id} was claimed while {thread.active} had the thread")
        mine.status, mine.worker, expected = Status.SUCCEEDED, None, mine.next_seq
        mine.next_seq += 1
        end = CommitThread("thread", mine.id, thread.version, values={"last": mine.id}, checkpoint=f"c-{mine.id}")
        error = await append(store, mine, expected, event(mine.id, expected, "finished"), changes=[end])
        if error is not None:
            refused.append(repr(error))
    return refused


async def parks(store: Any, name: str) -> Any:
    """Own a run, and let go of it again and again, until mail says that it is enough."""
    seen: list[int] = []
    while True:
        claimed = await store.claims.claim(name, ["a@1"], now(), 1)
        for mine in claimed:
            items = await store.runs.inbox(mine.id)
            seen += [int(item.body) for item in items]
            mine.status, expected = Status.WAITING, mine.next_seq
            mine.next_seq += 1
            done = -1 in seen
            if done:
                mine.status = Status.SUCCEEDED
            mine.worker = mine.wake_at = None
            drop = [DropInbox([item.id for item in items])] if items else []
            error = await append(store, mine, expected, event(mine.id, expected), changes=drop)
            assert error is None, error
            if done:
                return seen


async def writes(store: Any, name: str) -> Any:
    """Send mail to a run: each when the one before has been taken, so that one that is not noticed is not hidden by the
    next; then without end, until the run has ended."""
    ((run,),) = await store.database.read(lambda conn: conn.execute("SELECT id FROM runs").fetchall())
    for n in range(MANY * 2):
        await store.runs.deliver(run, "message", str(n).encode(), now())
        while await store.runs.inbox(run):
            pass
    await store.runs.deliver(run, "message", b"-1", now())
    sent = 0
    while True:
        try:
            await store.runs.deliver(run, "message", b"1000", now())
            sent += 1
        except AlreadyFinished:
            return sent


async def tells(store: Any, name: str) -> Any:
    """Letters and news of them, many at once; the numbers that they got."""

    async def one(n: int) -> list[int]:
        kept = await store.documents.write(
            [Post("in", f"{name} {n}", b""), Tell("feed", "k", "", f"{name} {n}".encode())]
        )
        return list(kept.numbers)

    told = []
    for n in range(MANY):
        told += await asyncio.gather(*(one(n * 10 + lane) for lane in range(10)))
    return told


async def claims(store: Any, name: str) -> Any:
    """Claim what is due, a few at a time, until there is nothing."""
    mine: list[str] = []
    while found := await store.claims.claim(name, ["a@1"], now(), 7):
        mine += [one.id for one in found]
    return mine


async def delegates(store: Any, name: str) -> Any:
    """Count runs of one task as long as there is budget; how many that were, and their labels."""

    def admit(tally: Tally) -> int:
        if tally.started(["task"])[0] >= BUDGET:
            raise OverBudget("no more")
        return tally.last("helper") + 1

    async def one(n: int) -> list[Any]:
        wanted = CountDelegation("task", "/task/", "helper", admit, part_of="T1", run=f"{name} {n}")
        try:
            counted = await store.delegations.count(wanted)
        except OverBudget:
            return []
        return [counted.row.instance, counted.row.label]

    return [found for found in await asyncio.gather(*(one(n) for n in range(MANY))) if found]


async def main() -> None:
    store, what, name = open_store(sys.argv[1]), sys.argv[2], sys.argv[3]
    await store.open()
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    say(await globals()[what](store, name))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
