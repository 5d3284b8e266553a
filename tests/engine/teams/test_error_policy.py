"""What a team does when one of its agents fails: again, by another, or by asking somebody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import RunTimedOut, Unavailable
from interlingua.model.events import ErrorHandled, Said
from interlingua.model.team.authority import Limits, Policy, Step
from interlingua.model.team.manifest import Manifest
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, question, submit
from tests.kit.teams import member, of_agent, passes_on, shout, team

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


class Moody:
    """An agent that fails as often as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.runs = 0

        @il.agent
        async def moody(text: str) -> str:
            self.runs += 1
            if self.errors:
                raise self.errors.pop(0)
            return f"done: {text}"

        self.agent = moody


def crew(
    eng: il.Engine, policy: Policy, worker: Moody, *more: Manifest, lead: il.Agent[..., Any] = passes_on,
    overseer: str | None = None, **handlers: il.Agent[..., Any],
) -> None:  # fmt: skip
    allowed = ("worker", "substitute") if "substitute" in handlers else ("worker",)
    made = team(member("lead", *allowed), member("worker", overseer=overseer), *more)
    made.policy = policy
    eng.teams.add_team(made, {"lead": lead, "worker": worker.agent, **handlers})


async def decisions(eng: il.Engine, run: str) -> list[tuple[str, int, str, str | None]]:
    (lead,) = await of_agent(eng, run, "crew/lead")
    handled = await bodies(eng, lead.id, ErrorHandled)
    return [(one.agent, one.number, one.do, one.to) for one in handled]


@both
async def test_what_is_down_is_tried_again_with_growing_waits(store: Path, settings: il.Settings) -> None:
    worker = Moody(Unavailable("down"), Unavailable("down"))
    async with engine(store, settings=settings) as eng:
        crew(eng, Policy({503: (Step("retry", times=3, seconds=0.01, factor=3),)}), worker)
        run = await finish(eng, "crew", {"text": "worker x"})
        assert run.output == {"text": "done: x"}
        assert worker.runs == 3
        (lead,) = await of_agent(eng, run.id, "crew/lead")
        handled = await bodies(eng, lead.id, ErrorHandled)
        assert [(one.do, one.delay, one.attempt) for one in handled] == [("retry", 0.01, 1), ("retry", 0.03, 2)]
        errors = [said for said in await bodies(eng, run.id, Said) if said.form == "error"]
        assert [(said.task, said.sender, said.recipient, said.code) for said in errors] == [
            ("T1.1", "worker", "lead", "unavailable"), ("T1.2", "worker#2", "lead", "unavailable"),
        ]  # fmt: skip


async def test_what_fails_for_good_is_not_tried_again(store: Path) -> None:
    worker = Moody(ValueError("wrong"))
    async with engine(store) as eng:
        crew(eng, Policy({503: (Step("retry"),)}), worker)
        run = await finish(eng, "crew", {"text": "worker x"})
        assert run.status is il.Status.FAILED
        assert worker.runs == 1
        assert await decisions(eng, run.id) == []


async def test_the_work_goes_to_another_agent_that_is_allowed(store: Path) -> None:
    worker = Moody(ValueError("wrong"))
    async with engine(store) as eng:
        policy = Policy({502: (Step("reassign"),)})
        crew(eng, policy, worker, member("substitute"), substitute=shout)
        run = await finish(eng, "crew", {"text": "worker x"})
        assert run.output == {"text": "X"}
        assert await decisions(eng, run.id) == [("worker", 502, "reassign", None)]


async def test_the_work_goes_to_nobody_who_is_not_allowed(store: Path) -> None:
    worker = Moody(ValueError("wrong"), ValueError("wrong"))
    async with engine(store) as eng:
        made = team(member("lead", "worker"), member("worker", "stranger"), member("stranger"))
        made.policy = Policy({502: (Step("reassign", to="stranger"),), 403: (Step("fail"),)})
        eng.teams.add_team(made, {"lead": passes_on, "worker": worker.agent, "stranger": shout})
        run = await finish(eng, "crew", {"text": "worker x"})
        assert run.error is not None
        assert "may not delegate to stranger" in run.error.message
        assert await of_agent(eng, run.id, "crew/stranger") == []


async def test_the_task_of_the_entry_agent_goes_to_nobody_else(store: Path) -> None:
    lead = Moody(ValueError("wrong"), ValueError("wrong again"))
    async with engine(store) as eng:
        made = team(member("lead", "worker"), member("worker"))
        made.policy = Policy({502: (Step("reassign", to="worker"),)})
        eng.teams.add_team(made, {"lead": lead.agent, "worker": shout})
        run = await finish(eng, "crew", {"text": "x"})
        assert lead.runs == 1
        assert run.error is not None
        assert run.error.message == "ValueError: wrong"


