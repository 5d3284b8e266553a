"""Asking and answering."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import AlreadyAnswered, Denied, InvalidAnswer, QuestionNotFound, TooLarge
from interlingua.model.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn
from tests.kit.engines import PATIENT, QUICK, blocked, bodies, crash, engine, finish, kinds, question, submit
from tests.kit.wait_for import wait_for

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


class Approve(il.Question[il.Verdict]):
    """May this mail be sent?"""

    subject: str
    recipients: list[str] = []


@il.agent(asks=[Approve])
async def mailer(ctx: il.Context[None, None], subject: str) -> str:
    verdict = await ctx.ask(Approve(subject, ["ada@example.org"]))
    return f"{verdict.approved} {verdict.reason}"


@both
async def test_a_question_is_asked_and_its_answer_comes_back_typed(store: Path, settings: il.Settings) -> None:
    async with engine(store, mailer, settings=settings) as eng:
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        assert asked.type == "approve"
        assert asked.payload == {"subject": "Hi", "recipients": ["ada@example.org"]}
        assert asked.prompt == "May this mail be sent?"
        await eng.questions.answer(asked.id, {"approved": True, "reason": "fine"}, by=il.Caller("ada"))
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "True fine"}
        (answered,) = await bodies(eng, run.id, QuestionAnswered)
        assert answered.answer.by == "ada"


@pytest.mark.parametrize(
    ("answer", "path"),
    [({}, ""), ({"approved": "yes"}, "/approved"), ("yes", ""), (None, ""), ({"approved": float("nan")}, "/approved")],
    ids=["empty", "wrong type", "text", "null", "nan"],
)
async def test_an_invalid_answer_is_refused_with_its_path_and_the_run_waits_on(
    store: Path, answer: Any, path: str
) -> None:
    async with engine(store, mailer) as eng:
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        with pytest.raises(InvalidAnswer) as caught:
            await eng.questions.answer(asked.id, answer)
        assert caught.value.path == path
        assert (await eng.runs.get(run.id)).status is il.Status.WAITING
        await eng.runs.cancel(run.id)


async def test_the_first_valid_answer_wins(store: Path) -> None:
    async with engine(store, mailer) as eng:
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        answers = [eng.questions.answer(asked.id, {"approved": n % 2 == 0, "reason": str(n)}) for n in range(10)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        winners = [n for n, result in enumerate(results) if result is None]
        assert len(winners) == 1
        assert all(isinstance(r, AlreadyAnswered) for n, r in enumerate(results) if n not in winners)
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": f"{winners[0] % 2 == 0} {winners[0]}"}


async def test_an_acknowledged_answer_survives_a_crash(store: Path) -> None:
    first = engine(store, mailer)
    await first.start()
    run = await submit(first, "mailer", {"subject": "Hi"})
    asked = await question(first, run.id)
    await first.questions.answer(asked.id, {"approved": True})
    await crash(first)
    async with engine(store, mailer) as eng:
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "True None"}


async def test_answering_what_is_not_there_says_so(store: Path) -> None:
    async with engine(store, mailer) as eng:
        with pytest.raises(QuestionNotFound):
            await eng.questions.answer("nothing", {})
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        await eng.runs.cancel(run.id)
        await eng.runs.wait(run.id)
        with pytest.raises(AlreadyAnswered, match="withdrawn"):
            await eng.questions.answer(asked.id, {"approved": True})


async def test_approving_one_draft_never_approves_another(store: Path) -> None:
    """Where the question is another one, the answer to the first is not used, and the run is blocked."""
    drafts = iter(["first draft", "second draft"])
    sent: list[str] = []

    @il.agent(asks=[Approve])
    async def agent(ctx: il.Context[None, None]) -> str:
        draft = next(drafts)
        await ctx.ask(Approve(draft))
        sent.append(draft)
        return draft

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        old = await question(eng, run.id)
        await eng.questions.answer(old.id, {"approved": True, "reason": "the first is fine"})
        found = (await blocked(eng, run.id)).blocked
        assert found is not None
        assert "the history has ask 'approve' (" in found.message
        assert "the code calls ask 'approve' (" in found.message
        assert not (await eng.runs.get(run.id)).status.final
    assert sent == []


async def test_a_question_that_changed_while_open_blocks_the_run_and_stays_open(store: Path) -> None:
    drafts = iter(["first draft", "second draft"])

    @il.agent(asks=[Approve])
    async def agent(ctx: il.Context[None, None]) -> str:
        draft = next(drafts)
        await ctx.ask(Approve(draft))
        return draft

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        old = await question(eng, run.id)
        await eng.runs.send(run.id, "wake up")  # enters the agent again
        await blocked(eng, run.id)
        assert [one.id for one in await eng.questions.open()] == [old.id]
        assert not await bodies(eng, run.id, QuestionWithdrawn)


@both
async def test_a_question_expires_at_its_deadline(store: Path, settings: il.Settings) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.ask(il.Confirm("Quick?"), deadline=0.2)
        except il.QuestionExpired:
            return "nobody answered"
        return "?"

    async with engine(store, agent, settings=settings) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "nobody answered"}
        assert (await eng.questions.get(asked.id)).state == "expired"
        with pytest.raises(AlreadyAnswered, match="expired"):
            await eng.questions.answer(asked.id, {"approved": True})


@il.agent(asks=[Approve])
async def resigned(ctx: il.Context[None, None], subject: str) -> str:
    try:
        await ctx.ask(Approve(subject))
    except il.QuestionExpired as error:
        first = str(error)
    verdict = await ctx.ask(Approve("again"))
    return f"{first}; {verdict.approved}"


async def _other(eng: il.Engine, run: str, question: str) -> Any:
    """The open question of a run that is not this one; None where there is none yet."""
    return next((one for one in await eng.questions.open(run=run) if one.id != question), None)


@both
async def test_a_caller_withdraws_a_question_and_the_agent_goes_on_without_an_answer(
    store: Path, settings: il.Settings
) -> None:
    async with engine(store, resigned, settings=settings) as eng:
        run = await submit(eng, "resigned", {"subject": "Hi"})
        asked = await question(eng, run.id)
        await eng.questions.withdraw(asked.id, reason="too late today", by=il.Caller("ada"))
        with pytest.raises(AlreadyAnswered, match="withdrawn already: too late today"):
            await eng.questions.answer(asked.id, {"approved": True})
        with pytest.raises(AlreadyAnswered):
            await eng.questions.withdraw(asked.id)
        again = await wait_for(lambda: _other(eng, run.id, asked.id))
        await crash(eng)
    async with engine(store, resigned, settings=settings) as eng:  # the same error comes from the history
        await eng.questions.answer(again.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "ada withdrew the question: too late today; True"}
        (withdrawn,) = await bodies(eng, run.id, QuestionWithdrawn)
        assert (withdrawn.question, withdrawn.by) == (asked.id, "ada")


@both
async def test_several_questions_may_be_open_at_once(store: Path, settings: il.Settings) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        verdicts = await asyncio.gather(*(ctx.ask(il.Confirm(f"{n}?"), key=str(n)) for n in range(3)))
        return " ".join(str(v.reason) for v in verdicts)

    async with engine(store, agent, settings=settings) as eng:
        run = await submit(eng, "agent")
        asked = []
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, QuestionAsked):
                asked.append(event.body.question)
                if len(asked) == 3:
                    break
        for q in reversed(asked):
            await eng.questions.answer(q.id, {"approved": True, "reason": q.payload["message"]})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.output == {"text": "0? 1? 2?"}
        answered = await bodies(eng, run.id, QuestionAnswered)
        assert [a.still_open for a in answered] == [True, True, False]


async def test_a_choice_is_checked_against_the_options_of_that_question(store: Path) -> None:
    @il.agent(asks=[il.Choose])
    async def agent(ctx: il.Context[None, None]) -> str:
        return (await ctx.ask(il.Choose("Which?", [il.Option("a", "A"), il.Option("b", "B")]))).choice

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        assert [o.id for o in asked.options] == ["a", "b"]
        with pytest.raises(InvalidAnswer, match="/choice"):
            await eng.questions.answer(asked.id, {"choice": "c"})
        await eng.questions.answer(asked.id, {"choice": "b"})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "b"}


async def test_a_question_that_is_not_declared_fails_the_run_with_what_to_write(store: Path) -> None:
    questions: list[Any] = [il.Confirm]

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.ask(questions[0]("Go on?"))
        return "?"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert run.error.code == "invalid_question"
        assert "asks=[Confirm]" in run.error.message


async def test_a_question_whose_payload_does_not_fit_fails_the_run(store: Path) -> None:
    @il.agent(asks=[Approve])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.ask(Approve(subject=5))  # type: ignore[arg-type]
        return "?"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert run.error.code == "invalid_question"
        assert "/subject" in run.error.message
        assert await eng.questions.open() == []


async def test_a_plain_function_may_ask(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    def agent(ctx: il.SyncContext[None, None]) -> str:
        number = ctx.step("number", lambda: 7)
        return f"{number} {ctx.ask(il.Confirm('Go on?')).approved}"

    for settings in (QUICK, PATIENT):
        async with engine(store, agent, settings=settings) as eng:
            run = await submit(eng, "agent")
            await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
            assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "7 True"}


async def test_only_the_named_answerer_may_answer_or_withdraw(store: Path) -> None:
    async with engine(store, mailer, settings=PATIENT) as eng:
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        from interlingua.model import json_values
        from interlingua.store.sql.store import SqlStore

        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        only = json_values.encode(msgspec.structs.replace(asked, answerer="overseer"))
        await sqlite.database.write(lambda c: c.execute("UPDATE questions SET question=? WHERE id=?", (only, asked.id)))
        with pytest.raises(Denied, match="overseer"):
            await eng.questions.answer(asked.id, {"approved": True}, by=il.Caller("somebody"))
        with pytest.raises(Denied, match="overseer"):
            await eng.questions.withdraw(asked.id, by=il.Caller("somebody"))
        await eng.questions.answer(asked.id, {"approved": True}, by=il.Caller("overseer"))
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED


async def test_a_huge_answer_is_refused(store: Path) -> None:
    async with engine(store, mailer, settings=msgspec.structs.replace(QUICK, max_input_bytes=1000)) as eng:
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        with pytest.raises(TooLarge):
            await eng.questions.answer(asked.id, {"approved": True, "reason": "x" * 2000})


async def test_finishing_with_an_open_question_withdraws_it(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        asking = asyncio.ensure_future(ctx.ask(il.Confirm("Go on?")))
        await asyncio.sleep(0.01)
        asking.cancel()
        return "did not wait"

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await finish(eng, "agent")
        assert run.output == {"text": "did not wait"}
        assert (await kinds(eng, run.id))[-2:] == ["withdrawn", "finished"]
        assert await eng.questions.open() == []


@pytest.mark.parametrize(("how", "why"), [("cancel", "the run was cancelled"), ("timeout", "the run timed out")])
async def test_no_answer_is_accepted_once_the_run_is_being_left(store: Path, how: str, why: str) -> None:
    """The handler takes its time to stop, and could hear no answer."""
    left, go_on = asyncio.Event(), asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        try:
            asking = asyncio.ensure_future(ctx.ask(il.Confirm("Go on?")))
            while how == "timeout" and not asking.done():  # only running counts
                await ctx.step("work", asyncio.sleep, 0.01)
            await asking
        except asyncio.CancelledError:
            left.set()
            await go_on.wait()
            raise
        return "heard"

    settings = il.Settings(park_after=60, cancel_grace=60, sweep_every=0.05, stall_warning=0)
    async with engine(store, agent, settings=settings) as eng, asyncio.timeout(60):
        run = await submit(eng, "agent", timeout=1.0 if how == "timeout" else None)
        asked = await wait_for(lambda: eng.questions.open(run=run.id))
        if how == "cancel":
            await eng.runs.cancel(run.id)
        await left.wait()
        while (await eng.questions.get(asked[0].id)).state == "open":
            await asyncio.sleep(0.01)
        with pytest.raises(AlreadyAnswered, match=f"withdrawn already: {why}"):
            await eng.questions.answer(asked[0].id, {"approved": True})
        assert not (await eng.runs.get(run.id)).status.final
        go_on.set()
        assert (await eng.runs.wait(run.id)).status.final
        assert len(await bodies(eng, run.id, QuestionWithdrawn)) == 1


async def test_a_question_of_a_run_that_fails_is_withdrawn_with_the_reason(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        asking = asyncio.ensure_future(ctx.ask(il.Confirm("Go on?")))
        await asyncio.sleep(0.01)
        asking.cancel()
        raise ValueError("the disk is full")

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await finish(eng, "agent")
        (withdrawn,) = await bodies(eng, run.id, QuestionWithdrawn)
        assert withdrawn.reason == "the run failed: ValueError: the disk is full"


async def test_an_answer_that_comes_while_the_run_is_being_parked_is_not_forgotten(store: Path) -> None:
    leaving, may_go = asyncio.Event(), asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        try:
            return str((await ctx.ask(il.Confirm("Go on?"))).approved)
        finally:
            leaving.set()
            await may_go.wait()

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await leaving.wait()
        await eng.questions.answer(asked.id, {"approved": True})
        async for event in eng.runs.events(run.id):
            if event.kind == "answered":
                may_go.set()
        assert (await eng.runs.get(run.id)).output == {"text": "True"}


async def test_an_answer_that_was_just_taken_in_is_seen_before_the_run_is_parked(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        return str((await ctx.ask(il.Confirm("Go on?"))).approved)

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        execution = eng.core.worker.execution(run.id)
        assert execution is not None
        await eng.core.store.questions.answer(asked.id, {"approved": True}, "me", 1)
        (item,) = await eng.core.store.runs.inbox(run.id)
        execution.inbox.take_in(item)
        execution.parking.park_if_idle()  # the time to park has come in this very turn of the loop
        assert execution.leaving is None
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "True"}


async def test_a_run_is_not_parked_between_its_answer_and_the_agent_that_gets_it(store: Path) -> None:
    settings = msgspec.structs.replace(PATIENT, sweep_every=60)
    async with engine(store, mailer, settings=settings) as eng:
        run = await submit(eng, "mailer", {"subject": "Hi"})
        asked = await question(eng, run.id)
        await eng.core.store.questions.answer(asked.id, {"approved": True}, "ada", 1)
        execution = eng.core.worker.execution(run.id)
        assert execution is not None
        for item in await eng.core.store.runs.inbox(run.id):
            execution.inbox.take_in(item)
        for _ in range(3):  # the timer may be due at any moment, more than once before the agent has its turn
            execution.parking.park_if_idle()
        assert execution.leaving is None
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "True None"}
