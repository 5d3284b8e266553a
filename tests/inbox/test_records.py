"""A question is one record: how deep the run may be that asks it, wherever it shows, and whoever answers it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import interlingua as il
from interlingua.engine.ids import now
from interlingua.model.errors import AlreadyAnswered, InvalidAnswer
from interlingua.model.events import QuestionAnswered, QuestionAsked
from interlingua.model.filters import QuestionFilter
from tests.kit.agents import asker, middle, top
from tests.kit.engines import bodies, engine, finish, question, submit

ADA, BOB = il.Caller("ada"), il.Caller("bob")


async def test_a_grandchilds_question_is_one_record_that_shows_on_every_ancestor(store: Path) -> None:
    async with engine(store, asker, middle, top) as eng:
        run = await submit(eng, "top")
        asked = await question(eng, run.id)
        (record,) = await eng.questions.search(QuestionFilter())
        first, second, third = record.runs
        assert (first, record.question.id, record.question.run, record.state) == (run.id, asked.id, third, "open")
        for one in (first, second, third):
            (shown,) = await bodies(eng, one, QuestionAsked)
            assert shown.question.id == asked.id
            (found,) = await eng.questions.search(QuestionFilter(run=one))
            assert found.question.id == asked.id
        await eng.questions.answer(asked.id, {"approved": True, "reason": "fine"}, by=ADA, door="somewhere")
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "True fine"}
        for one in (first, second, third):
            (told,) = await bodies(eng, one, QuestionAnswered)
            assert (told.question, told.answer.by, told.answer.door) == (asked.id, "ada", "somewhere")


async def test_the_record_says_who_answered_when_and_through_which_door(store: Path) -> None:
    async with engine(store, asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        before = now()
        await eng.questions.answer(asked.id, {"approved": False}, by=BOB, door="connect")
        record = await eng.questions.get(asked.id)
        assert record.answer is not None
        assert (record.state, record.answer.by, record.answer.door) == ("answered", "bob", "connect")
        assert record.answer.value == {"approved": False}
        assert record.closed_at is not None
        assert before <= record.closed_at <= now()


async def test_of_two_at_once_one_wins_and_the_other_is_told_who(store: Path) -> None:
    async with engine(store, asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        results = await asyncio.gather(
            eng.questions.answer(asked.id, {"approved": True, "reason": "ada"}, by=ADA, door="editor"),
            eng.questions.answer(asked.id, {"approved": True, "reason": "bob"}, by=BOB, door="peer"),
            return_exceptions=True,
        )
        (lost,) = [one for one in results if one is not None]
        assert isinstance(lost, AlreadyAnswered)
        winner, door = ("ada", "editor") if results[0] is None else ("bob", "peer")
        assert f"by {winner} through {door}" in lost.message
        assert lost.details == {"state": "answered", "by": winner, "door": door}
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": f"True {winner}"}


async def test_an_answer_that_does_not_fit_settles_nothing_and_says_what_is_wrong(store: Path) -> None:
    async with engine(store, asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        with pytest.raises(InvalidAnswer, match="/approved"):
            await eng.questions.answer(asked.id, {"approved": "perhaps"}, by=ADA)
        assert (await eng.questions.get(asked.id)).state == "open"
        await eng.questions.answer(asked.id, {"approved": True}, by=BOB)
        assert (await eng.questions.get(asked.id)).answer == il.model.run.Answer({"approved": True}, "bob")


async def test_a_withdrawn_question_keeps_its_reason(store: Path) -> None:
    async with engine(store, asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        await eng.runs.cancel(run.id)
        await eng.runs.wait(run.id, timeout=20)
        record = await eng.questions.get(asked.id)
        assert (record.state, record.reason, record.answer) == ("withdrawn", "the run was cancelled", None)
        with pytest.raises(AlreadyAnswered, match="withdrawn already: the run was cancelled"):
            await eng.questions.answer(asked.id, {"approved": True})


async def test_a_caller_is_given_its_own_and_one_that_sees_all_is_given_all(store: Path) -> None:
    async with engine(store, asker) as eng:
        mine = await submit(eng, "asker", {"text": "mine"}, caller=ADA)
        theirs = await submit(eng, "asker", {"text": "theirs"}, caller=BOB)
        for run in (mine, theirs):
            await question(eng, run.id)

        async def prompts(where: QuestionFilter) -> list[str]:
            return [record.question.prompt for record in await eng.questions.search(where)]

        assert await prompts(QuestionFilter(caller="ada")) == ["Do mine?"]
        assert await prompts(QuestionFilter(caller="ada", anyones=True)) == ["Do mine?", "Do theirs?"]
        assert await prompts(QuestionFilter(caller="nobody")) == []
        assert await prompts(QuestionFilter(limit=1)) == ["Do mine?"]


async def test_every_change_of_any_question_can_be_followed(store: Path) -> None:
    async with engine(store, asker) as eng:
        begin = await eng.core.store.questions.last_change()
        first, second = await submit(eng, "asker"), await submit(eng, "asker")
        one, two = await question(eng, first.id), await question(eng, second.id)

        async def since(change: int) -> list[tuple[str, str]]:
            found = await eng.questions.search(QuestionFilter(state=None, after=change))
            assert [record.change for record in found] == sorted(record.change for record in found)
            return [(record.question.id, record.state) for record in found]

        assert sorted(await since(begin)) == sorted([(one.id, "open"), (two.id, "open")])
        here = await eng.core.store.questions.last_change()
        await eng.questions.answer(one.id, {"approved": True})
        await eng.runs.cancel(second.id)
        await eng.runs.wait(second.id, timeout=20)
        assert await since(here) == [(one.id, "answered"), (two.id, "withdrawn")]
        assert await since(await eng.core.store.questions.last_change()) == []


async def test_open_questions_are_counted_by_the_agent_that_asks(store: Path) -> None:
    async with engine(store, asker, middle) as eng:
        assert await eng.core.store.questions.count_open() == []
        for agent in ("asker", "middle"):
            await question(eng, (await submit(eng, agent)).id)
        ((agent, count, oldest),) = await eng.core.store.questions.count_open()
        first = (await eng.questions.open())[0]
        assert (agent, count, oldest) == ("asker", 2, first.asked_at)
        await eng.questions.answer(first.id, {"approved": True})
        ((_, count, oldest),) = await eng.core.store.questions.count_open()
        assert (count, oldest > first.asked_at) == (1, True)


async def test_a_finished_run_leaves_no_question_behind_when_it_is_deleted(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        asking = asyncio.ensure_future(ctx.ask(il.Confirm("Go on?")))
        await asyncio.sleep(0)
        asking.cancel()
        return "did not wait"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        (record,) = await eng.questions.search(QuestionFilter(state=None))
        assert record.state == "withdrawn"
        await eng.runs.delete(run.id)
        assert await eng.questions.search(QuestionFilter(state=None)) == []
