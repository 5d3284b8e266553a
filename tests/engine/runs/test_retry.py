"""Retrying: blocked runs go on at once; failed ones go on as new runs, from their last good record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.errors import Conflict
from interlingua.model.events import QuestionAsked, Recorded, RunBlocked, RunCreated
from tests.kit.engines import blocked, bodies, engine, finish, kinds, log, parked, question, submit

from .test_blocked_runs import Project, asked, deployed, project

__all__ = ["project"]


async def test_a_failed_run_goes_on_from_its_last_good_record(store: Path | str) -> None:
    calls: list[str] = []
    broken = True

    def work(name: str) -> str:
        calls.append(name)
        if name == "second" and broken:
            raise OSError("no route")
        return name

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None], text: str) -> AsyncIterator[str]:
        yield "begun "
        first = await ctx.step("first", work, "first")
        sure = await ctx.ask(il.Confirm("Go on?"))
        await ctx.thought("after the answer")
        second = await ctx.step("second", work, "second")
        yield f"{first} {second} {sure.approved} {text}"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent", {"text": "hello"}, metadata={"order": 7}, key="once")
        asked_ = await question(eng, run.id)
        await eng.questions.answer(asked_.id, {"approved": True})
        failed = await eng.runs.wait(run.id, timeout=20)
        assert failed.status is il.Status.FAILED
        before = await log(eng, run.id)
        broken = False
        again = await eng.runs.retry(run.id)
        assert again.id != run.id
        assert again.run.metadata == {"order": 7}
        done = await eng.runs.wait(again.id, timeout=20)
        assert done.output == {"text": "begun first second True hello"}
        assert calls == ["first", "second", "second"]
        assert await log(eng, run.id) == before, "the failed run stays as it ended"
        (created,) = await bodies(eng, again.id, RunCreated)
        assert created.continues is not None
        assert created.continues.run == run.id
        last = before[created.continues.seq - 1]
        assert last.kind == "answered"
        assert created.continues.head == last.hash.hex()
        assert created.request.input == {"text": "hello"}
        assert await eng.runs.verify(again.id) is None
        (copied,) = await bodies(eng, again.id, QuestionAsked)
        assert (copied.question.id, copied.question.run) == (asked_.id, again.id)
        assert (await kinds(eng, again.id)).count("thought") == 1


async def test_what_failed_beside_what_succeeded_is_tried_again(store: Path | str) -> None:
    calls: list[str] = []
    failed_first, broken = asyncio.Event(), True

    async def work(name: str) -> str:
        calls.append(name)
        if name == "bad" and broken:
            failed_first.set()
            raise OSError("no route")
        await failed_first.wait()
        return name

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> list[str]:
        both = [ctx.step(name, work, name) for name in ("bad", "good")]
        found = await asyncio.gather(*both, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [str(one) for one in found]

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.status is il.Status.FAILED
        broken = False
        again = await eng.runs.retry(run.id)
        done = await eng.runs.wait(again.id, timeout=20)
        assert done.output == {"value": ["bad", "good"]}
        assert sorted(calls) == ["bad", "bad", "good"]
        assert len(await bodies(eng, again.id, Recorded)) == 2


async def test_a_step_that_is_done_again_has_the_ids_of_before(store: Path | str) -> None:
    ids: list[str] = []
    failures = 2

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        async def pay() -> str:
            ids.append(ctx.uuid())
            if len(ids) <= failures:
                raise OSError("no answer")
            return ids[-1]

        return await ctx.step("pay", pay)

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        for _ in range(failures):
            assert run.status is il.Status.FAILED
            run = await eng.runs.wait((await eng.runs.retry(run.id)).id, timeout=20)
        assert run.output == {"text": ids[0]}
        assert len(ids) == 3
        assert len(set(ids)) == 1, "the key of a payment outside"


async def test_children_that_succeeded_are_not_called_again(store: Path | str) -> None:
    calls: list[str] = []
    broken = True

    @il.agent
    async def child(name: str) -> str:
        calls.append(name)
        if name == "bad" and broken:
            raise il.AgentError("not today")
        return name

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        return "".join([await ctx.call(child, name=name) for name in ("good", "bad")])

    async with engine(store, child, parent) as eng:
        run = await finish(eng, "parent")
        assert run.status is il.Status.FAILED
        broken = False
        again = await eng.runs.retry(run.id)
        assert (await eng.runs.wait(again.id, timeout=20)).status is il.Status.SUCCEEDED
        assert calls == ["good", "bad", "bad"]


async def test_a_failed_child_is_not_retried_by_itself(store: Path | str) -> None:
    ran: list[str] = []

    @il.agent
    async def child(ctx: il.Context[None, None]) -> str:
        ran.append(ctx.run_id)
        raise il.AgentError("not today")

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> None:
        await ctx.call(child)

    async with engine(store, child, parent) as eng:
        run = await finish(eng, "parent")
        with pytest.raises(Conflict, match=f"retry the root: interlingua runs retry {run.id}"):
            await eng.runs.retry(ran[0])


async def test_what_runs_or_has_succeeded_cannot_be_retried(store: Path | str) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None], wait: bool) -> str:
        if wait:
            await ctx.ask(il.Confirm("Go on?"))
        return "done"

    async with engine(store, agent) as eng:
        done = await finish(eng, "agent", {"wait": False})
        with pytest.raises(Conflict, match="has succeeded"):
            await eng.runs.retry(done.id)
        waits = await submit(eng, "agent", {"wait": True})
        await question(eng, waits.id)
        await parked(eng, waits.id)
        with pytest.raises(Conflict, match="is not blocked"):
            await eng.runs.retry(waits.id)


async def test_a_retry_of_a_blocked_run_enters_it_at_once_with_the_same_code(
    store: Path | str, project: Project
) -> None:
    run, asked_ = await asked(store, project)
    flag = project.folder / "fixed"
    project.write("v2", before=f"open({str(flag)!r}).close()")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
        flag.touch()  # what the code needs was missing
        again = await eng.runs.retry(run)
        assert again.id == run
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v2"}
        assert len(await bodies(eng, run, RunBlocked)) == 1
    assert project.charged == 1


async def test_a_failed_run_has_one_continuation(store: Path | str) -> None:
    entered = 0

    @il.agent
    async def agent(text: str) -> str:
        nonlocal entered
        entered += 1
        raise OSError("no route")

    async with engine(store, agent) as eng:
        failed = await finish(eng, "agent", {"text": "x"})
        async with engine(store, agent) as other:
            found = await asyncio.gather(*(one.runs.retry(failed.id) for one in (eng, other, eng, other)))
            (run,) = {one.id for one in found}
            assert (await eng.runs.wait(run, timeout=20)).status is il.Status.FAILED
            again = await other.runs.retry(failed.id)
        assert (again.id, again.run.status) == (run, il.Status.FAILED)
        assert entered == 2
        assert (await eng.runs.retry(run)).id != run, "the continuation failed too, and has one of its own"
        await eng.runs.delete(run)
        assert (await eng.runs.retry(failed.id)).id != run, "a continuation that was deleted is none"


async def test_the_run_of_a_thread_is_retried_on_it(store: Path | str) -> None:
    broken = True

    @il.agent
    async def agent(ctx: il.Context[dict[str, int], None]) -> str:
        ctx.state["runs"] = ctx.state.get("runs", 0) + 1
        if broken:
            raise OSError("no route")
        return str(ctx.state["runs"])

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent", thread="t", create_thread=True)
        assert run.status is il.Status.FAILED
        broken = False
        again = await eng.runs.retry(run.id)
        done = await eng.runs.wait(again.id, timeout=20)
        assert (done.output, done.thread) == ({"text": "1"}, "t")
