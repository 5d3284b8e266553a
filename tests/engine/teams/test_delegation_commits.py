"""What a delegation writes together, and what becomes of it where only a part of that was written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.teams.delegation import Delegation
from interlingua.model.errors import ChildFailed, ThreadConflict
from interlingua.model.events import KINDS, ChildCalled, ChildEnded, MessageReceived, Said
from tests.kit.databases import sql
from tests.kit.engines import PATIENT, bodies, crash, engine, finish, log, submit
from tests.kit.teams import first_of, member, passes_on, shout, team


async def test_a_delegation_that_an_old_owner_could_not_write_down_does_not_count(store: Path) -> None:
    tried = asyncio.Event()

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        def take_over() -> int:
            # as another worker would
            return len(sql(store, "UPDATE runs SET epoch=epoch+1 WHERE id=? RETURNING id", ctx.run_id))

        assert await ctx.step("take over", take_over) == 1
        try:
            await ctx.delegate("helper", text)
        finally:
            tried.set()
        return text

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", "helper"), member("helper")), {"lead": lead, "helper": shout})
        run = await submit(eng, "crew", {"text": "x"})
        await asyncio.wait_for(tried.wait(), 20)
        sender = await first_of(eng, run.id, "crew/lead")
        assert await bodies(eng, sender, ChildCalled) == []
        assert await eng.core.store.delegations.of_task(sender) == []
        await crash(eng)


async def test_a_delegation_is_on_disk_as_one_with_what_calls_for_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", "helper"), member("helper")), {"lead": passes_on, "helper": shout})
        seen: list[tuple[int, int]] = []
        tell = eng.core.worker.commits.on_commit

        def look(*news: Any) -> None:
            ((called, counted),) = sql(
                store,
                "SELECT (SELECT count(*) FROM events WHERE kind=?), (SELECT count(*) FROM delegations)",
                KINDS[ChildCalled],
            )
            seen.append((called, counted))
            tell(*news)

        monkeypatch.setattr(eng.core.worker.commits, "on_commit", look)
        done = await finish(eng, "crew", {"text": "helper x"})
        assert done.output == {"text": "X"}, done.error
        assert set(seen) == {(0, 0), (1, 1), (2, 2)}


@pytest.mark.parametrize("child", ["goes on as well", "has ended by then"])
async def test_a_notice_that_was_lost_with_the_process_is_given_when_the_task_goes_on(
    store: Path, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        return f"{text} {(await ctx.receive()).text}"

    may_go_on = asyncio.Event()

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await may_go_on.wait()
        target, _, rest = text.partition(" ")
        return str((await ctx.call(target, rest))["text"])

    made = team(member("lead", "helper"), member("helper"))
    tell = Delegation._tell_notice

    def unless_helper(self: Delegation, place: str, granted: Any, *rest: Any) -> None:
        if granted.agent != "helper":
            tell(self, place, granted, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Delegation, "_tell_notice", unless_helper)
        async with engine(store, settings=PATIENT) as eng:
            eng.teams.add_team(made, {"lead": passes_on, "helper": helper})
            run = await submit(eng, "crew", {"text": "helper x"})
            await first_of(eng, run.id, "crew/helper")
            await crash(eng)
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(made, {"lead": lead, "helper": helper})
        await eng.teams.tell("T1", "helper", "y")
        if child == "has ended by then":
            leading = await first_of(eng, run.id, "crew/lead")
            async with asyncio.timeout(60):
                async for event in eng.runs.events(leading, sealed=True):
                    if isinstance(event.body, ChildEnded):
                        break
        may_go_on.set()
        done = await eng.runs.wait(run.id, timeout=60)
        assert done.output == {"text": "x y"}, done.error
        told = [(one.form, one.recipient) for _, one in await eng.teams.conversation(run.id) if one.task == "T1.1"]
        assert told.count(("delegation", "helper")) == 1
        assert ("message", "lead") in told
        (row,) = [one for one in await eng.core.store.delegations.of_task(run.id) if one.agent == "helper"]
        assert row.label == "T1.1"


async def test_parts_of_a_task_are_numbered_however_many_there_are(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        for _ in range(11):
            await ctx.delegate("middle", "expert x")
        return text

    made = team(member("lead", "middle"), member("middle", "expert"), member("expert"))
    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(made, {"lead": lead, "middle": passes_on, "expert": shout})
        await finish(eng, "crew", {"text": "x"})
        parts = [f"T1.{number}" for number in range(1, 12)]
        assert {one.label for one in await eng.teams.tasks("T1")} == {"T1", *parts, *(f"{part}.1" for part in parts)}
        agents = [one.agent for one in await eng.teams.tasks("T1") if one.label in parts]
        assert agents == ["middle", *(f"middle#{number}" for number in range(2, 12))]


async def test_what_others_send_comes_in_their_order_and_before_the_end_of_a_child(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.delegate("helper", text)
        return text

    half = asyncio.Event()

    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        for number in range(40):
            await ctx.send("lead", str(number))
            if number == 20:
                half.set()
                await asyncio.sleep(0)
        return text

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", "helper"), member("helper")), {"lead": lead, "helper": helper})
        run = await submit(eng, "crew", {"text": "x"})
        await asyncio.wait_for(half.wait(), 20)
        sender = await first_of(eng, run.id, "crew/lead")
        for number in range(5):
            await eng.runs.send(sender, f"user {number}", sealed=True)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
        news = [event.body for event in await log(eng, sender) if isinstance(event.body, MessageReceived | ChildEnded)]
        texts = [one.message.text for one in news if isinstance(one, MessageReceived)]
        assert [text for text in texts if not text.startswith("user")] == [str(number) for number in range(40)]
        assert [text for text in texts if text.startswith("user")] == sorted(
            text for text in texts if text.startswith("user")
        )
        place = next(at for at, one in enumerate(news) if isinstance(one, ChildEnded))
        assert {str(number) for number in range(40)} <= {
            one.message.text for one in news[:place] if isinstance(one, MessageReceived)
        }
        relayed = [one.text for _, one in await eng.teams.conversation(run.id) if isinstance(one, Said)]
        assert [text for text in relayed if text.isdigit()] == [str(number) for number in range(40)]


async def test_nothing_overtakes_what_is_still_being_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on, sent = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        child = asyncio.create_task(ctx.delegate("helper", text))
        first = (await ctx.receive()).text
        second = (await ctx.receive()).text
        await child
        return f"{first}, {second}"

    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        await reading.wait()
        await ctx.send("lead", "of the child")
        sent.set()
        return text

    async with engine(store, settings=PATIENT) as eng:
        eng.teams.add_team(team(member("lead", "helper"), member("helper")), {"lead": lead, "helper": helper})
        run = await submit(eng, "crew", {"text": "x"})
        await first_of(eng, run.id, "crew/helper")
        sender = await first_of(eng, run.id, "crew/lead")
        read = eng.core.store.runs.inbox

        async def slowly(run: str, after: int = 0) -> Any:
            if run == sender:
                reading.set()
                await go_on.wait()
            return await read(run, after)

        monkeypatch.setattr(eng.core.store.runs, "inbox", slowly)
        await eng.runs.send(sender, "of the user", sealed=True)
        await asyncio.wait_for(sent.wait(), 20)
        go_on.set()
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "of the user, of the child"}, done.error


async def test_an_end_that_the_store_refused_is_not_news_for_the_parent(store: Path) -> None:
    @il.agent
    async def child(ctx: il.Context[dict[str, Any], None], text: str) -> str:
        def change_its_thread() -> int:
            return len(sql(store, "UPDATE threads SET version=version+1 WHERE id=? RETURNING id", ctx.thread_id))

        assert await ctx.step("change", change_its_thread) == 1
        return text

    @il.agent
    async def parent(ctx: il.Context[None, None], thread: str) -> str:
        try:
            await ctx.call(child, "x", thread=thread)
        except ChildFailed as error:
            return error.error.code
        return "it was told of an end that is not there"

    async with engine(store, child, parent, settings=PATIENT) as eng:
        thread = await eng.threads.create()
        done = await finish(eng, "parent", {"thread": thread.id})
        assert done.output == {"text": ThreadConflict.code}, done.error
