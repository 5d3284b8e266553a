"""What a remote task asks, after the run that waits for it was entered again: it is asked here for as long as there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import MessageSent, QuestionAsked, QuestionWithdrawn
from interlingua.mounts.loader import local_agents
from interlingua.protocols.peer.mount.questions import TaskQuestions
from tests.kit.engines import bodies, crash, engine, question, submit
from tests.kit.mounts.peer import BINDINGS, There, mount, mounted, output, remote, runs_of
from tests.kit.mounts.watch import SETTINGS, Gate, asked_question, seen

WIRES = ("acp", "http")


@il.agent(asks=[il.Confirm, il.AskText])
async def curious(ctx: il.Context[Any, Any], text: str) -> str:
    """Asks before it says anything."""
    verdict = await ctx.ask(il.Confirm(f"Say {text}?"))
    more = await ctx.ask(il.AskText("What else?"))
    return f"{text} {verdict.approved} {more.text}"


@il.agent(asks=[il.Confirm, il.AskText])
async def talkative(ctx: il.Context[Any, Any], text: str) -> str:
    """Says something before it asks."""
    await ctx.message("let me see")
    verdict = await ctx.ask(il.Confirm(f"Say {text}?"))
    more = await ctx.ask(il.AskText("What else?"))
    return f"{text} {verdict.approved} {more.text}"


class Told:
    """What runs were told to ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._told: asyncio.Queue[tuple[TaskQuestions, Any, str]] = asyncio.Queue()
        was = TaskQuestions.asked

        def asked_(asking: TaskQuestions, question: Any, said: str) -> None:
            was(asking, question, said)
            self._told.put_nowait((asking, question, said))

        monkeypatch.setattr(TaskQuestions, "asked", asked_)

    async def next(self) -> tuple[TaskQuestions, Any, str]:
        return await asyncio.wait_for(self._told.get(), 20)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


async def waiting(store: Path, there: There, agent: str, *, withdrawn: Told | None = None) -> tuple[str, Any]:
    """A run whose process has died while it waited for an answer, and what it asked."""
    made = mount(there.link)
    eng = engine(store, *await local_agents(made), settings=SETTINGS)
    await eng.start()
    run = await submit(eng, agent, {"text": "hello"})
    first = await question(eng, run.id)
    if withdrawn is not None:
        asking, *_ = await withdrawn.next()
        asking.moved_on()
        await seen(eng, run.id, "withdrawn")
    await crash(eng)
    await made.close()
    return run.id, first


@pytest.mark.parametrize("agent", ["curious", "talkative"])
@pytest.mark.parametrize("kind", BINDINGS)
async def test_a_question_is_still_open_when_the_run_has_found_its_task_again(
    store: Path, kind: str, agent: str, told: Told
) -> None:
    async with remote(kind, agents=[curious, talkative]) as there:
        run, first = await waiting(store, there, agent)
        await told.next()
        async with mounted(store, there.link) as (eng, _):
            await told.next()
            assert [one.id for one in await eng.questions.open(run=run)] == [first.id]
            await eng.questions.answer(first.id, {"approved": True})
            await eng.questions.answer((await asked_question(eng, run, "ask_text")).id, {"text": "bye"})
            assert "hello True bye" in (await output(eng, run)).values()
            assert await bodies(eng, run, QuestionWithdrawn) == []
            assert len(await bodies(eng, run, QuestionAsked)) == 2
        assert len(await runs_of(there.node)) == 1


@pytest.mark.parametrize("kind", WIRES)
async def test_what_was_asked_and_answered_there_meanwhile_is_not_asked_here(
    store: Path, kind: str, told: Told
) -> None:
    async with remote(kind, agents=[curious]) as there:
        run, first = await waiting(store, there, "curious")
        await told.next()
        (theirs,) = await runs_of(there.node)
        await there.engine.questions.answer((await question(there.engine, theirs.id)).id, {"approved": False})
        second = await asked_question(there.engine, theirs.id, "ask_text")
        async with mounted(store, there.link) as (eng, _):
            _, shown_, _ = await told.next()
            assert shown_["id"] == second.id
            await eng.questions.answer((await asked_question(eng, run, "ask_text")).id, {"text": "bye"})
            assert "hello False bye" in (await output(eng, run)).values()
            assert [body.question for body in await bodies(eng, run, QuestionWithdrawn)] == [first.id]
            assert len(await bodies(eng, run, QuestionAsked)) == 2


@pytest.mark.parametrize("kind", WIRES)
async def test_what_was_withdrawn_before_a_crash_and_is_still_asked_there_is_asked_again(
    store: Path, kind: str, told: Told
) -> None:
    async with remote(kind, agents=[curious]) as there:
        run, first = await waiting(store, there, "curious", withdrawn=told)
        async with mounted(store, there.link) as (eng, _):
            again = await question(eng, run)
            assert (again.prompt, again.type) == (first.prompt, first.type)
            await eng.questions.answer(again.id, {"approved": True})
            await eng.questions.answer((await asked_question(eng, run, "ask_text")).id, {"text": "bye"})
            assert "hello True bye" in (await output(eng, run)).values()


async def test_what_was_withdrawn_and_is_asked_there_once_more_is_asked_again(store: Path, told: Told) -> None:
    async with remote(agents=[curious]) as there:
        run, first = await waiting(store, there, "curious")
        await told.next()
        async with mounted(store, there.link) as (eng, _):
            asking, what, said = await told.next()
            asking.moved_on()
            await seen(eng, run, "withdrawn")
            asking.asked(what, said)
            again = await question(eng, run)
            assert again.id != first.id
            assert again.prompt == first.prompt
            await eng.questions.answer(again.id, {"approved": True})
            await eng.questions.answer((await asked_question(eng, run, "ask_text")).id, {"text": "bye"})
            assert "hello True bye" in (await output(eng, run)).values()


async def test_what_was_said_while_we_were_away_is_shown_before_the_end(store: Path) -> None:
    gate = Gate()
    async with remote("http", gate) as there:
        made = mount(there.link)
        eng = engine(store, *await local_agents(made), settings=SETTINGS)
        await eng.start()
        run = (await submit(eng, "busybody", {"text": "far"})).id
        await seen(eng, run, "artifact")
        await crash(eng)
        await made.close()
        gate.open.set()
        (theirs,) = await runs_of(there.node)
        await there.engine.runs.wait(theirs.id, timeout=20)
        async with mounted(store, there.link) as (after, _):
            assert await output(after, run) == {"text": "so far"}
            assert [body.message.text for body in await bodies(after, run, MessageSent)].count("nearly there") == 1
