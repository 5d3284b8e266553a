"""Reminders of what nobody has answered: each once, over restarts and between processes, and no run notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.errors import InvalidQuestion
from interlingua.model.events import RunFinished
from interlingua.model.filters import QuestionFilter
from interlingua.server import metrics
from interlingua.server.config.build import engine_settings
from interlingua.server.config.load import WrongConfig, read
from tests.kit.agents import asker, middle
from tests.kit.engines import QUICK, crash, engine, finish, kinds, question, served, submit, with_settings
from tests.kit.log_lines import LogLines, reading
from tests.protocols.connect.test_door import Receiver, mailer, up

SOON = with_settings(QUICK, remind_after=(0.05,))
REMINDED = "has waited for an answer"


def numbers(lines: LogLines) -> list[tuple[int, int]]:
    return [(fields["reminder"], fields["of"]) for fields in lines.said(REMINDED)]


async def test_a_question_that_waits_is_remembered_in_the_log_and_the_run_is_not_woken(store: Path) -> None:
    entered = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entered
        entered += 1
        return str((await ctx.ask(il.Confirm("Go on?"))).approved)

    with reading("interlingua.engine") as lines:
        async with served(store, agent, settings=with_settings(QUICK, remind_after=(0.1, 0.2))) as eng:
            run = await submit(eng, "agent")
            asked = await question(eng, run.id)
            before = await kinds(eng, run.id)
            await lines.until(lambda log: len(numbers(log)) == 2)
            assert numbers(lines) == [(1, 2), (2, 2)]
            (told, _) = lines.said(REMINDED)
            assert (told["question"], told["run"], told["root"], told["agent"]) == (asked.id, run.id, run.id, "agent")
            record = await eng.questions.get(asked.id)
            assert (record.reminders, record.reminded, record.remind_at) == (2, 2, None)
            assert record.reminded_at is not None
            assert (await kinds(eng, run.id), entered) == (before, 1), "a reminder is nothing to the run"
            assert eng.reminders.sent == 2
            assert all("Go on?" not in record.getMessage() for record in lines.records), "what is asked is not logged"


async def test_between_processes_each_reminder_is_told_by_one(store: Path) -> None:
    many = with_settings(QUICK, remind_after=tuple(0.05 * n for n in range(1, 9)))
    with reading("interlingua.engine") as lines:
        async with served(store, asker, settings=many) as one, served(store, settings=many) as other:
            run = await submit(one, "asker")
            asked = await question(one, run.id)
            for eng in (one, other):
                eng.reminders.hint()
            await lines.until(lambda log: numbers(log)[-1:] == [(8, 8)])
            told = [number for number, _ in numbers(lines)]
            assert told == sorted(set(told)), "none twice, and in order"
            assert one.reminders.sent + other.reminders.sent == len(told)
            assert (await one.questions.get(asked.id)).reminded == 8


async def test_what_fell_due_while_nobody_served_is_told_once_when_somebody_does(store: Path) -> None:
    with reading("interlingua.engine") as lines:
        first = engine(store, asker, settings=with_settings(QUICK, remind_after=(0.0, 0.001, 3600.0)))
        await first.start()
        run = await submit(first, "asker")
        asked = await question(first, run.id)
        await crash(first)
        assert numbers(lines) == [], "a process that does not serve reminds nobody"
        async with served(store, asker) as eng:
            await lines.until(lambda log: numbers(log))
            assert numbers(lines) == [(2, 3)], "two fell due, and one is said of both"
            record = await eng.questions.get(asked.id)
            assert record.remind_at == asked.asked_at + 3_600_000_000
        async with served(store, asker) as eng:
            assert await eng.core.store.questions.claim_reminders(asked.asked_at + 1_000_000, 10, []) == [], (
                "none again"
            )
            assert numbers(lines) == [(2, 3)]


async def test_a_reminder_that_was_claimed_before_a_crash_is_not_told_again(store: Path) -> None:
    first = engine(store, asker, settings=SOON)
    await first.start()
    asked = await question(first, (await submit(first, "asker")).id)
    due = asked.asked_at + 50_000
    (claimed,) = await first.core.store.questions.claim_reminders(due, 10, [])
    assert (claimed.record.question.id, claimed.agent, claimed.number, claimed.of) == (asked.id, "asker", 1, 1)
    await crash(first)
    with reading("interlingua.engine") as lines:
        async with served(store, asker) as eng:
            assert await eng.core.store.questions.next_reminder() is None
            assert numbers(lines) == []


async def test_nobody_is_reminded_of_what_was_answered(store: Path) -> None:
    async with engine(store, asker, settings=SOON) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        assert await eng.core.store.questions.next_reminder() == asked.asked_at + 50_000
        await eng.questions.answer(asked.id, {"approved": True})
        assert await eng.core.store.questions.next_reminder() is None
        assert await eng.core.store.questions.claim_reminders(asked.asked_at + 60_000_000, 10, []) == []
        record = await eng.questions.get(asked.id)
        assert (record.reminded, record.remind_at) == (0, None)


async def test_nobody_is_reminded_of_what_has_expired(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.ask(il.Confirm("Go on?"), deadline=1000)
        return ""

    async with engine(store, agent, settings=SOON) as eng:
        asked = await question(eng, (await submit(eng, "agent")).id)
        assert asked.deadline is not None
        assert await eng.core.store.questions.claim_reminders(asked.deadline, 10, []) == []


async def test_an_agent_may_say_itself_when_to_remind_and_that_nobody_shall_be(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        asks = [
            ctx.ask(il.Confirm("as set"), key="set"),
            ctx.ask(il.Confirm("of its own"), key="own", remind=[60, 20, 60.0]),
            ctx.ask(il.Confirm("never"), key="never", remind=()),
        ]
        await asyncio.gather(*asks)
        return ""

    async with engine(store, agent, settings=with_settings(QUICK, remind_after=(3600.0,))) as eng:
        run = await submit(eng, "agent")
        async for event in eng.runs.events(run.id):
            assert not isinstance(event.body, RunFinished)
            if len(found := await eng.questions.search(QuestionFilter(run=run.id))) == 3:
                break
        due = {r.question.prompt: (r.reminders, r.remind_at and r.remind_at - r.question.asked_at) for r in found}
        assert due == {"as set": (1, 3_600_000_000), "of its own": (2, 20_000_000), "never": (0, None)}
        await eng.runs.cancel(run.id)


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
async def test_a_reminder_at_no_time_is_refused(store: Path, wrong: float) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.ask(il.Confirm("Go on?"), remind=[wrong])
        return ""

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert run.error.code == InvalidQuestion.code
        assert "remind" in run.error.message


async def test_the_callback_of_a_run_is_told_once_more_that_it_waits(store: Path) -> None:
    async with Receiver() as receiver, up(store, mailer, engine=with_settings(QUICK, remind_after=(0.2,))) as s:
        made = (await s.http.post("/runs", json={"agent_id": "mailer", "webhook": receiver.url})).json()
        ((_, first),) = await receiver.until("interrupted")
        ((_, again),) = await receiver.until("interrupted")
        assert first["run_id"] == again["run_id"] == made["run_id"]
        assert again["updated_at"] > first["updated_at"]
        assert (await s.http.post(f"/runs/{made['run_id']}", json={"approved": True})).status_code == 200
        assert [told["status"] for _, told in await receiver.until("success")] == ["pending", "success"]


async def test_a_childs_question_reminds_at_the_callback_of_the_run_that_was_asked_for(store: Path) -> None:
    async with engine(store, asker, middle, settings=SOON) as eng:
        callback = il.model.run.Callback("http://127.0.0.1:9/callme", "test")
        run = await submit(eng, "middle", callback=callback)
        asked = await question(eng, run.id)
        await eng.core.store.questions.claim_reminders(asked.asked_at + 50_000, 10, ["test"])
        told = await eng.core.store.callbacks.search()
        assert [(row.run, row.status, row.format) for row in told] == [(run.id, "waiting", "test")] * 2


async def test_metrics_count_open_questions_by_agent_their_age_and_reminders(store: Path) -> None:
    with reading("interlingua.engine") as lines:
        async with served(store, asker, middle, settings=SOON) as eng:
            assert 'questions_open{agent="' not in await metrics.render(eng)
            for agent in ("asker", "middle"):
                await question(eng, (await submit(eng, agent)).id)
            await lines.until(lambda log: len(numbers(log)) == 2)
            text = await metrics.render(eng)
            assert 'interlingua_questions_open{agent="asker"} 2\n' in text
            assert 'interlingua_questions_oldest_age_seconds{agent="asker"} ' in text
            assert "interlingua_question_reminders_total 2\n" in text


def test_a_server_is_told_when_to_remind_and_a_time_before_the_question_is_refused() -> None:
    config = read(None, {"limits_remind_after": [3600.0, 86400.0], "limits_question_deadline": 60.0}, environ={})
    config.check()
    made = engine_settings(config)
    assert (made.remind_after, made.question_deadline) == ((3600.0, 86400.0), 60.0)
    with pytest.raises(WrongConfig, match="--remind-after"):
        read(None, {"limits_remind_after": [3600.0, -1.0]}, environ={}).check()