async def test_an_entry_agent_that_is_tried_again_has_what_is_left_of_the_runs(store: Path) -> None:
    seen: list[str] = []

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        for _ in range(2):
            await ctx.delegate("worker", "x")
        raise Unavailable("down")

    @il.agent
    async def worker(ctx: il.Context[None, None], text: str) -> str:
        seen.append(ctx.me or "")
        return text

    async with engine(store, settings=PATIENT) as eng:
        made = team(member("lead", "worker"), member("worker"), limits=Limits(runs=5))
        made.policy = Policy({503: (Step("retry", times=9, seconds=0),)})
        eng.teams.add_team(made, {"lead": lead, "worker": worker})
        run = await finish(eng, "crew", {"text": "x"})
        assert run.error is not None
        assert run.error.code == "over_budget"
        assert seen == ["worker", "worker#2", "worker#3"]  # and the entry agent twice


@both
@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ({"decision": "retry"}, {"text": "done: x"}),
        ({"decision": "answer", "text": "take this"}, {"text": "take this"}),
        ({"decision": "fail"}, None),
    ],
)
async def test_the_user_says_what_to_do(
    store: Path, answer: dict[str, Any], output: Any, settings: il.Settings
) -> None:
    worker = Moody(RunTimedOut("too slow"))
    async with engine(store, settings=settings) as eng:
        crew(eng, Policy({504: (Step("escalate", to="user"),)}), worker)
        run = await submit(eng, "crew", {"text": "worker x"})
        asked = await question(eng, run.id)
        assert asked.type == "escalation"
        assert asked.payload == {
            "agent": "worker", "task": "T1", "error_code": 504, "error_message": "too slow",
        }  # fmt: skip
        assert "escalation" in [one.type for one in (await eng.agents.card("crew")).questions]
        await eng.questions.answer(asked.id, answer)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == output
        assert worker.runs == (2 if answer["decision"] == "retry" else 1)
        assert await decisions(eng, run.id) == [("worker", 504, "escalate", "user")] + (
            [] if output is not None else [("worker", 504, "fail", None)]
        )


async def test_the_overseer_of_who_failed_says_what_to_do(store: Path) -> None:
    heard: list[str] = []

    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        if ctx.review is not None:
            return il.ReviewVerdict("approve", ctx.review.result_hash)
        heard.append(text)
        return "Retry."

    worker = Moody(Unavailable("down"))
    async with engine(store) as eng:
        policy = Policy({503: (Step("escalate", to="overseer"),)})
        crew(eng, policy, worker, member("qa"), overseer="qa", qa=qa)
        run = await finish(eng, "crew", {"text": "worker x"})
        assert run.output == {"text": "done: x"}
        assert len(heard) == 1
        assert "503" in heard[0]
        assert await decisions(eng, run.id) == [("worker", 503, "escalate", "overseer")]


async def test_the_orchestrator_is_told_and_the_delegator_has_the_error(store: Path) -> None:
    worker = Moody(ValueError("wrong"))
    async with engine(store) as eng:
        crew(eng, Policy({502: (Step("escalate", to="orchestrator"),)}), worker)
        run = await finish(eng, "crew", {"text": "worker x"})
        assert run.status is il.Status.FAILED
        told = [said for said in await bodies(eng, run.id, Said) if said.recipient == "orchestrator"]
        assert [(said.form, said.sender) for said in told] == [("error", "lead"), ("error", "lead")]
        assert await decisions(eng, run.id) == [
            ("worker", 502, "escalate", "orchestrator"), ("worker", 502, "fail", None),
        ]  # fmt: skip


async def test_a_refusal_has_a_policy_too(store: Path) -> None:
    async with engine(store) as eng:
        made = team(member("lead", "worker"), member("worker"), limits=Limits(runs=2))
        made.policy = Policy({429: (Step("escalate", to="user"),)})

        @il.agent
        async def lead(ctx: il.Context[None, None], text: str) -> str:
            first = await ctx.delegate("worker", "a")
            second = await ctx.delegate("worker", "b")
            return first["text"] + second["text"]

        eng.teams.add_team(made, {"lead": lead, "worker": shout})
        run = await submit(eng, "crew", {"text": "go"})
        asked = await question(eng, run.id)
        assert asked.payload["error_code"] == 429
        await eng.questions.answer(asked.id, {"decision": "answer", "text": "b, by hand"})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "Ab, by hand"}


async def test_decisions_are_made_once_over_crashes(store: Path) -> None:
    worker = Moody(Unavailable("down"), RunTimedOut("slow"))
    policy = Policy({503: (Step("retry", seconds=0),), 504: (Step("retry"), Step("escalate", to="user"))})
    async with engine(store) as eng:
        crew(eng, policy, worker)
        run = await submit(eng, "crew", {"text": "worker x"})
        asked = await question(eng, run.id)
        before = await decisions(eng, run.id)
        await crash(eng)
    async with engine(store) as eng:
        crew(eng, policy, worker)
        await eng.questions.answer(asked.id, {"decision": "retry"})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "done: x"}
        assert await decisions(eng, run.id) == before
        assert worker.runs == 3


async def test_the_default_tries_again_what_is_down(store: Path) -> None:
    from interlingua.model.team.authority import DEFAULT_POLICY

    assert [DEFAULT_POLICY.action(503, taken).do for taken in range(5)] == [
        "retry", "retry", "retry", "escalate", "fail",
    ]  # fmt: skip
