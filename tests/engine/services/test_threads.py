"""Threads: state over runs, whose turn it is, history, copies and patches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.errors import (
    CheckpointNotFound,
    Conflict,
    InvalidState,
    RunNotFound,
    ThreadBusy,
    ThreadExists,
    ThreadNotFound,
)
from interlingua.model.filters import RunFilter, ThreadFilter
from interlingua.store.sql.store import SqlStore
from tests.kit.engines import PATIENT, crash, engine, finish, gone, question, submit
from tests.kit.wait_for import wait_for


class Chat(msgspec.Struct):
    messages: list[str] = []


@il.agent
async def chat(ctx: il.Context[Chat, None], message: str) -> str:
    ctx.state.messages.append(message)
    return f"{len(ctx.state.messages)}: {message}"


@il.agent(asks=[il.Confirm])
async def holder(ctx: il.Context[Chat, None]) -> str:
    ctx.state.messages.append("held")
    await ctx.ask(il.Confirm("Let go?"))
    return "done"


async def test_state_lasts_over_runs_and_restarts(store: Path) -> None:
    async with engine(store, chat) as eng:
        thread = await eng.threads.create()
        assert (thread.status, thread.values) == ("idle", None)
        assert (await finish(eng, "chat", {"message": "a"}, thread=thread.id)).output == {"text": "1: a"}
    async with engine(store, chat) as eng:
        assert (await finish(eng, "chat", {"message": "b"}, thread=thread.id)).output == {"text": "2: b"}
        now = await eng.threads.get(thread.id)
        assert (now.status, now.values, now.version) == ("idle", {"messages": ["a", "b"]}, 2)


async def test_a_thread_remembers_what_was_said(store: Path) -> None:
    seen: list[list[str]] = []

    @il.agent
    async def listener(ctx: il.Context[None, None], text: str) -> str:
        seen.append([m.text for m in ctx.history])
        await ctx.message("by the way")
        return f"heard {text}"

    async with engine(store, listener) as eng:
        thread = await eng.threads.create()
        for text in ("one", "two"):
            await finish(eng, "listener", {"text": text}, thread=thread.id)
        said = [(m.role, m.text) for m in await eng.threads.messages(thread.id)]
        assert said == [
            ("user", "one"), ("agent", "by the way"), ("agent", "heard one"),
            ("user", "two"), ("agent", "by the way"), ("agent", "heard two"),
        ]  # fmt: skip
    assert seen == [[], ["one", "by the way", "heard one"]]


async def test_history_is_newest_first_and_pages_by_before(store: Path) -> None:
    async with engine(store, chat) as eng:
        thread = await eng.threads.create()
        for text in "abcd":
            await finish(eng, "chat", {"message": text}, thread=thread.id)
        history = await eng.threads.history(thread.id)
        assert [len(c.values["messages"]) for c in history] == [4, 3, 2, 1]
        assert [c.messages for c in history] == [8, 6, 4, 2]
        older = await eng.threads.history(thread.id, before=history[1].id, limit=1)
        assert [c.id for c in older] == [history[2].id]
        with pytest.raises(CheckpointNotFound):
            await eng.threads.history(thread.id, before="nothing")


async def test_a_failed_or_cancelled_run_leaves_the_state_as_it_was(store: Path) -> None:
    @il.agent
    async def broken(ctx: il.Context[Chat, None]) -> str:
        ctx.state.messages.append("half done")
        raise RuntimeError("no")

    async with engine(store, chat, broken, holder) as eng:
        thread = await eng.threads.create()
        await finish(eng, "chat", {"message": "a"}, thread=thread.id)
        await finish(eng, "broken", thread=thread.id)
        after = await eng.threads.get(thread.id)
        assert (after.status, after.values) == ("error", {"messages": ["a"]})
        run = await submit(eng, "holder", thread=thread.id)
        await question(eng, run.id)
        await eng.runs.cancel(run.id)
        await eng.runs.wait(run.id)
        after = await eng.threads.get(thread.id)
        assert (after.status, after.values) == ("idle", {"messages": ["a"]})


async def test_every_entry_starts_from_the_same_copy_of_the_state(store: Path) -> None:
    async with engine(store, holder) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.SUCCEEDED
        assert (await eng.threads.get(thread.id)).values == {"messages": ["held"]}  # not twice


async def test_a_thread_with_a_waiting_run_is_interrupted_and_a_second_run_is_rejected(store: Path) -> None:
    async with engine(store, holder, chat) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        await question(eng, run.id)
        assert (await eng.threads.get(thread.id)).status == "interrupted"
        with pytest.raises(ThreadBusy, match=run.id) as caught:
            await submit(eng, "chat", {"message": "x"}, thread=thread.id)
        assert caught.value.transient
        assert len(await eng.runs.search(RunFilter())) == 1


async def test_enqueued_runs_take_their_turns_in_order(store: Path) -> None:
    async with engine(store, holder, chat) as eng:
        thread = await eng.threads.create()
        first = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, first.id)
        later = [await submit(eng, "chat", {"message": m}, thread=thread.id, when_busy="enqueue") for m in "abc"]
        assert all(run.status is il.Status.PENDING for run in later)
        await eng.questions.answer(asked.id, {"approved": True})
        outputs = [(await eng.runs.wait(run.id, timeout=10)).output["text"] for run in later]
        assert outputs == ["2: a", "3: b", "4: c"]
        assert (await eng.threads.get(thread.id)).status == "idle"


async def test_an_enqueued_run_survives_a_crash(store: Path) -> None:
    first = engine(store, holder, chat)
    await first.start()
    thread = await first.threads.create()
    run = await submit(first, "holder", thread=thread.id)
    asked = await question(first, run.id)
    queued = await submit(first, "chat", {"message": "a"}, thread=thread.id, when_busy="enqueue")
    await crash(first)
    async with engine(store, holder, chat) as eng:
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(queued.id, timeout=10)).output == {"text": "2: a"}


async def test_an_enqueued_run_can_be_cancelled_before_its_turn(store: Path) -> None:
    async with engine(store, holder, chat) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, run.id)
        queued = await submit(eng, "chat", {"message": "a"}, thread=thread.id, when_busy="enqueue")
        last = await submit(eng, "chat", {"message": "b"}, thread=thread.id, when_busy="enqueue")
        await eng.runs.cancel(queued.id)
        assert (await eng.runs.wait(queued.id, timeout=10)).status is il.Status.CANCELLED
        assert (await eng.threads.get(thread.id)).active == run.id
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(last.id, timeout=10)).output == {"text": "2: b"}


@pytest.mark.parametrize("settings", [None, PATIENT], ids=["parked", "in memory"])
async def test_interrupt_cancels_the_run_that_has_the_thread(store: Path, settings: il.Settings | None) -> None:
    async with engine(store, holder, chat, **({"settings": settings} if settings else {})) as eng:
        thread = await eng.threads.create()
        old = await submit(eng, "holder", thread=thread.id)
        await question(eng, old.id)
        new = await submit(eng, "chat", {"message": "now"}, thread=thread.id, when_busy="interrupt")
        assert (await eng.runs.wait(new.id, timeout=10)).output == {"text": "1: now"}
        assert (await eng.runs.get(old.id)).status is il.Status.CANCELLED


@pytest.mark.parametrize("settings", [None, PATIENT], ids=["parked", "in memory"])
async def test_rollback_cancels_and_forgets_the_run_that_has_the_thread(
    store: Path, settings: il.Settings | None
) -> None:
    async with engine(store, holder, chat, **({"settings": settings} if settings else {})) as eng:
        thread = await eng.threads.create()
        old = await submit(eng, "holder", thread=thread.id)
        await question(eng, old.id)
        new = await submit(eng, "chat", {"message": "now"}, thread=thread.id, when_busy="rollback")
        assert (await eng.runs.wait(new.id, timeout=10)).output == {"text": "1: now"}
        await gone(eng, old.id)
        with pytest.raises(RunNotFound):
            await eng.runs.get(old.id)


async def test_a_delayed_run_takes_the_thread_only_when_its_time_has_come(store: Path) -> None:
    async with engine(store, chat) as eng:
        thread = await eng.threads.create()
        later = await submit(eng, "chat", {"message": "later"}, thread=thread.id, delay=0.3)
        assert (await finish(eng, "chat", {"message": "now"}, thread=thread.id)).output == {"text": "1: now"}
        assert (await eng.runs.wait(later.id, timeout=10)).output == {"text": "2: later"}


async def test_a_missing_thread_is_refused_or_created(store: Path) -> None:
    async with engine(store, chat) as eng:
        with pytest.raises(ThreadNotFound):
            await submit(eng, "chat", {"message": "x"}, thread="t1")
        assert await eng.runs.search(RunFilter()) == []
        await finish(eng, "chat", {"message": "x"}, thread="t1", create_thread=True)
        assert (await eng.threads.get("t1")).values == {"messages": ["x"]}


async def test_creating_a_thread_twice_is_refused_or_gives_the_first(store: Path) -> None:
    async with engine(store) as eng:
        first = await eng.threads.create("t1", metadata={"a": 1})
        with pytest.raises(ThreadExists):
            await eng.threads.create("t1")
        again = await eng.threads.create("t1", metadata={"b": 2}, if_exists="keep")
        assert again.metadata == first.metadata


async def test_patching_merges_metadata_and_values_and_makes_a_checkpoint(store: Path) -> None:
    async with engine(store, chat) as eng:
        thread = await eng.threads.create(metadata={"a": 1})
        await finish(eng, "chat", {"message": "x"}, thread=thread.id)
        patched = await eng.threads.patch(thread.id, metadata={"b": 2})
        assert (patched.metadata, patched.version) == ({"a": 1, "b": 2}, 1)
        patched = await eng.threads.patch(thread.id, values_={"messages": ["edited"]})
        assert (patched.values, patched.version) == ({"messages": ["edited"]}, 2)
        assert (await finish(eng, "chat", {"message": "y"}, thread=thread.id)).output == {"text": "2: y"}
        assert [c.values["messages"] for c in await eng.threads.history(thread.id)] == [
            ["edited", "y"],
            ["edited"],
            ["x"],
        ]


async def test_patching_from_a_checkpoint_goes_back_to_it(store: Path) -> None:
    async with engine(store, chat) as eng:
        thread = await eng.threads.create()
        for text in "abc":
            await finish(eng, "chat", {"message": text}, thread=thread.id)
        first = (await eng.threads.history(thread.id))[-1]
        patched = await eng.threads.patch(thread.id, checkpoint=first.id)
        assert patched.values == {"messages": ["a"]}
        assert [m.text for m in await eng.threads.messages(thread.id)] == ["a", "1: a"]
        assert len(await eng.threads.history(thread.id)) == 4  # nothing is forgotten
        with pytest.raises(CheckpointNotFound):
            await eng.threads.patch(thread.id, checkpoint="nothing")


async def test_values_of_a_busy_thread_cannot_be_patched(store: Path) -> None:
    async with engine(store, holder) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        await question(eng, run.id)
        with pytest.raises(ThreadBusy):
            await eng.threads.patch(thread.id, values_={"messages": []})
        assert (await eng.threads.patch(thread.id, metadata={"ok": True})).metadata == {"ok": True}


async def test_a_state_that_changed_under_a_run_fails_it_instead_of_being_overwritten(store: Path) -> None:
    async with engine(store, holder) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        asked = await question(eng, run.id)
        sqlite = eng.core.store
        assert isinstance(sqlite, SqlStore)
        await sqlite.database.write(
            lambda c: c.execute("UPDATE threads SET version=version+1 WHERE id=?", (thread.id,))
        )
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=10)
        assert done.status is il.Status.FAILED
        assert done.error is not None
        assert (done.error.code, done.error.transient) == ("thread_conflict", True)
        assert (await eng.threads.get(thread.id)).active is None


async def test_a_copy_has_its_own_life(store: Path) -> None:
    async with engine(store, chat) as eng:
        thread = await eng.threads.create(metadata={"a": 1})
        for text in "ab":
            await finish(eng, "chat", {"message": text}, thread=thread.id)
        copy = await eng.threads.copy(thread.id)
        assert copy.id != thread.id
        assert (copy.values, copy.metadata) == ({"messages": ["a", "b"]}, {"a": 1})
        await finish(eng, "chat", {"message": "c"}, thread=copy.id)
        assert (await eng.threads.get(thread.id)).values == {"messages": ["a", "b"]}
        assert [len(c.values["messages"]) for c in await eng.threads.history(copy.id)] == [3, 2, 1]
        assert len(await eng.threads.messages(copy.id)) == 6


async def test_deleting_a_thread_needs_it_to_be_idle(store: Path) -> None:
    async with engine(store, holder) as eng:
        thread = await eng.threads.create()
        run = await submit(eng, "holder", thread=thread.id)
        await question(eng, run.id)
        with pytest.raises(Conflict, match="busy"):
            await eng.threads.delete(thread.id)
        await eng.runs.cancel(run.id)
        await eng.runs.wait(run.id)
        await eng.threads.delete(thread.id)
        with pytest.raises(ThreadNotFound):
            await eng.threads.get(thread.id)
        for look in (
            eng.threads.history(thread.id),
            eng.threads.copy(thread.id),
            eng.threads.patch(thread.id, metadata={}),
        ):
            with pytest.raises(ThreadNotFound):
                await look


async def test_threads_are_found_by_status_metadata_and_values(store: Path) -> None:
    async with engine(store, chat, holder) as eng:
        one = await eng.threads.create(metadata={"team": "a"})
        two = await eng.threads.create(metadata={"team": "b"}, caller=il.Caller("ada"))
        await finish(eng, "chat", {"message": "x"}, thread=one.id)
        run = await submit(eng, "holder", thread=two.id)
        await question(eng, run.id)

        async def found(**where: Any) -> list[str]:
            return [thread.id for thread in await eng.threads.search(ThreadFilter(**where))]

        assert await found() == [two.id, one.id]
        assert await found(metadata={"team": "a"}) == [one.id]
        assert await found(status="interrupted") == [two.id]
        assert await found(status="idle") == [one.id]
        assert await found(values={"messages": ["x"]}) == [one.id]
        assert await found(caller="ada") == [two.id]
        assert await found(limit=1, offset=1) == [one.id]


async def test_a_state_that_does_not_fit_its_schema_fails_the_run(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[Chat, None]) -> str:
        ctx.state.messages = [object()]  # type: ignore[list-item]
        return "?"

    async with engine(store, agent, chat) as eng:
        thread = await eng.threads.create()
        run = await finish(eng, "agent", thread=thread.id)
        assert run.error is not None
        assert run.error.code == InvalidState.code
        assert (await finish(eng, "chat", {"message": "still usable"}, thread=thread.id)).status is il.Status.SUCCEEDED


async def test_different_agents_share_a_thread_whose_state_they_understand(store: Path) -> None:
    @il.agent
    async def counter(ctx: il.Context[Chat, None]) -> int:
        return len(ctx.state.messages)

    async with engine(store, chat, counter) as eng:
        thread = await eng.threads.create()
        await finish(eng, "chat", {"message": "a"}, thread=thread.id)
        assert (await finish(eng, "counter", thread=thread.id)).output == {"value": 1}


async def test_unused_threads_are_deleted_after_their_time_when_that_is_asked_for(store: Path) -> None:
    settings = il.Settings(ttl_threads=0.05, sweep_every=0.02, stall_warning=0)
    async with engine(store, settings=settings) as eng:
        await eng.threads.create()

        async def no_threads() -> bool:
            return not await eng.threads.search(ThreadFilter())

        await wait_for(no_threads)


async def test_runs_that_are_submitted_at_once_take_their_turns_in_order(store: Path) -> None:
    said: list[int] = []

    @il.agent
    async def speaker(n: int) -> int:
        said.append(n)
        return n

    async with engine(store, speaker) as eng:
        await eng.threads.create("t")
        made = await asyncio.gather(
            *(submit(eng, "speaker", {"n": n}, thread="t", when_busy="enqueue") for n in range(20))
        )
        for run in made:
            await eng.runs.wait(run.id, timeout=20)
    assert said == list(range(20))
