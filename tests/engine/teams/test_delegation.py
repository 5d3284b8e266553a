"""Teams: who may call whom, decided where a child run comes from, and counted over the whole task."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.runs.run_handle import RunHandle
from interlingua.model import json_values
from interlingua.model.content import TextPart
from interlingua.model.errors import (
    AgentNotFound,
    ChildFailed,
    DefinitionError,
    Denied,
    InterlinguaError,
    InvalidInput,
    InvalidRequest,
    OverBudget,
)
from interlingua.model.events import ChildCalled, DelegationRefused, RunCreated, body_decoder
from interlingua.model.filters import RunFilter
from interlingua.model.run import RunRequest
from interlingua.model.team.authority import Limits, Scope, begin
from interlingua.model.team.oversight import Assignment
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, log, parked, question, submit
from tests.kit.teams import authority_of, chain, first_of, member, of_agent, passes_on, shout, team, tree

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


# -- a team is one agent ------------------------------------------------------------------------------------


@both
async def test_a_team_is_one_agent_with_the_card_of_its_entry(store: Path, settings: il.Settings) -> None:
    async with engine(store, shout, settings=settings) as eng:
        chain()(eng)
        assert [agent.card.name for agent in eng.agents] == ["shout", "crew"]
        assert len(eng.agents) == 2
        card = await eng.agents.card("crew")
        assert card.input == passes_on.card.input
        assert card.output_text == "text"
        run = await finish(eng, "crew", {"text": "middle expert hello"})
        assert run.output == {"text": "HELLO"}, run.error
        assert [one.agent for one in await tree(eng, run.id)] == ["crew", "crew/lead", "crew/middle", "crew/expert"]


@pytest.mark.parametrize("name", ["crew/lead", "crew/expert", "lead", "expert"])
async def test_a_member_is_not_there_for_anybody_outside(store: Path, name: str) -> None:
    async with engine(store) as eng:
        chain()(eng)
        run = await finish(eng, "crew", {"text": "middle expert x"})  # cards are published by now
        assert run.status is il.Status.SUCCEEDED
        with pytest.raises(AgentNotFound):
            await submit(eng, name, {"text": "x"})
        with pytest.raises(AgentNotFound):
            await eng.runs.submit(RunRequest(name, "0.1.0", {"text": "x"}))
        with pytest.raises(AgentNotFound):
            await eng.agents.card(name)
        with pytest.raises(AgentNotFound):
            await eng.instances.create(name, {})
        assert eng.agents.find(name) is None
        assert eng.agents.find(name, "0.1.0") is None
    async with engine(store) as other:  # without the team's code
        with pytest.raises(AgentNotFound):
            await submit(other, name, {"text": "x"})


async def test_nobody_brings_an_authority_along(store: Path) -> None:
    async with engine(store, shout) as eng:
        chain()(eng)
        forged = begin("crew", "expert", Limits(), now=0)
        for request in (
            RunRequest("crew/expert", "0.1.0", {"text": "x"}, authority=forged),
            RunRequest("crew", None, {"text": "expert x"}, authority=forged),
            RunRequest("shout", None, {"text": "x"}, authority=forged),
            RunRequest("shout", None, {"text": "x"}, assignment=Assignment(sealed=True)),
        ):
            with pytest.raises(Denied):
                await eng.runs.submit(request)
        assert await eng.runs.search(RunFilter(sealed=True)) == []


async def test_a_team_in_which_something_is_wrong_is_not_half_there(store: Path) -> None:
    async with engine(store, shout) as eng:
        lead = member("lead", "middle")
        for wrong, handlers, why in (
            (team(lead), {"lead": shout}, "middle"),
            (team(member("lead", overseer="lead")), {"lead": shout}, "oversee itself"),
            (team(member("lead")), {}, "no handler"),
            (team(member("lead")), {"lead": shout, "other": shout}, "other"),
            (team(member("lead"), name="a/b"), {"lead": shout}, "not a name"),
            (team(member("lead"), name="shout"), {"lead": shout}, "already"),
        ):
            with pytest.raises(DefinitionError, match=why):
                eng.teams.add_team(wrong, handlers)
        assert [agent.card.name for agent in eng.agents] == ["shout"]
        assert eng.agents.hidden() == []


async def test_a_task_that_another_process_took_in_is_begun_by_the_one_with_the_code(store: Path) -> None:
    async with engine(store) as eng:
        chain()(eng)
        await eng.core.worker.spawn(eng.agents.publish_cards())
    async with engine(store) as eng:  # knows the card, and no more
        run = await submit(eng, "crew", {"text": "middle expert x"})
    async with engine(store) as eng:
        chain()(eng)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "X"}, done.error


# -- the gate -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "agent", "stranger"),
    [
        ("expert x", "crew/lead", "expert"),
        ("shout x", "crew/lead", "shout"),
        ("crew x", "crew/lead", "crew"),
        ("lead x", "crew/lead", "lead"),
        ("nobody x", "crew/lead", "nobody"),
        (" x", "crew/lead", "delegate to :"),
        ("crew/expert x", "crew/lead", "expert"),
        ("expert#2 x", "crew/lead", "expert"),
        ("middle lead x", "crew/middle", "lead"),
        ("middle shout x", "crew/middle", "shout"),
        ("middle crew/middle/review x", "crew/middle", "middle"),
    ],
)
async def test_only_allowed_agents_are_delegated_to(store: Path, text: str, agent: str, stranger: str) -> None:
    async with engine(store, shout, settings=PATIENT) as eng:
        chain()(eng)
        run = await finish(eng, "crew", {"text": text})
        assert run.status is il.Status.FAILED
        (sender,) = await of_agent(eng, run.id, agent)
        failed = await eng.runs.get(sender.id)
        assert failed.error is not None
        assert failed.error.code == "denied"
        (refused,) = await bodies(eng, sender.id, DelegationRefused)
        assert "may not delegate to" in refused.reason
        assert stranger in refused.reason
        assert refused.reason == failed.error.message
        assert await bodies(eng, sender.id, ChildCalled) == []
        assert await eng.runs.search(RunFilter(parent=sender.id)) == []


@pytest.mark.parametrize("name", ["crew/expert", "expert", "expert#2"])
async def test_a_run_outside_of_the_team_may_not_call_a_member(store: Path, name: str) -> None:
    async with engine(store, passes_on) as eng:
        chain()(eng)
        run = await finish(eng, "passes_on", {"text": f"{name} x"})
        assert run.error is not None
        assert run.error.code == "denied"
        (refused,) = await bodies(eng, run.id, DelegationRefused)
        assert refused.agent == name
        assert refused.code == "denied"
        assert await eng.runs.search(RunFilter(parent=run.id)) == []


async def test_an_agent_elsewhere_with_the_name_of_a_member_may_be_called(store: Path) -> None:
    @il.agent(name="expert")
    async def other_expert(text: str) -> str:
        return f"{text} from elsewhere"

    async with engine(store, other_expert), engine(store, passes_on) as eng:
        chain()(eng)
        run = await finish(eng, "passes_on", {"text": "expert x"})
        assert run.output == {"text": "x from elsewhere"}, run.error


async def test_who_is_in_no_team_delegates_nothing(store: Path) -> None:
    @il.agent
    async def alone(ctx: il.Context[None, None]) -> str:
        with pytest.raises(InvalidRequest, match=r"ctx\.call"):
            await ctx.delegate("shout", "x")
        with pytest.raises(Denied):
            await ctx.delegate("expert", "x")
        return "refused"

    async with engine(store, shout, alone) as eng:
        chain()(eng)
        run = await finish(eng, "alone")
        assert run.output == {"text": "refused"}, run.error
        assert [body.agent for body in await bodies(eng, run.id, DelegationRefused)] == ["expert"]


async def test_a_team_may_be_called_like_any_agent(store: Path) -> None:
    async with engine(store, passes_on) as eng:
        chain()(eng)
        run = await finish(eng, "passes_on", {"text": "crew middle expert x"})
        assert run.output == {"text": "X"}, run.error


async def test_a_notice_tells_the_rule_and_the_reason(store: Path) -> None:
    seen: list[Any] = []

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.delegate("helper", "count the sheep", attachments=["one", TextPart("two")], reason="they are many")
        await ctx.delegate("helper", "again", rule="at night")
        return str((await ctx.call("helper", text="plain"))["text"])

    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        seen.append((text, [[getattr(p, "text", None) for p in m.parts] for m in ctx.messages]))
        return text

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", "helper"), member("helper")), {"lead": lead, "helper": helper})
        run = await finish(eng, "crew", {"text": "x"})
        assert run.output == {"text": "plain"}, run.error
        assert seen == [
            ("count the sheep", [["count the sheep", "one", "two"]]), ("again", [["again"]]), ("plain", []),
        ]  # fmt: skip
        (sender,) = await of_agent(eng, run.id, "crew/lead")
        first, second, third = [body.notice for body in await bodies(eng, sender.id, ChildCalled)]
        assert (first.recipient, first.rule, first.reason) == ("helper", "when helper knows better", "they are many")
        assert first.context_summary == json_values.digest("count the sheep")
        assert (second.rule, second.reason) == ("at night", None)
        assert (third.rule, third.context_summary) == ("when helper knows better", None)


def test_logs_from_before_notices_can_be_read() -> None:
    called = body_decoder.decode(b'{"kind":"called","key":"k","run":"r","agent":"a","input":"d"}')
    assert isinstance(called, ChildCalled)
    assert called.notice is None
    assert called.proposal is None
    refused = body_decoder.decode(b'{"kind":"refused","agent":"a","reason":"no"}')
    assert isinstance(refused, DelegationRefused)
    assert refused.code == "denied"
    created = body_decoder.decode(b'{"kind":"created","request":{"agent":"a"},"card":"c"}')
    assert isinstance(created, RunCreated)
    assert created.request.authority is None


# -- what shrinks -------------------------------------------------------------------------------------------


async def test_authority_shrinks_on_the_way_down(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        chain(limits=Limits(depth=5, runs=9))(eng)
        run = await finish(eng, "crew", {"text": "middle expert x"})
        found = [await authority_of(eng, one.id) for one in await tree(eng, run.id)]
        assert [one.depth for one in found] == [5, 4, 3, 2]
        assert [one.budget for one in found] == [9, 8, 7, 6]
        assert found[-1].path == ("orchestrator", "lead", "middle", "expert")
        assert found[-1].delegates == ()


async def test_a_scope_holds_for_everybody_below(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        try:
            await ctx.delegate("middle", "expert x", scope=Scope(delegates=()))
        except ChildFailed as error:
            return error.error.code
        return "it went through"

    async with engine(store) as eng:
        chain(lead=lead)(eng)
        run = await finish(eng, "crew", {"text": ""})
        assert run.output == {"text": "denied"}
        (sender,) = await of_agent(eng, run.id, "crew/middle")
        (refused,) = await bodies(eng, sender.id, DelegationRefused)
        assert "leaves it out" in refused.reason


async def test_depth_ends(store: Path) -> None:
    async with engine(store) as eng:
        chain(limits=Limits(depth=2))(eng)
        run = await finish(eng, "crew", {"text": "middle expert x"})
        assert run.error is not None
        assert run.error.code == "child_failed"
        (sender,) = await of_agent(eng, run.id, "crew/middle")
        (refused,) = await bodies(eng, sender.id, DelegationRefused)
        assert refused.code == "over_budget"


async def test_a_task_has_a_deadline_and_all_of_it_ends_then(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def asks(ctx: il.Context[None, None], text: str) -> str:
        await ctx.ask(il.Confirm("Well?"))
        return text

    async with engine(store) as eng:
        eng.teams.add_team(
            team(member("lead", "middle"), member("middle"), limits=Limits(seconds=0.4)),
            {"lead": passes_on, "middle": asks},
        )
        run = await finish(eng, "crew", {"text": "middle x"})
        assert run.status is il.Status.TIMED_OUT
        assert run.error is not None
        assert "time of its task" in run.error.message
        for one in await tree(eng, run.id):
            assert (await eng.runs.wait(one.id, timeout=10)).status in (il.Status.TIMED_OUT, il.Status.CANCELLED)
        assert await eng.questions.open() == []


async def test_who_hears_of_the_end_from_whom_it_called_has_run_out_of_time_too(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def asks(ctx: il.Context[None, None], text: str) -> str:
        await ctx.ask(il.Confirm("Well?"))
        return text

    async with engine(store, settings=PATIENT) as eng:
        limits = Limits(seconds=1.5)
        eng.teams.add_team(
            team(member("lead", "middle"), member("middle"), limits=limits), {"lead": passes_on, "middle": asks}
        )
        run = await eng.runs.submit(il.RunRequest("crew", input={"text": "middle x"}))
        await eng.runs.wait(run.id, settled=True, timeout=10)
        (lead,) = await of_agent(eng, run.id, "crew/lead")
        execution = eng.core.worker.execution(lead.id)
        assert execution is not None
        assert execution.entrance.last_call is not None
        execution.entrance.last_call.cancel()  # its own clock is late
        assert (await eng.runs.wait(lead.id, timeout=10)).status is il.Status.TIMED_OUT


# -- what is counted ----------------------------------------------------------------------------------------


def crowd(count: int, *, catches: bool = True, meet: asyncio.Barrier | None = None) -> il.Agent[..., Any]:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> dict[str, Any]:
        async def one(number: int) -> str:
            try:
                return str((await ctx.call("helper", f"{text} {number}", key=str(number)))["text"])
            except OverBudget as error:
                if not catches:
                    raise
                return error.code

        if meet is not None:
            await meet.wait()
        return {"all": list(await asyncio.gather(*(one(number) for number in range(count))))}

    return lead


async def test_instances_run_in_parallel_each_with_an_id_of_its_own(store: Path) -> None:
    here, full = list[str](), asyncio.Event()

    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        assert ctx.authority is not None
        here.append(ctx.authority.path[-1])
        if len(here) == 5:
            full.set()
        await full.wait()  # all five are there at once
        return text

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", "helper"), member("helper")), {"lead": crowd(5), "helper": helper})
        run = await finish(eng, "crew", {"text": "x"})
        assert run.output == {"all": [f"x {number}" for number in range(5)]}, run.error
        assert sorted(here) == ["helper", "helper#2", "helper#3", "helper#4", "helper#5"]


@both
async def test_runs_are_counted_over_the_task_and_never_one_too_many(store: Path, settings: il.Settings) -> None:
    async with engine(store, settings=settings) as eng:
        eng.teams.add_team(
            team(member("lead", "helper"), member("helper"), limits=Limits(runs=6)),
            {"lead": crowd(20), "helper": shout},
        )
        run = await finish(eng, "crew", {"text": "x"})
        assert run.output is not None, run.error
        assert sorted(run.output["all"]).count("over_budget") == 15  # the entry is one of the six
        assert len(await of_agent(eng, run.id, "crew/helper")) == 5
        (sender,) = await of_agent(eng, run.id, "crew/lead")
        assert len(await bodies(eng, sender.id, DelegationRefused)) == 15


async def test_what_one_branch_starts_counts_for_the_runs_above_both(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> dict[str, Any]:
        both = await asyncio.gather(ctx.call("middle", "a", key="a"), ctx.call("middle", "b", key="b"))
        return {"all": [code for one in both for code in one["all"]]}

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", "middle"), member("middle", "helper"), member("helper"), limits=Limits(runs=7)),
            {"lead": lead, "middle": crowd(6, meet=asyncio.Barrier(2)), "helper": shout},
        )
        run = await finish(eng, "crew", {"text": ""})
        assert run.output is not None, run.error
        assert len(await of_agent(eng, run.id, "crew/helper")) == 4  # 7, less the lead and two in the middle
        assert run.output["all"].count("over_budget") == 8


async def test_a_deleted_run_gives_no_budget_back(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.call("helper", "a")
        await ctx.receive()
        return str((await ctx.call("helper", "b"))["text"])

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", "helper"), member("helper"), limits=Limits(runs=2)), {"lead": lead, "helper": shout}
        )
        run = await submit(eng, "crew", {"text": ""})
        helper = await first_of(eng, run.id, "crew/helper")
        await eng.runs.wait(helper, timeout=20)
        await eng.runs.delete(helper)
        await eng.runs.send(run.id, "go on")  # who messages the team means its entry
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is not None
        assert done.error.code == "over_budget"


async def test_a_call_with_a_wrong_input_counts_for_nothing(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        for _ in range(3):
            with pytest.raises(InvalidInput):
                await ctx.call("helper", {"number": 1})
        return str((await ctx.call("helper", "b"))["text"])

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", "helper"), member("helper"), limits=Limits(runs=2)), {"lead": lead, "helper": shout}
        )
        run = await finish(eng, "crew", {"text": ""})
        assert run.output == {"text": "B"}, run.error


async def test_the_entry_counts_when_it_is_delegated_to_again(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(
            team(member("lead", "middle"), member("middle", "lead", "expert"), member("expert")),
            {"lead": passes_on, "middle": passes_on, "expert": shout},
        )
        run = await finish(eng, "crew", {"text": "middle lead middle expert x"})
        assert run.output == {"text": "X"}, run.error
        found = [await authority_of(eng, one.id) for one in await tree(eng, run.id)]
        assert found[-1].path == ("orchestrator", "lead", "middle", "lead#2", "middle#2", "expert")


async def test_what_is_counted_is_forgotten_with_the_task(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        chain()(eng)
        run = await finish(eng, "crew", {"text": "middle expert x"})
        ids = [one.id for one in await tree(eng, run.id)]
        assert [len(await eng.core.store.delegations.of_task(one)) for one in ids] == [3, 0, 0, 0]
        await eng.runs.delete(run.id)
        assert [len(await eng.core.store.delegations.of_task(one)) for one in ids] == [0, 0, 0, 0]


# -- after a crash ------------------------------------------------------------------------------------------


async def test_a_refusal_is_refused_again_after_a_crash_and_written_once(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        try:
            await ctx.call("stranger", "x")
        except Denied as error:
            said = error.message
        await ctx.receive()
        return said

    made = team(member("lead"))
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(made, {"lead": lead})
        run = await submit(eng, "crew", {"text": ""})
        sender = await first_of(eng, run.id, "crew/lead")
        async with asyncio.timeout(20):
            async for event in eng.runs.events(sender):
                if isinstance(event.body, DelegationRefused):
                    break
        await crash(eng)
    wider = team(member("lead", "stranger"), member("stranger"))  # would allow it now
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(wider, {"lead": lead, "stranger": shout})
        await eng.runs.send(run.id, "go on")
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output is not None, done.error
        assert "may not delegate" in done.output["text"]
        assert len(await bodies(eng, sender, DelegationRefused)) == 1


async def test_a_member_that_was_refused_its_input_is_refused_it_again_and_not_by_the_budget(store: Path) -> None:
    seen: list[str] = []

    @il.agent(asks=[il.Confirm])
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        try:
            await ctx.call("helper", {"text": 7})
        except InterlinguaError as error:
            seen.append(error.code)
        await ctx.call("helper", {"text": "x"})  # the last one that the limit allows
        await ctx.ask(il.Confirm("Go on?"))
        return "done"

    async with engine(store) as eng:
        made = team(member("lead", "helper"), member("helper"), limits=Limits(runs=2))
        eng.teams.add_team(made, {"lead": lead, "helper": shout})
        run = await submit(eng, "crew", {"text": ""})
        asked = await question(eng, run.id)
        await parked(eng, asked.run)
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "done"}, done.error
    assert len(seen) > 1
    assert set(seen) == {"invalid_input"}


@pytest.mark.parametrize("moment", ["called", "counted", "submitted"])
async def test_a_crash_in_the_middle_of_a_delegation_counts_it_once(
    store: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = asyncio.Event()

    async def die(*_: Any, **__: Any) -> Any:
        died.set()
        await asyncio.Event().wait()

    made = team(member("lead", "helper"), member("helper"), limits=Limits(runs=3))
    handlers = {"lead": crowd(1, catches=False), "helper": shout}
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(made, handlers)
        gate = eng.core.gate
        admit, submit_run = gate.admit_delegation, eng.runs.submit

        async def admit_then_die(run: str, row: Any, authority: Any, who: Any, scope: Any) -> Any:
            if who.id != "helper":
                return await admit(run, row, authority, who, scope)
            if moment == "counted":
                await admit(run, row, authority, who, scope)
            return await die()

        async def submit_then_die(request: RunRequest, **options: Any) -> RunHandle:
            submitted = await submit_run(request, **options)
            if request.agent == "crew/helper":
                await die()
            return submitted

        if moment == "submitted":
            monkeypatch.setattr(eng.runs, "submit", submit_then_die)
        else:
            monkeypatch.setattr(gate, "admit_delegation", admit_then_die)
        run = await submit(eng, "crew", {"text": "x"})
        await asyncio.wait_for(died.wait(), 20)
        await crash(eng)
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(made, handlers)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"all": ["X 0"]}, done.error
        (child,) = await of_agent(eng, run.id, "crew/helper")
        assert (await authority_of(eng, child.id)).instance == 1
        (lead,) = await of_agent(eng, run.id, "crew/lead")
        assert [row.run for row in await eng.core.store.delegations.of_task(run.id)] == [lead.id, child.id]
        assert await eng.runs.verify(lead.id) is None
        assert len([event for event in await log(eng, lead.id) if isinstance(event.body, ChildCalled)]) == 1


async def test_two_engines_on_one_store_share_the_count(store: Path) -> None:
    made = team(member("lead", "middle"), member("middle", "helper"), member("helper"), limits=Limits(runs=7))

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> dict[str, Any]:
        both = await asyncio.gather(ctx.call("middle", "a", key="a"), ctx.call("middle", "b", key="b"))
        return {"all": [code for one in both for code in one["all"]]}

    handlers = {"lead": lead, "middle": crowd(6), "helper": shout}
    tight = msgspec.structs.replace(QUICK, max_running=1)
    async with engine(store, settings=tight) as one, engine(store, settings=tight) as two:
        for eng in (one, two):
            eng.teams.add_team(made, handlers)
        run = await submit(one, "crew", {"text": ""})
        done = await one.runs.wait(run.id, timeout=30)
        assert done.output is not None, done.error
        helpers = await of_agent(one, run.id, "crew/helper")
        assert len(helpers) == 4
        names = sorted([(await authority_of(one, helper.id)).path[-1] for helper in helpers])
        assert names == ["helper", "helper#2", "helper#3", "helper#4"]
