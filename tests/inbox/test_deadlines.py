"""Deadlines of questions: of their own, by default, and what becomes of those whose time is over."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import AlreadyAnswered
from interlingua.model.events import QuestionWithdrawn
from interlingua.model.question_forms import detail_lines, format_time, parse_time, question_text
from interlingua.model.run import Question
from tests.kit.agents import asker, middle, top
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, question, submit, with_settings

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


@both
async def test_without_a_deadline_of_its_own_a_question_has_the_one_of_the_settings(
    store: Path, settings: il.Settings
) -> None:
    async with engine(store, asker, settings=with_settings(settings, question_deadline=0.2)) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        assert asked.deadline == asked.asked_at + 200_000
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is not None
        assert done.error.code == "question_expired"


async def test_an_agent_may_ask_without_a_deadline_where_the_settings_have_one(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None], seconds: float) -> str:
        await ctx.ask(il.Confirm("Go on?"), deadline=seconds if seconds >= 0 else math.inf)
        return ""

    async with engine(store, agent, settings=with_settings(QUICK, question_deadline=60.0)) as eng:
        asked = await question(eng, (await submit(eng, "agent", {"seconds": -1})).id)
        assert asked.deadline is None
        asked = await question(eng, (await submit(eng, "agent", {"seconds": 5})).id)
        assert asked.deadline == asked.asked_at + 5_000_000


@pytest.mark.parametrize("wrong", [-0.5, math.nan, 1e12])
async def test_a_deadline_that_is_no_time_is_refused(store: Path, wrong: float) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.ask(il.Confirm("Go on?"), deadline=wrong)
        return ""

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert (run.error.code, "deadline is" in run.error.message) == ("invalid_question", True)


@both
async def test_an_expired_question_is_withdrawn_on_every_log_that_it_shows_on(
    store: Path, settings: il.Settings
) -> None:
    async with engine(store, asker, middle, top, settings=with_settings(settings, question_deadline=0.2)) as eng:
        run = await submit(eng, "top")
        asked = await question(eng, run.id)
        await eng.runs.wait(run.id, timeout=20)
        record = await eng.questions.get(asked.id)
        assert (record.state, record.reason) == ("expired", "nobody answered in time")
        assert record.closed_at is not None
        assert asked.deadline is not None
        assert record.closed_at >= asked.deadline
        for one in record.runs:
            (told,) = await bodies(eng, one, QuestionWithdrawn)
            assert (told.question, told.reason) == (asked.id, "nobody answered in time")


async def test_an_answer_after_the_deadline_is_refused_also_where_nobody_runs_the_agent(store: Path) -> None:
    first = engine(store, asker, settings=with_settings(QUICK, question_deadline=0.1))
    await first.start()
    run = await submit(first, "asker")
    asked = await question(first, run.id)
    assert asked.deadline is not None
    await crash(first)
    other = engine(store)
    await other.start()
    with pytest.raises(AlreadyAnswered, match="expired"):
        await other.core.store.questions.answer(asked.id, {"approved": True}, "me", asked.deadline)
    assert (await other.questions.get(asked.id)).state == "expired"
    assert await other.questions.open() == []
    await other.stop()
    async with engine(store, asker) as eng:
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is not None
        assert done.error.code == "question_expired"
        assert len(await bodies(eng, run.id, QuestionWithdrawn)) == 1


def test_people_read_until_when_they_can_answer_once() -> None:
    at = 1_700_000_000_123_456
    asked = Question("q", "r", "confirm", {"message": "Go on?", "why": "it is late"}, {}, 0, "Go on?", deadline=at)
    (words,) = detail_lines(asked)
    assert words == "**why**: it is late\n\nAnswer until 2023-11-14 22:13:20 UTC."
    assert "Answer until 2023-11-14 22:13:20 UTC." in question_text(asked)
    # Through a server that has said so already, it is not said again.
    passed_on = msgspec.structs.replace(asked, payload={}, prompt=f"Go on?\n\n{words}", deadline=at + 5_000_000)
    assert detail_lines(passed_on) == []
    assert detail_lines(msgspec.structs.replace(asked, deadline=None)) == ["**why**: it is late"]
    assert detail_lines(msgspec.structs.replace(asked, payload="Go on?")) == ["Answer until 2023-11-14 22:13:20 UTC."]


@pytest.mark.parametrize("time", [0, 1, 1_700_000_000_000_000, 1_700_000_000_123_456])
def test_a_time_is_read_as_it_was_written(time: int) -> None:
    assert parse_time(format_time(time)) == time


@pytest.mark.parametrize("text", [None, 5, "", "soon", "2023-11-14", "2023-11-14T22:13:20"])
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None
