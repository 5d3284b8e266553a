"""Searches find what they are asked for, whichever index leads to it, and read no more for it where there is more."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlingua.engine.ids import new_id, now
from interlingua.model.filters import QuestionFilter, RunFilter, ThreadFilter
from interlingua.model.run import Question, RunRequest, Thread
from interlingua.model.status import Status
from interlingua.store.changes import CommitThread, PutQuestion, Submission
from interlingua.store.rows import RunRow
from interlingua.store.sql.store import SqlStore
from tests.kit.rows import append, event, row

_ROOT = Path(__file__).resolve().parents[3]


def _holds(run: RunRow, where: RunFilter) -> bool:
    return (
        where.caller in (None, run.caller)
        and where.agent in (None, run.agent)
        and (where.status is None or run.status in where.status)
        and where.tag in (None, run.tag)
        and where.thread in (None, run.thread)
        and (where.metadata is None or where.metadata.items() <= msgspec.json.decode(run.metadata).items())
    )


async def test_every_combination_of_what_is_looked_for_finds_the_newest_that_fit(made: SqlStore) -> None:
    await made.open()
    dice = random.Random(7)
    rows = [
        row(
            caller=dice.choice(["ann", "bob"]),
            agent=dice.choice(["a", "b", "c"]),
            status=dice.choice([Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.WAITING]),
            tag=dice.choice([None, "stateless"]),
            thread=dice.choice([None, "t"]),
            metadata=dice.choice([b"{}", b'{"env":"prod"}', b'{"env":"prod","n":1}']),
            wake_at=None,
        )
        for _ in range(120)
    ]
    for one in rows:
        await append(made, one, 1, event(one.id, 1), insert=True)
    rows.sort(key=lambda one: one.id, reverse=True)
    statuses = (None, [Status.FAILED], [Status.WAITING, Status.RUNNING], [Status.CANCELLED])
    metadata: tuple[dict[str, Any] | None, ...] = (None, {"env": "prod"}, {"n": 1.0}, {"n": 2})
    asked = itertools.product(
        (None, "ann", "eve"), (None, "b", "z"), statuses, (None, "stateless"), (None, "t"), metadata
    )
    for caller, agent, status, tag, thread, members in asked:
        where = RunFilter(
            caller=caller, agent=agent, status=status, tag=tag, thread=thread, metadata=members, limit=5, offset=2
        )
        expected = [one.id for one in rows if _holds(one, where)][2:7]
        assert [one.id for one in await made.runs.search(where)] == expected, where
    await made.close()


async def test_a_tree_is_found_with_its_root_newest_first(made: SqlStore) -> None:
    await made.open()
    root = row()
    children = [row(parent=root.id, path=f"/{root.id}/") for _ in range(3)]
    others = [row(), row(parent=(other := new_id()), path=f"/{other}/")]
    for one in (root, *children, *others):
        await append(made, one, 1, event(one.id, 1), insert=True)
    found = [one.id for one in await made.runs.search(RunFilter(root=root.id))]
    assert found == sorted((one.id for one in (root, *children)), reverse=True)
    assert [one.id for one in await made.runs.search(RunFilter(root=root.id, status=[Status.FAILED]))] == []
    await made.close()


async def test_threads_are_found_by_what_they_became(made: SqlStore) -> None:
    await made.open()
    many = {f"member-{n}": n for n in range(100)}
    for name, metadata, values in (
        ("plain", {}, None),
        ("few", {"env": "prod"}, {"stage": "new", "n": 1}),
        ("many", many, {**many, "stage": "new"}),
    ):
        thread = Thread(name, "idle", now(), now(), "ann", metadata=metadata, values=values)
        await made.threads.create(thread, if_exists="raise")

    async def found(**where: Any) -> list[str]:
        return [thread.id for thread in await made.threads.search(ThreadFilter(**where))]

    for caller in (None, "ann"):
        assert await found(metadata={"env": "prod"}, caller=caller) == ["few"]
        assert await found(metadata={"member-99": 99}, caller=caller) == ["many"]
        assert await found(values={"stage": "new"}, caller=caller) == ["many", "few"]
        assert await found(values={"n": 1.0}, caller=caller) == ["few"]
    assert await found(values={"stage": "new"}, caller="bob") == []

    await made.threads.patch(
        "few",
        checkpoint=new_id(),
        values_={"stage": "old"},
        metadata={"env": "test"},
        base=None,
        messages=None,
        now=now(),
    )
    assert await found(values={"stage": "new"}, caller="ann") == ["many"]
    assert await found(values={"stage": "old", "n": 1}, caller="ann") == ["few"]
    assert await found(metadata={"env": "test"}) == ["few"]
    assert await found(metadata={"env": "prod"}) == []

    run = row(thread="few", caller="ann")
    request = RunRequest("a", thread="few")
    submitted = await made.runs.submit(Submission(run, request, "", [event(run.id, 1)], "worker", now()))
    assert await found(status="busy") == ["few"]
    assert await found(status="idle", caller="ann") == ["plain", "many"]
    assert submitted.thread is not None
    ended = msgspec.structs.replace(submitted.row, status=Status.FAILED, worker=None, wake_at=None)
    end = CommitThread("few", run.id, submitted.thread.version, {"stage": "ended"}, new_id(), failed=True)
    await append(made, ended, 1, event(run.id, 2), changes=[end])
    assert await found(values={"stage": "ended"}, caller="ann") == ["few"]
    assert await found(values={"stage": "old"}) == []
    assert await found(status="error") == ["few"]
    assert await found(status="interrupted") == []
    await made.close()


async def test_somebodys_questions_are_those_of_what_they_began(made: SqlStore) -> None:
    await made.open()
    asked = []
    for caller in ("ann", "bob"):
        root = row(caller=caller)
        child = row(caller="agent:a", parent=root.id, path=f"/{root.id}/")
        await append(made, root, 1, event(root.id, 1), insert=True)
        question = Question(new_id(), child.id, "confirm", {}, {}, now())
        change = PutQuestion(question, f"/{root.id}/{child.id}/")
        await append(made, child, 1, event(child.id, 1), insert=True, changes=[change])
        asked.append(question.id)
    assert [one.question.id for one in await made.questions.search(QuestionFilter(caller="ann"))] == asked[:1]
    assert [one.question.id for one in await made.questions.search(QuestionFilter(caller="bob"))] == asked[1:]
    assert await made.questions.search(QuestionFilter(caller="agent:a")) == []
    assert [one.question.id for one in await made.questions.search(QuestionFilter())] == asked
    await made.close()


@pytest.mark.faults
def test_ten_times_the_runs_are_not_ten_times_the_pages() -> None:
    """The small sister of what `python -m bench.rows` shows with ten million."""
    command = [sys.executable, "-m", "bench.rows", "--beside", "20000", "--runs", "200000"]
    said = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "0 of " in said.stdout
