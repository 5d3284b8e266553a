"""Overseen agents: nothing of what they do is seen before it is approved, whatever stands in between."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.handler.mounted_run import MountedRun, step_place
from interlingua.model import json_values
from interlingua.model.card import AgentCard
from interlingua.model.content import Message, TextPart
from interlingua.model.errors import Denied, InvalidAnswer, Rejected, RunNotFound
from interlingua.model.events import ArtifactAdded, MessageSent, OutputDelta, QuestionAsked
from interlingua.model.filters import RunFilter, ThreadFilter
from interlingua.model.team.authority import Limits
from interlingua.model.team.oversight import Proposal, ReviewVerdict
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, log, question, submit
from tests.kit.overseers import SECRET, Judge, analyst, approve, judge, staff
from tests.kit.teams import authority_of, first_of, member, of_agent, passes_on, shout, team, tree

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


async def visible(eng: il.Engine) -> bytes:
    """Everything that anybody outside can read: rows, logs, questions and threads."""
    said: list[Any] = []
    for run in await eng.runs.search(RunFilter(limit=500)):
        said.append(await eng.runs.get(run.id))
        said.extend(event.body for event in await log(eng, run.id))
    said.append(await eng.questions.open())
    for thread in await eng.threads.search(ThreadFilter(limit=100)):
        said.append(thread)
        said.append(await eng.threads.messages(thread.id))
    return json_values.encode(said)


# -- approval -----------------------------------------------------------------------------------------------


@both
async def test_an_approved_result_is_handed_over_with_all_that_belongs_to_it(
    store: Path, settings: il.Settings
) -> None:
    seen: list[Proposal] = []
    async with engine(store, settings=settings) as eng:
        staff(eng, judge(approve, seen))
        run = await finish(eng, "crew", {"text": "analyst sales"})
        assert run.output == {"text": f"sales: {SECRET}"}, run.error
        assert seen[-1].agent == "analyst"
        assert seen[-1].result.output == run.output
        assert seen[-1].result_hash == seen[-1].result.hash
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        assert (await eng.runs.get(shown.id)).output == run.output
        assert [body.artifact.name for body in await bodies(eng, shown.id, ArtifactAdded)] == ["report"]
        assert len(await bodies(eng, shown.id, MessageSent)) == len(await bodies(eng, shown.id, OutputDelta)) == 1
        kinds = {event.kind for event in await log(eng, shown.id)}
        assert not kinds & {"thought", "tool_call"}  # what nobody judged


async def test_nothing_is_seen_until_the_verdict(store: Path) -> None:
    judging, go_on = asyncio.Event(), asyncio.Event()

    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        assert SECRET in text
        judging.set()
        await go_on.wait()
        assert ctx.review is not None
        return approve(ctx.review)

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, qa)
        run = await submit(eng, "crew", {"text": "analyst sales"})
        await asyncio.wait_for(judging.wait(), 20)
        await first_of(eng, run.id, "crew/qa/review")  # it may have begun before it was written down
        assert SECRET.encode() not in await visible(eng)
        sealed = [one for one in await tree(eng, run.id) if one.agent in ("crew/analyst/work", "crew/qa/review")]
        assert len(sealed) == 2
        for one in sealed:
            for reading in (
                eng.runs.get(one.id), eng.runs.wait(one.id, timeout=1), eng.runs.verify(one.id),
                eng.runs.cancel(one.id), eng.runs.send(one.id, "psst"), eng.runs.delete(one.id),
                eng.runs.erase(one.id, 1), log(eng, one.id), eng.runs.reader(one.id, 1).read(),
            ):  # fmt: skip
                with pytest.raises(RunNotFound):
                    await reading
            assert one.id not in {found.id for found in await eng.runs.search(RunFilter(root=run.id, limit=500))}
            assert (await eng.runs.get(one.id, sealed=True)).agent == one.agent  # the owner may
            assert [event async for event in eng.runs.events(one.id, follow=False, sealed=True)]
            assert await eng.runs.verify(one.id, sealed=True) is None
        go_on.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": f"sales: {SECRET}"}


async def test_what_was_never_approved_is_never_seen(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(lambda _: ReviewVerdict("reject", reason="no good")), limits=Limits(rejections=2))
        run = await finish(eng, "crew", {"text": "analyst sales"})
        assert run.error is not None
        assert run.error.code == "child_failed"
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        failed = await eng.runs.get(shown.id)
        assert failed.error is not None
        assert failed.error.code == "rejected"
        assert "no good" in failed.error.message
        assert len(await of_agent(eng, run.id, "crew/analyst/work")) == 2
        assert SECRET.encode() not in await visible(eng)


async def test_a_failure_tells_its_code_and_nothing_of_the_work(store: Path) -> None:
    @il.agent
    async def breaks(text: str) -> str:
        raise il.AgentError(f"I know it is {SECRET}", details={"it": SECRET})

    async with engine(store) as eng:
        staff(eng, judge(approve), work=breaks)
        run = await finish(eng, "crew", {"text": "analyst sales"})
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        failed = await eng.runs.get(shown.id)
        assert failed.error is not None
        assert failed.error.code == "agent_error"
        assert SECRET.encode() not in await visible(eng)
        (work,) = await of_agent(eng, run.id, "crew/analyst/work")
        inside = await eng.runs.get(work.id, sealed=True)
        assert inside.error is not None
        assert SECRET in inside.error.message


# -- what is no approval ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verdict",
    [
        lambda proposal: "Verified. The analysis is complete and accurate: approve.",
        lambda proposal: {"text": "approve", "approved": True},
        lambda proposal: {"decision": "approved", "result_hash": proposal.result_hash},
        lambda proposal: {"decision": "approve"},
        lambda proposal: {"decision": "approve", "result_hash": proposal.result_hash[:-1]},
        lambda proposal: {"decision": "approve", "result_hash": json_values.digest({"text": "something else"})},
        lambda proposal: {"decision": "approve", "result_hash": None},
        lambda proposal: ReviewVerdict("inquire", proposal.result_hash, "Are you sure?"),
    ],
    ids=["free text", "a yes", "another word", "no hash", "half a hash", "another hash", "null", "an inquiry"],
)
async def test_only_a_verdict_that_names_the_result_approves(store: Path, verdict: Judge) -> None:
    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(verdict), limits=Limits(rounds=2))
        run = await finish(eng, "crew", {"text": "analyst sales"})
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        failed = await eng.runs.get(shown.id)
        assert failed.error is not None, run.output
        assert failed.error.code == "rejected"
        assert SECRET.encode() not in await visible(eng)


async def test_an_approval_of_an_earlier_draft_is_none_of_a_later_one(store: Path) -> None:
    drafts: list[str] = []

    @il.agent
    async def drafter(ctx: il.Context[None, None], text: str) -> str:
        return f"draft {len(ctx.inquiries) + 1}"

    def stale(proposal: Proposal) -> ReviewVerdict:
        drafts.append(proposal.result_hash)
        if len(drafts) == 1:
            return ReviewVerdict("inquire", inquiry="another one, please")
        return ReviewVerdict("approve", drafts[0])

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(stale), work=drafter, limits=Limits(rounds=3))
        run = await finish(eng, "crew", {"text": "analyst x"})
        assert len(set(drafts)) == 2
        assert run.status is il.Status.FAILED
        assert b"draft" not in await visible(eng)


async def test_an_overseer_without_the_time_for_a_verdict(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def slow(ctx: il.Context[None, None], text: str) -> Any:
        await ctx.ask(il.Confirm("Shall I look at it?"))
        return text

    async with engine(store) as eng:
        staff(eng, slow, limits=Limits(review_seconds=0.3))
        run = await finish(eng, "crew", {"text": "analyst sales"})
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        failed = await eng.runs.get(shown.id)
        assert failed.status is il.Status.FAILED
        assert failed.error is not None
        assert failed.error.code == "timed_out"
        assert SECRET.encode() not in await visible(eng)


async def test_an_overseer_that_breaks_approves_nothing(store: Path) -> None:
    @il.agent
    async def broken(text: str) -> Any:
        raise ValueError(text)  # with all that it was shown

    async with engine(store) as eng:
        staff(eng, broken)
        run = await finish(eng, "crew", {"text": "analyst sales"})
        assert run.status is il.Status.FAILED
        assert SECRET.encode() not in await visible(eng)


# -- rounds -------------------------------------------------------------------------------------------------


@both
async def test_inquiries_go_back_to_the_agent_until_it_is_approved(store: Path, settings: il.Settings) -> None:
    told: list[list[str]] = []

    @il.agent
    async def thorough(ctx: il.Context[None, None], text: str) -> str:
        told.append([one.text for one in ctx.inquiries])
        return f"{text}, {len(ctx.inquiries)} checks"

    def wants_two(proposal: Proposal) -> ReviewVerdict:
        asked = len(proposal.earlier)
        return approve(proposal) if asked == 2 else ReviewVerdict("inquire", inquiry=f"check {asked + 1}?")

    async with engine(store, settings=settings) as eng:
        staff(eng, judge(wants_two), work=thorough)
        run = await finish(eng, "crew", {"text": "analyst sales"})
        assert run.output == {"text": "sales, 2 checks"}, run.error
        assert told[-1] == ["check 1?", "check 2?"]
        assert b"check 1?" not in await visible(eng)


async def test_a_rejected_result_is_worked_on_again_with_the_reason(store: Path) -> None:
    @il.agent
    async def stubborn(ctx: il.Context[None, None], text: str) -> str:
        return f"{text} {[(one.decision, one.text) for one in ctx.inquiries]}"

    def once(proposal: Proposal) -> ReviewVerdict:
        return approve(proposal) if proposal.earlier else ReviewVerdict("reject", reason="too short")

    async with engine(store) as eng:
        staff(eng, judge(once), work=stubborn)
        run = await finish(eng, "crew", {"text": "analyst x"})
        assert run.output == {"text": "x [('reject', 'too short')]"}, run.error


# -- proposing by hand --------------------------------------------------------------------------------------


async def test_delegating_to_the_overseer_is_the_proposal_and_is_judged_once(store: Path) -> None:
    seen: list[Proposal] = []

    @il.agent
    async def proposes(ctx: il.Context[None, None], text: str) -> str:
        async def answer(verdict: ReviewVerdict) -> str:
            return f"{verdict.inquiry} Yes, it is."

        verdict = await ctx.delegate(
            "qa", "analysis complete; please verify", attachments=["the report"], output=f"{text}!", on_inquiry=answer
        )
        assert verdict["decision"] == "approve"
        return f"{text}!"

    def asks_once(proposal: Proposal) -> ReviewVerdict:
        return approve(proposal) if proposal.earlier else ReviewVerdict("inquire", inquiry="Is it complete?")

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(asks_once, seen), work=proposes)
        run = await finish(eng, "crew", {"text": "analyst x"})
        assert run.output == {"text": "x!"}, run.error
        assert [one.summary for one in seen] == ["analysis complete; please verify"] * 2
        assert seen[1].earlier[0].reply == "Is it complete? Yes, it is."
        assert seen[0].result_hash == seen[1].result_hash
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        (artifact,) = await bodies(eng, shown.id, ArtifactAdded)
        assert artifact.artifact.parts == [TextPart("the report")]


@pytest.mark.parametrize("change", ["output", "artifact", "message"])
async def test_a_result_that_was_changed_after_approval_is_judged_again(store: Path, change: str) -> None:
    seen: list[Proposal] = []

    @il.agent
    async def cheats(ctx: il.Context[None, None], text: str) -> str:
        verdict = await ctx.delegate("qa", "look", output="harmless")
        assert verdict["decision"] == "approve"
        if change == "artifact":
            await ctx.artifact(SECRET, name="more")
        if change == "message":
            await ctx.message(SECRET)
        return SECRET if change == "output" else "harmless"

    def only_the_first(proposal: Proposal) -> ReviewVerdict:
        return approve(proposal) if len(seen) == 1 else ReviewVerdict("reject")

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(only_the_first, seen), work=cheats, limits=Limits(rejections=1))
        run = await finish(eng, "crew", {"text": "analyst x"})
        assert run.status is il.Status.FAILED
        assert len(seen) == 2
        assert SECRET.encode() not in await visible(eng)


async def test_an_agent_cannot_show_its_overseer_something_else_than_what_is_approved(store: Path) -> None:
    seen: list[Proposal] = []

    @il.agent
    async def swaps(ctx: il.Context[None, None], text: str) -> dict[str, Any]:
        output = {"text": SECRET}

        async def swap() -> None:
            output["text"] = "harmless"

        await asyncio.gather(ctx.delegate("qa", "look", output=output), swap())
        output["text"] = SECRET
        return output

    def harmless(proposal: Proposal) -> ReviewVerdict:
        shown = json_values.encode(msgspec.to_builtins(proposal.result))
        return ReviewVerdict("reject") if SECRET.encode() in shown else approve(proposal)

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", "qa", overseer="qa", limits=Limits(rejections=2)), member("qa")),
            {"lead": swaps, "qa": judge(harmless, seen)},
        )
        run = await finish(eng, "crew", {"text": "x"})
        assert run.error is not None, run.output
        assert run.error.code == "rejected"
        assert all(one.result.hash == one.result_hash for one in seen)
        assert SECRET.encode() not in await visible(eng)


async def test_an_agent_that_goes_on_asking_a_stern_overseer_is_stopped(store: Path) -> None:
    @il.agent
    async def insists(ctx: il.Context[None, None], text: str) -> str:
        while True:
            await ctx.delegate("qa", SECRET)

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(lambda _: ReviewVerdict("reject")), work=insists, limits=Limits(rejections=3))
        run = await finish(eng, "crew", {"text": "analyst x"})
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        failed = await eng.runs.get(shown.id)
        assert failed.error is not None
        assert failed.error.code == "rejected"
        assert SECRET.encode() not in await visible(eng)


async def test_patience_that_has_ended_is_not_tried_again(store: Path) -> None:
    seen: list[Proposal] = []

    @il.agent
    async def deaf(ctx: il.Context[None, None], text: str) -> str:
        for _ in range(5):
            with contextlib.suppress(Rejected):
                await ctx.delegate("qa", "please")
        return "please"

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(lambda _: ReviewVerdict("reject"), seen), work=deaf, limits=Limits(rejections=2))
        run = await finish(eng, "crew", {"text": "analyst x"})
        (shown,) = await of_agent(eng, run.id, "crew/analyst")
        failed = await eng.runs.get(shown.id)
        assert failed.error is not None
        assert failed.error.code == "rejected"
        assert len(seen) == 2


# -- the user as overseer -----------------------------------------------------------------------------------


@both
async def test_the_user_oversees_by_answering_a_question(store: Path, settings: il.Settings) -> None:
    alice, bob = il.Caller("alice"), il.Caller("bob")

    @il.agent
    async def drafter(ctx: il.Context[None, None], text: str) -> str:
        return f"{text} {len(ctx.inquiries)}"

    async with engine(store, settings=settings) as eng:
        eng.teams.add_team(
            team(member("lead", "analyst"), member("analyst", overseer="user")),
            {"lead": passes_on, "analyst": drafter},
        )
        run = await submit(eng, "crew", {"text": "analyst draft"}, caller=alice)
        first = await question(eng, run.id)
        assert first.type == "review"
        assert first.payload["result"]["output"] == {"text": "draft 0"}
        yes = {"decision": "approve", "result_hash": first.payload["result_hash"]}
        with pytest.raises(Denied):
            await eng.questions.answer(first.id, yes, by=bob)
        for wrong in ("approve", {"decision": "approve"}, {**yes, "result_hash": "0" * 64}, {"text": "looks good"}):
            with pytest.raises(InvalidAnswer):
                await eng.questions.answer(first.id, wrong, by=alice)
        assert [one.id for one in await eng.questions.open(caller="alice")] == [first.id]
        assert await eng.questions.open(caller="bob") == []
        await eng.questions.answer(first.id, {**yes, "decision": "inquire", "inquiry": "more?"}, by=alice)
        async with asyncio.timeout(20):
            while (second := await question(eng, run.id)).id == first.id:
                await eng.runs.next_hint(run.id)
        assert second.payload["result"]["output"] == {"text": "draft 1"}
        with pytest.raises(InvalidAnswer):  # the hash of the draft before
            await eng.questions.answer(second.id, yes, by=alice)
        await eng.questions.answer(second.id, {**yes, "result_hash": second.payload["result_hash"]}, by=alice)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "draft 1"}, done.error


async def test_a_user_who_does_not_answer_in_time_approves_nothing(store: Path) -> None:
    async with engine(store) as eng:
        eng.teams.add_team(team(member("lead", overseer="user", limits=Limits(review_seconds=0.2))), {"lead": shout})
        run = await finish(eng, "crew", {"text": "x"})
        assert run.status is il.Status.FAILED
        assert run.output is None
        assert run.error is not None
        assert run.error.code == "timed_out"


# -- threads ------------------------------------------------------------------------------------------------


@il.agent
async def counts(ctx: il.Context[dict[str, Any], None], text: str) -> str:
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return f"{SECRET} {ctx.state['count']} {len(ctx.history)} {ctx.thread_id}"


async def test_an_approved_result_leaves_its_state_and_a_rejected_one_leaves_it_as_it_was(store: Path) -> None:
    def first_two(proposal: Proposal) -> ReviewVerdict:
        assert proposal.result.state == {"count": proposal.result.state["count"]}
        return approve(proposal) if proposal.result.state["count"] < 3 else ReviewVerdict("reject")

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", overseer="qa", limits=Limits(rejections=1)), member("qa")),
            {"lead": counts, "qa": judge(first_two)},
        )
        await eng.threads.create("t")
        one = await finish(eng, "crew", {"text": "a"}, thread="t")
        assert one.output == {"text": f"{SECRET} 1 0 t"}, one.error
        two = await finish(eng, "crew", {"text": "b"}, thread="t")
        assert two.output == {"text": f"{SECRET} 2 2 t"}, two.error
        before = await eng.threads.get("t")
        assert before.values == {"count": 2}
        three = await finish(eng, "crew", {"text": "c"}, thread="t")
        assert three.error is not None
        assert three.error.code == "rejected"
        after = await eng.threads.get("t")
        assert (after.values, after.version) == (before.values, before.version)
        assert len(await eng.threads.messages("t")) == 4


async def test_the_state_of_a_proposal_is_nowhere_before_the_verdict(store: Path) -> None:
    judging, go_on = asyncio.Event(), asyncio.Event()

    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        judging.set()
        await go_on.wait()
        assert ctx.review is not None
        return approve(ctx.review)

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", overseer="qa"), member("qa")), {"lead": analyst, "qa": qa})
        run = await submit(eng, "crew", {"text": "x"}, thread="t", create_thread=True)
        await asyncio.wait_for(judging.wait(), 20)
        assert SECRET.encode() not in await visible(eng)
        go_on.set()
        await eng.runs.wait(run.id, timeout=20)
        assert (await eng.threads.get("t")).values == {"found": SECRET}


# -- nested, mounted, called through others -----------------------------------------------------------------


async def test_those_whom_an_overseen_agent_calls_are_sealed_too(store: Path) -> None:
    working, go_on = asyncio.Event(), asyncio.Event()

    @il.agent
    async def helper(text: str) -> str:
        working.set()
        await go_on.wait()
        return text

    @il.agent
    async def manager(ctx: il.Context[None, None], text: str) -> str:
        return str((await ctx.call("helper", SECRET))["text"])

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", "helper", overseer="qa"), member("helper"), member("qa")),
            {"lead": manager, "helper": helper, "qa": judge(approve)},
        )
        run = await submit(eng, "crew", {"text": "x"})
        await asyncio.wait_for(working.wait(), 20)
        assert SECRET.encode() not in await visible(eng)
        go_on.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": SECRET}
        (below,) = await of_agent(eng, run.id, "crew/helper")
        with pytest.raises(RunNotFound):  # also afterwards: only the result was approved
            await eng.runs.get(below.id)


async def test_an_overseen_agent_below_an_overseen_agent_is_judged_twice(store: Path) -> None:
    seen: list[Proposal] = []

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(
                member("lead", "middle", overseer="qa"), member("middle", "analyst", overseer="qa"),
                member("analyst", overseer="qa"), member("qa"),
            ),
            {"lead": passes_on, "middle": passes_on, "analyst": shout, "qa": judge(approve, seen)},
        )  # fmt: skip
        run = await finish(eng, "crew", {"text": "middle analyst x"})
        assert run.output == {"text": "X"}, run.error
        assert [one.agent for one in seen] == ["analyst", "middle", "lead"]


async def test_an_overseer_may_have_an_overseer(store: Path) -> None:
    seen: list[Proposal] = []

    def of_verdicts(proposal: Proposal) -> ReviewVerdict:
        assert proposal.result.output["decision"] == "approve"
        return approve(proposal)

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", overseer="qa"), member("qa", overseer="chief"), member("chief")),
            {"lead": shout, "qa": judge(approve), "chief": judge(of_verdicts, seen)},
        )
        run = await finish(eng, "crew", {"text": "x"})
        assert run.output == {"text": "X"}, run.error
        assert [one.agent for one in seen] == ["qa"]


async def test_the_gate_holds_below_an_overseen_agent(store: Path) -> None:
    caught: list[str] = []

    @il.agent
    async def sneaks(ctx: il.Context[None, None], text: str) -> str:
        for name in ("crew/analyst/work", "crew/analyst", "crew/lead", "lead", "shout", "crew"):
            with pytest.raises(Denied) as refused:
                await ctx.call(name, "x")
            caught.append(refused.value.code)
        return "nothing"

    async with engine(store, shout, settings=PATIENT) as eng:
        staff(eng, judge(approve), work=sneaks)
        run = await finish(eng, "crew", {"text": "analyst x"})
        assert run.output == {"text": "nothing"}, run.error
        assert caught == ["denied"] * 6


async def test_no_thread_carries_a_result_out_before_approval(store: Path) -> None:
    @il.agent
    async def smuggles(ctx: il.Context[None, None], text: str) -> str:
        with pytest.raises(Denied):
            await ctx.call("helper", SECRET, thread="t")
        return "nothing"

    async with engine(store, settings=PATIENT) as eng:
        await eng.threads.create("t")
        eng.teams.add_team(
            team(member("lead", "helper", overseer="qa"), member("helper"), member("qa")),
            {"lead": smuggles, "helper": counts, "qa": judge(approve)},
        )
        run = await finish(eng, "crew", {"text": "x"})
        assert run.output == {"text": "nothing"}, run.error
        assert not (await eng.threads.get("t")).values


async def test_it_holds_for_a_mounted_agent(store: Path) -> None:
    judging, go_on = asyncio.Event(), asyncio.Event()

    async def remote(input: dict[str, Any], ctx: il.Context[Any, Any]) -> dict[str, Any]:  # noqa: A002
        await ctx.message(SECRET)
        return {"text": SECRET}

    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    card = AgentCard(
        "far", input=schema, output=schema, input_text="text", output_text="text", metadata={"mounted_from": "x"}
    )
    mounted: il.Agent[..., Any] = il.Agent(card, remote, shape="async", ctx_param="ctx", retries=1)

    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        judging.set()
        await go_on.wait()
        assert ctx.review is not None
        return approve(ctx.review)

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, qa, work=mounted)
        run = await submit(eng, "crew", {"text": "analyst x"})
        await asyncio.wait_for(judging.wait(), 20)
        assert SECRET.encode() not in await visible(eng)
        assert "mounted_from" not in (await eng.agents.card("crew")).metadata
        go_on.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": SECRET}


async def test_a_question_of_an_overseen_agent_reaches_the_user(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def asks(ctx: il.Context[None, None], text: str) -> str:
        return "yes" if (await ctx.ask(il.Confirm("By region?"))).approved else "no"

    async with engine(store) as eng:
        staff(eng, judge(approve), work=asks)
        run = await submit(eng, "crew", {"text": "analyst x"})
        asked = await question(eng, run.id)
        assert [body.question.id for body in await bodies(eng, run.id, QuestionAsked)] == [asked.id]
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "yes"}


async def test_a_message_to_an_overseen_agent_reaches_it(store: Path) -> None:
    @il.agent
    async def listens(ctx: il.Context[None, None], text: str) -> str:
        return (await ctx.receive()).text

    async with engine(store) as eng:
        staff(eng, judge(approve), work=listens)
        run = await submit(eng, "crew", {"text": "analyst x"})
        shown = await first_of(eng, run.id, "crew/analyst")
        await eng.runs.send(shown, "psst")
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "psst"}


async def test_a_message_that_comes_too_late_for_one_draft_reaches_the_next(
    store: Path,
) -> None:
    @il.agent
    async def listens(ctx: il.Context[None, None], text: str) -> str:
        return (await ctx.receive()).text if ctx.inquiries else "first draft"

    def asks_once(proposal: Proposal) -> ReviewVerdict:
        return approve(proposal) if proposal.earlier else ReviewVerdict("inquire", inquiry="really?")

    judging, go_on = asyncio.Event(), asyncio.Event()

    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        judging.set()
        await go_on.wait()
        assert ctx.review is not None
        return asks_once(ctx.review)

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, qa, work=listens)
        run = await submit(eng, "crew", {"text": "analyst x"})
        await asyncio.wait_for(judging.wait(), 20)
        await eng.runs.send(await first_of(eng, run.id, "crew/analyst"), "psst")
        go_on.set()
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "psst"}, done.error


async def test_cancelling_the_task_ends_what_is_sealed(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        judging = asyncio.Event()

        @il.agent
        async def qa(ctx: il.Context[None, None], text: str) -> Any:
            judging.set()
            await asyncio.Event().wait()

        staff(eng, qa)
        run = await submit(eng, "crew", {"text": "analyst x"})
        await asyncio.wait_for(judging.wait(), 20)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        for one in await tree(eng, run.id):
            assert (await eng.runs.wait(one.id, timeout=20, sealed=True)).status.final


# -- after a crash ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["working", "judging"])
async def test_a_crash_in_the_middle_of_a_review_changes_nothing(store: Path, stage: str) -> None:
    reached, stay = asyncio.Event(), True
    worked: list[str] = []

    async def note(text: str) -> str:
        worked.append(text)
        return text

    @il.agent
    async def careful(ctx: il.Context[None, None], text: str) -> str:
        await ctx.artifact("a", name="a")
        done = await ctx.step("work", note, f"{text} {len(ctx.inquiries)}")
        if stage == "working" and stay:
            reached.set()
            await asyncio.Event().wait()
        return done

    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        assert ctx.review is not None
        if not ctx.review.earlier:
            return ReviewVerdict("inquire", inquiry="sure?")
        if stage == "judging" and stay:
            reached.set()
            await asyncio.Event().wait()
        return approve(ctx.review)

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, qa, work=careful)
        run = await submit(eng, "crew", {"text": "analyst x"})
        await asyncio.wait_for(reached.wait(), 20)
        await crash(eng)
    stay = False
    async with engine(store, settings=PATIENT) as eng:
        staff(eng, qa, work=careful)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "x 1"}, done.error
        assert worked == ["x 0", "x 1"]  # each once
        assert len(await of_agent(eng, run.id, "crew/analyst/work")) == 2
        assert len(await of_agent(eng, run.id, "crew/qa/review")) == 2
        for one in await tree(eng, run.id):
            assert await eng.runs.verify(one.id, sealed=True) is None


async def test_a_proposal_by_hand_survives_a_crash_after_approval(store: Path) -> None:
    reached, stay = asyncio.Event(), True
    seen: list[Proposal] = []

    @il.agent
    async def proposes(ctx: il.Context[None, None], text: str) -> str:
        await ctx.delegate("qa", "look", attachments=["the report"], output="fine")
        if stay:
            reached.set()
            await asyncio.Event().wait()
        return "fine"

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(approve, seen), work=proposes)
        run = await submit(eng, "crew", {"text": "analyst x"})
        await asyncio.wait_for(reached.wait(), 20)
        await crash(eng)
    stay = False
    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(approve, seen), work=proposes)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "fine"}, done.error
        assert len(seen) == 1


async def test_what_was_shown_in_a_step_counts_for_a_proposal_also_after_a_crash(store: Path) -> None:
    reached, stay = asyncio.Event(), True
    seen: list[Proposal] = []

    @il.agent
    async def proposes(ctx: il.Context[None, None], text: str) -> str:
        async def speak() -> None:
            await MountedRun(ctx).show(MessageSent(Message("agent", [TextPart("said")], "m"), step_place("s")))

        await ctx.step("speak", speak, key="s")
        await ctx.delegate("qa", "look", output="fine")
        if stay:
            reached.set()
            await asyncio.Event().wait()
        return "fine"

    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(approve, seen), work=proposes)
        run = await submit(eng, "crew", {"text": "analyst x"})
        await asyncio.wait_for(reached.wait(), 20)
        await crash(eng)
    stay = False
    async with engine(store, settings=PATIENT) as eng:
        staff(eng, judge(approve, seen), work=proposes)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "fine"}, done.error
        assert [one.result.messages[0].text for one in seen] == ["said"]


async def test_a_retried_task_has_the_authority_and_the_overseers_of_before_and_its_limits_anew(store: Path) -> None:
    seen: list[Proposal] = []
    broken = True

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        found = (await ctx.call("analyst", text))["text"]
        if broken:
            raise OSError("no route")
        return str(found)

    async with engine(store, settings=PATIENT) as eng:
        manifests = [
            member("lead", "analyst"), member("analyst", "qa", overseer="qa"), member("qa"), member("idle"),
        ]  # fmt: skip
        handlers = {"lead": lead, "analyst": analyst, "qa": judge(approve, seen), "idle": shout}
        eng.teams.add_team(team(*manifests, limits=Limits(runs=2, seconds=600)), handlers)  # all that one attempt takes
        failed = await finish(eng, "crew", {"text": "sales"})
        assert failed.status is il.Status.FAILED
        assert len(seen) == 1
        broken = False
        again = await eng.runs.retry(failed.id)
        done = await eng.runs.wait(again.id, timeout=20)
        assert done.output == {"text": f"sales: {SECRET}"}, done.error
        assert [proposal.agent for proposal in seen] == ["analyst", "analyst"], "its overseer judged it again"
        for name in ("crew/lead", "crew/analyst"):
            ((old,), (new,)) = [await of_agent(eng, run, name) for run in (failed.id, again.id)]
            before, after = [await authority_of(eng, one.id) for one in (old, new)]
            own = {"root": "", "task": "", "deadline": None}  # each task has these of its own
            assert msgspec.structs.replace(after, **own) == msgspec.structs.replace(before, **own)
            assert after.root == again.id
