"""Answers that were given here, and did not count: the question had been answered at a second server before.

Nobody could know when they were given. They stay on record as they were given, and the log says what became of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import Warned
from interlingua.protocols.connect.mount import follow
from interlingua.protocols.targets import parse
from interlingua.server.app import ServeSettings, serving
from interlingua.server.loading.target import load
from tests.kit.engines import PATIENT, QUICK, bodies, engine, parked, question, submit
from tests.kit.mounts.editor import PERMISSION
from tests.protocols.connect.reference import Proxy

from .test_mounted import DONE, TARGETS, asked, closed, hub, over_all, second

BEFORE = "the answer given here (by ada) came too late: the question had been answered at "
NO_LONGER = "the answer given here (by ada) came too late: the question was no longer asked at "


@pytest.mark.parametrize("protocol", ["connect", "cap"])
async def test_of_a_run_that_was_set_aside_the_log_says_that_the_answer_came_too_late(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with second(tmp_path) as other, hub(store, other, protocol, "solo", QUICK) as (eng, _):
        run = await submit(eng, "front", {"text": "it"})
        there, here = await asked(other.engine), await asked(eng)
        await parked(eng, here.question.run)
        await other.engine.questions.answer(there.question.id, {"approved": True}, by=il.Caller("bob"), door="test")
        await eng.questions.answer(here.question.id, {"approved": False}, by=il.Caller("ada"), door="test")
        assert (await eng.runs.wait(run.id, timeout=30)).output == {"text": "True None"}
        record = await closed(eng, here.question.id)
        assert record.answer is not None
        assert (record.state, record.answer.value) == ("answered", {"approved": False}), "that is a fact"
        (late,) = await bodies(eng, here.question.run, Warned)
        assert late.message.startswith(BEFORE + other.address)
        assert late.details["question"] == here.question.id


@pytest.mark.parametrize("protocol", ["connect", "cap", "peer", "mcp"])
async def test_so_it_does_of_an_answer_that_was_given_while_no_process_was_here(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with second(tmp_path) as other:
        async with hub(store, other, protocol, "solo") as (eng, _):
            run = await submit(eng, "front", {"text": "it"})
            there, here = await asked(other.engine), await asked(eng)
        await other.engine.questions.answer(there.question.id, {"approved": True}, by=il.Caller("bob"), door="test")
        await other.engine.runs.wait(there.runs[0], timeout=30)
        async with engine(store) as outside:  # as the command line is
            await outside.questions.answer(here.question.id, {"approved": False}, by=il.Caller("ada"), door="test")
        async with hub(store, other, protocol, "solo") as (eng, _):
            assert (await eng.runs.wait(run.id, timeout=30)).output == {"text": "True None"}
            (late,) = await bodies(eng, here.question.run, Warned)
            assert late.message.startswith((BEFORE + other.address, NO_LONGER))


@over_all
async def test_an_answer_that_counts_is_not_said_to_have_come_too_late(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with second(tmp_path) as other, hub(store, other, protocol, "crew") as (eng, _):
        run = await submit(eng, "front", {"text": PERMISSION})
        here = await asked(eng)
        await eng.questions.answer(here.question.id, {"choice": "yes"}, door="test")
        assert DONE in str((await eng.runs.wait(run.id, timeout=30)).output)
        assert await bodies(eng, here.question.run, Warned) == []


@pytest.mark.parametrize("protocol", ["connect", "cap"])
async def test_nor_is_one_that_was_taken_and_whose_reply_was_lost(store: Path, tmp_path: Path, protocol: str) -> None:
    """The question has been answered when it is told again: by just this answer."""

    @il.agent(asks=[il.Confirm])
    async def solo(ctx: il.Context[Any, Any], text: str) -> str:
        return str((await ctx.ask(il.Confirm(f"Do {text}?"))).approved)

    async with (
        serving(tmp_path / "there.db", [solo], ServeSettings(port=0, engine=PATIENT)) as server,
        Proxy(server.address) as proxy,
    ):
        take, lost = server.engine.questions.answer, []

        async def taken(*given: Any, **more: Any) -> None:
            await take(*given, **more)
            lost.append(given)
            proxy.cut()

        server.engine.questions.answer = taken  # type: ignore[method-assign]
        target = parse(TARGETS[protocol].format(http=proxy.address, ws="", agent="solo"))
        async with engine(store, (await load(target)).chosen, settings=PATIENT) as eng:
            run = await submit(eng, "solo", {"text": "it"})
            await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
            assert (await eng.runs.wait(run.id, timeout=30)).output == {"text": "True"}
            assert len(lost) == 1
            assert await bodies(eng, run.id, Warned) == []


async def test_a_connect_server_of_ours_tells_at_once_that_its_question_was_answered(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that there is hardly a moment in which it could be answered here too."""
    monkeypatch.setattr(follow, "_LOOK_FIRST", 0.01)
    go = asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def solo(ctx: il.Context[Any, Any], text: str) -> str:
        verdict = await ctx.ask(il.Confirm(f"Do {text}?"))
        await go.wait()
        return str(verdict.approved)

    async with (
        serving(tmp_path / "there.db", [solo], ServeSettings(port=0, engine=PATIENT)) as server,
        Proxy(server.address) as proxy,
    ):
        target = parse(TARGETS["connect"].format(http=proxy.address, ws="", agent="solo"))
        async with engine(store, (await load(target)).chosen, settings=PATIENT) as eng:
            run = await submit(eng, "solo", {"text": "it"})
            there, here = await asked(server.engine), await asked(eng)
            waits = f"/wait?while={there.question.id}&timeout=30 "
            async with asyncio.timeout(20):
                while not any(waits in head for head in proxy.heads):
                    await proxy.passed()
            await server.engine.questions.answer(there.question.id, {"approved": True}, door="test")
            assert (await closed(eng, here.question.id)).state == "withdrawn", "while the agent still works there"
            assert sum(waits in head for head in proxy.heads) == 1
            go.set()
            assert (await eng.runs.wait(run.id, timeout=30)).output == {"text": "True"}
