"""Agents that only other processes of a store have, offered by one that has doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.cluster import remote_agents
from interlingua.model.errors import AgentNotFound, InvalidInput, Unavailable
from interlingua.model.filters import RunFilter
from tests.kit.engines import PATIENT, crash, engine, finish, question, submit
from tests.kit.teams import chain


@il.agent
async def talk(words: int) -> AsyncIterator[str]:
    for number in range(words):
        yield f"{number} "


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None]) -> str:
    return str((await ctx.ask(il.Confirm("Shall I?"))).approved)


def version(number: str) -> il.Agent[..., Any]:
    @il.agent(name="versioned", version=number)
    async def versioned() -> str:
        return number

    return versioned


@asynccontextmanager
async def doors(store: Path, *agents: il.Agent[..., Any], settings: il.Settings = PATIENT) -> AsyncIterator[il.Engine]:
    """A process that offers what others have."""
    async with engine(store, *agents, settings=settings) as eng:
        await eng.cluster.remote_agents.start(looks=True)
        try:
            yield eng
        finally:
            await eng.cluster.remote_agents.stop()


@asynccontextmanager
async def works(store: Path, *agents: il.Agent[..., Any], settings: il.Settings = PATIENT) -> AsyncIterator[il.Engine]:
    """A process that runs agents for others."""
    async with engine(store, *agents, settings=settings) as eng:
        await eng.cluster.remote_agents.start(looks=False)
        try:
            yield eng
        finally:
            await eng.cluster.remote_agents.stop()


async def until(eng: il.Engine, holds: Callable[[], bool]) -> None:
    """Told by the registry, as doors are."""
    changed = asyncio.Event()
    eng.agents.listeners.append(changed.set)
    async with asyncio.timeout(20):
        while not holds():
            await changed.wait()
            changed.clear()
    eng.agents.listeners.remove(changed.set)


def available(eng: il.Engine, name: str) -> bool:
    found = eng.agents.find(name)
    return found is not None and found.available


async def test_an_agent_of_another_process_is_listed_run_streamed_and_answered(store: Path) -> None:
    async with works(store, talk, asker), doors(store) as eng:
        assert {agent.card.key for agent in eng.agents} == {"talk@0.1.0", "asker@0.1.0"}
        assert len(eng.agents) == 2
        assert eng.agents.queues() == []  # nothing of it is claimed here
        run = await submit(eng, "talk", {"words": 3})
        heard = [event.kind async for event in eng.runs.events(run.id)]
        assert "delta" in heard
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "0 1 2 "}
        asking = await submit(eng, "asker")
        await eng.questions.answer((await question(eng, asking.id)).id, {"approved": True})
        assert (await eng.runs.wait(asking.id, timeout=20)).output == {"text": "True"}


async def test_its_input_is_checked_by_the_card(store: Path) -> None:
    async with works(store, talk), doors(store) as eng:
        with pytest.raises(InvalidInput):
            await submit(eng, "talk", {"words": "many"})
        assert await eng.runs.search(RunFilter()) == []


async def test_an_agent_whose_processes_are_gone_is_unavailable_until_one_is_back(store: Path) -> None:
    async with doors(store) as eng:
        with pytest.raises(AgentNotFound):
            await submit(eng, "talk", {"words": 1})
        async with works(store, talk):
            await until(eng, lambda: available(eng, "talk"))
        await until(eng, lambda: not available(eng, "talk"))
        assert [agent.card.name for agent in eng.agents] == ["talk"]
        with pytest.raises(Unavailable) as caught:
            await submit(eng, "talk", {"words": 1})
        assert caught.value.transient
        assert caught.value.details == {"agent": "talk@0.1.0"}
        async with works(store, talk):
            await until(eng, lambda: available(eng, "talk"))
            assert (await finish(eng, "talk", {"words": 1})).output == {"text": "0 "}


async def test_an_agent_of_a_process_that_dies_is_unavailable(store: Path) -> None:
    worker = engine(store, talk, settings=PATIENT)
    await worker.start()
    await worker.cluster.remote_agents.start(looks=False)
    async with doors(store) as eng:
        assert available(eng, "talk")
        await worker.cluster.remote_agents.jobs.close()
        await crash(worker)
        await until(eng, lambda: not available(eng, "talk"))


async def test_what_nobody_has_had_for_long_is_forgotten(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_agents, "_LOOK_EVERY", 0.05)
    async with doors(store) as eng:
        async with works(store, talk):
            await until(eng, lambda: available(eng, "talk"))
        await until(eng, lambda: not available(eng, "talk"))
        monkeypatch.setattr(remote_agents, "FORGET_AFTER", 0.0)
        await until(eng, lambda: eng.agents.find("talk") is None)
        with pytest.raises(Unavailable):  # the store still knows its card
            await submit(eng, "talk", {"words": 1})


async def test_the_newest_version_that_is_there_is_run_and_others_by_their_number(store: Path) -> None:
    async with works(store, version("1.0")), doors(store) as eng:
        async with works(store, version("2.0")):
            await until(eng, lambda: len(eng.agents) == 2)
            assert (await finish(eng, "versioned")).output == {"text": "2.0"}
            assert (await finish(eng, "versioned", version="1.0")).output == {"text": "1.0"}
        await until(eng, lambda: eng.agents.find("versioned", "2.0").available is False)  # type: ignore[union-attr]
        assert (await finish(eng, "versioned")).output == {"text": "1.0"}
        with pytest.raises(Unavailable):
            await submit(eng, "versioned", version="2.0")


async def test_an_agent_that_is_here_and_there_is_listed_once_and_run_by_either(store: Path) -> None:
    gate, at = asyncio.Event(), list[str]()

    def busy(where: str) -> il.Agent[..., Any]:
        @il.agent(name="busy")
        async def busy_() -> str:
            at.append(where)
            if len(at) == 4:
                gate.set()
            await gate.wait()
            return where

        return busy_

    two = msgspec.structs.replace(PATIENT, max_running=2)
    async with works(store, busy("there"), settings=two), doors(store, busy("here"), settings=two) as eng:
        assert [agent.here for agent in eng.agents] == [True]
        assert eng.cluster.remote_agents.agents() == []
        runs = [await submit(eng, "busy") for _ in range(4)]
        for run in runs:
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
    assert sorted(at) == ["here", "here", "there", "there"]


async def test_an_agent_that_is_taken_out_here_is_found_there(store: Path) -> None:
    async with works(store, talk), doors(store, talk) as eng:
        eng.teams.exchange([talk], [])
        found = eng.agents.find("talk")
        assert found is not None
        assert not found.here
        assert (await finish(eng, "talk", {"words": 1})).output == {"text": "0 "}


async def test_a_process_offers_what_it_runs_and_nothing_else(store: Path) -> None:
    nothing = msgspec.structs.replace(PATIENT, max_running=0)
    without = msgspec.structs.replace(PATIENT, agents={"talk": 0})
    async with (
        works(store, version("1.0"), settings=nothing),
        works(store, talk, asker, settings=without),
        engine(store, version("2.0"), settings=PATIENT),  # a command that runs something of its own
        doors(store) as eng,
    ):
        assert [agent.card.name for agent in eng.agents] == ["asker"]


async def test_a_team_of_another_process_is_one_agent_and_its_gates_hold_there(store: Path) -> None:
    async with engine(store, settings=PATIENT) as worker:
        chain()(worker)
        await worker.cluster.remote_agents.start(looks=False)
        async with doors(store) as eng:
            assert [agent.card.name for agent in eng.agents] == ["crew"]  # and none of its members
            assert (await finish(eng, "crew", {"text": "middle expert x"})).output == {"text": "X"}
            refused = await finish(eng, "crew", {"text": "expert x"})
            assert refused.status is il.Status.FAILED
        await worker.cluster.remote_agents.stop()


async def test_who_is_called_by_a_run_may_be_away_for_a_while(store: Path) -> None:
    @il.agent
    async def caller(ctx: il.Context[None, None]) -> str:
        return str((await ctx.call("talk", {"words": 2}))["text"])

    async with doors(store, caller) as eng:
        async with works(store, talk):
            await until(eng, lambda: available(eng, "talk"))
        await until(eng, lambda: not available(eng, "talk"))
        run = await submit(eng, "caller")
        async with works(store, talk):
            assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "0 1 "}


async def test_who_does_not_look_knows_only_its_own(store: Path) -> None:
    async with works(store, talk), works(store) as eng:
        assert list(eng.agents) == []
        assert (await finish(eng, "talk", {"words": 1})).output == {"text": "0 "}  # by its card, as ever
