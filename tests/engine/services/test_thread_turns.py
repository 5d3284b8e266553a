"""Runs on a thread that nobody uses: they begin at once, and still one after the other, whoever else is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.runs.run_handle import RunHandle
from interlingua.model.errors import ThreadBusy
from interlingua.model.run import RunRequest
from interlingua.store.sql.store import SqlStore
from tests.kit.engines import engine, settle


@il.agent
async def adding(text: str, ctx: il.Context[dict[str, Any], None]) -> str:
    """Keeps what it hears."""
    ctx.state["heard"] = [*ctx.state.get("heard", []), text]
    return text


@il.agent
async def saying(text: str) -> str:
    return text


def asked(text: str, agent: str = "adding", **more: Any) -> RunRequest:
    return RunRequest(agent, None, {"text": text}, thread="t", **more)


async def heard(eng: il.Engine) -> list[str]:
    thread = await eng.threads.get("t")
    return list(thread.values["heard"])


async def test_a_short_run_on_a_thread_that_is_idle_is_two_commits(store: Path) -> None:
    async with engine(store, saying) as eng:
        assert isinstance(eng.core.store, SqlStore)
        await eng.threads.create("t")
        for text in ("one", "two"):
            before = eng.core.store.batches
            run = await eng.runs.submit(asked(text, "saying"))
            assert (await eng.runs.wait(run.id)).status is il.Status.SUCCEEDED
            assert eng.core.store.batches == before + 2
        thread = await eng.threads.get("t")
        assert (thread.version, thread.active) == (2, None)
        assert [message.parts[0].text for message in await eng.threads.messages("t")] == ["one", "one", "two", "two"]  # type: ignore[union-attr]


async def test_runs_that_come_together_have_their_thread_in_the_order_in_which_they_came(store: Path) -> None:
    texts = [str(number) for number in range(12)]
    async with engine(store, adding) as eng:
        await eng.threads.create("t")
        made = await asyncio.gather(*(eng.runs.submit(asked(text, when_busy="enqueue")) for text in texts))
        for run in made:
            assert (await eng.runs.wait(run.id)).status is il.Status.SUCCEEDED
        assert await heard(eng) == texts


async def test_of_two_that_come_together_the_second_is_refused_where_it_would_rather_be(store: Path) -> None:
    waiting = asyncio.Event()

    @il.agent
    async def slow(text: str) -> str:
        await waiting.wait()
        return text

    async with engine(store, slow) as eng:
        await eng.threads.create("t")
        both = (eng.runs.submit(asked("one", "slow")), eng.runs.submit(asked("two", "slow", when_busy="reject")))
        one, two = await asyncio.gather(*both, return_exceptions=True)
        waiting.set()
        assert isinstance(two, ThreadBusy)
        assert isinstance(one, RunHandle)
        assert (await eng.runs.wait(one.id)).output == {"text": "one"}


async def test_a_thread_that_another_process_takes_in_the_same_moment_is_waited_for(store: Path) -> None:
    waiting = asyncio.Event()

    @il.agent
    async def slow(text: str, ctx: il.Context[dict[str, Any], None]) -> str:
        await waiting.wait()
        ctx.state["heard"] = [text]
        return text

    async with engine(store, slow) as one, engine(store, adding) as other:
        await one.threads.create("t")
        first = await one.runs.submit(asked("first", "slow"))
        second = await other.runs.submit(asked("second", when_busy="enqueue"))
        with pytest.raises(ThreadBusy):
            await other.runs.submit(asked("third", when_busy="reject"))
        assert second.run.status is il.Status.PENDING
        assert other.core.worker.running == 0
        waiting.set()
        assert (await one.runs.wait(first.id)).status is il.Status.SUCCEEDED
        assert (await other.runs.wait(second.id)).status is il.Status.SUCCEEDED
        assert await heard(other) == ["first", "second"]


async def test_what_another_process_has_left_on_a_thread_in_the_same_moment_is_not_lost(store: Path) -> None:
    async with engine(store, adding) as one, engine(store, adding) as other:
        await one.threads.create("t")
        for eng, text in ((one, "first"), (other, "second")):
            run = await eng.runs.submit(asked(text))
            assert (await eng.runs.wait(run.id)).status is il.Status.SUCCEEDED
        assert await heard(other) == ["first", "second"]
        await settle()
        assert other.core.worker.running == 0


async def test_a_run_that_was_taken_back_is_not_built_on(store: Path) -> None:
    """The version of a thread stays when a run is rolled back: it is its checkpoint that tells."""
    async with engine(store, adding) as one, engine(store, adding) as other:
        await one.threads.create("t")
        gone = await one.runs.submit(asked("gone"))
        await one.runs.wait(gone.id)
        await one.runs.delete(gone.id, rollback=True)
        run = await other.runs.submit(asked("kept"))
        assert (await other.runs.wait(run.id)).status is il.Status.SUCCEEDED
        assert await heard(other) == ["kept"]


async def test_an_agent_that_must_not_be_repeated_begins_when_its_thread_is_surely_its_own(store: Path) -> None:
    calls: list[str] = []

    @il.agent(retries=0)
    async def once(text: str) -> str:
        calls.append(text)
        return text

    async with engine(store, adding) as one, engine(store, once) as other:
        await one.threads.create("t")
        first = await one.runs.submit(asked("first"))
        await one.runs.wait(first.id)
        run = await other.runs.submit(asked("second", "once"))
        assert (await other.runs.wait(run.id)).status is il.Status.SUCCEEDED
        assert calls == ["second"]


async def test_nobody_overtakes_a_run_that_is_on_its_way_to_the_thread(store: Path) -> None:
    @il.agent(retries=0)
    async def once(text: str) -> str:
        return text

    async with engine(store, once, saying) as eng:
        await eng.threads.create("t")
        both = (
            eng.runs.submit(asked("one", "once", when_busy="reject")),
            eng.runs.submit(asked("two", "saying", when_busy="enqueue")),
        )
        one, two = await asyncio.gather(*both)
        for run in (one, two):
            assert (await eng.runs.wait(run.id)).status is il.Status.SUCCEEDED
        said = [message.parts[0].text for message in await eng.threads.messages("t")]  # type: ignore[union-attr]
        assert said == ["one", "one", "two", "two"]
