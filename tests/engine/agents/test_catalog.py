"""Other agents than before while the engine runs: nothing that runs notices, and nothing is half done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.card import AgentCard
from interlingua.model.team.manifest import Manifest, Rule, Team
from tests.kit.engines import QUICK, engine, finish, question, submit


def said(text: str, name: str = "say", version: str = "0.1.0") -> il.Agent[..., Any]:
    @il.agent(name=name, version=version)
    async def one() -> str:
        return text

    return one


def asks(text: str, version: str = "0.1.0") -> il.Agent[..., Any]:
    @il.agent(name="ask", version=version, asks=[il.Confirm])
    async def one(ctx: il.Context[None, None]) -> str:
        await ctx.ask(il.Confirm("Go on?"))
        return text

    return one


async def test_a_run_ends_with_the_code_it_began_with_and_the_next_has_the_new(tmp_path: Path) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @il.agent(name="say")
    async def old() -> str:
        begun.set()
        await gate.wait()
        return "old"

    async with engine(tmp_path / "x.db", old) as eng:
        run = await submit(eng, "say")
        await begun.wait()
        eng.teams.exchange([old], [said("new")])
        gate.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "old"}
        assert (await finish(eng, "say")).output == {"text": "new"}


async def test_a_parked_run_is_entered_with_the_new_code_of_its_version_or_the_last_there_was(tmp_path: Path) -> None:
    old = asks("old")
    async with engine(tmp_path / "x.db", old) as eng:
        first, second = await submit(eng, "ask"), await submit(eng, "ask")
        one, two = await question(eng, first.id), await question(eng, second.id)
        new = asks("new")
        eng.teams.exchange([old], [new])
        await eng.questions.answer(one.id, {"approved": True})
        assert (await eng.runs.wait(first.id, timeout=20)).output == {"text": "new"}
        eng.teams.exchange([new], [asks("newest", "2.0")])
        assert [agent.card.key for agent in eng.agents] == ["ask@2.0"]
        await eng.questions.answer(two.id, {"approved": True})
        assert (await eng.runs.wait(second.id, timeout=20)).output == {"text": "new"}


async def test_where_one_cannot_be_everything_stays_and_whoever_listens_is_told_once(tmp_path: Path) -> None:
    a, b = said("a", "a"), said("b", "b")
    async with engine(tmp_path / "x.db", a, b) as eng:
        told: list[list[str]] = []
        eng.agents.listeners.append(lambda: told.append([agent.card.name for agent in eng.agents]))
        with pytest.raises(il.DefinitionError, match="there are two agents b"):
            eng.teams.exchange([a], [said("c", "c"), said("again", "b")])
        with pytest.raises(il.DefinitionError, match="there are two agents c"):
            eng.teams.exchange([a], [said("c", "c"), said("again", "c")])

        def refuse(card: AgentCard) -> list[str]:
            return ["its name is d"] if card.name == "d" else []

        eng.agents.add_check(refuse)
        with pytest.raises(il.DefinitionError, match="its name is d"):
            eng.teams.exchange([a], [said("c", "c"), said("d", "d")])
        assert told == []
        eng.teams.exchange([a], [said("c", "c"), said("A", "a"), said("e", "e")])
        assert told == [["a", "b", "c", "e"]], "who takes the place of another keeps it"


def manifest(id_: str, *may: str) -> Manifest:
    return Manifest(id_, f"You are {id_}.", may, {name: Rule("when it is needed") for name in may})


async def test_a_team_is_exchanged_with_its_members_and_a_task_that_runs_goes_on(tmp_path: Path) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        begun.set()
        await gate.wait()
        return str((await ctx.delegate("helper-1", text))["text"])

    def helper(answer: str) -> il.Agent[..., Any]:
        @il.agent
        async def helps(text: str) -> str:
            return answer

        return helps

    def team(*others: str, **handlers: il.Agent[..., Any]) -> TeamAgent:
        members = [manifest("lead-1", *others), *(manifest(name) for name in others)]
        made = Team("crew", {one.id: one for one in members}, entry="lead-1")  # the first one begins
        return TeamAgent(made, {name.replace("_", "-"): one for name, one in handlers.items()})

    first = team("helper-1", lead_1=lead, helper_1=helper("old"))
    async with engine(tmp_path / "x.db", first, settings=QUICK) as eng:
        run = await submit(eng, "crew", {"text": "x"})
        await begun.wait()
        second = team("other-1", lead_1=lead, other_1=helper("other"))
        eng.teams.exchange([first], [second])
        gate.set()
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output == {"text": "old"}, ended.error
        failed = await finish(eng, "crew", {"text": "x"})
        assert failed.error is not None, "helper-1 is no member any more"
        with pytest.raises(il.DefinitionError, match="there is an agent crew already"):
            eng.teams.exchange([], [team(lead_1=lead)])
        eng.teams.exchange([second], [team("helper-1", lead_1=lead, helper_1=helper("new"))])
        assert (await finish(eng, "crew", {"text": "x"})).output == {"text": "new"}
