"""Agents that stand for remote ones: the remote side learns of every end, and is asked and shown through the engine."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.agents.agent import Agent
from interlingua.engine.handler.mounted_run import MOUNTED_FROM, LeftRun, MountedRun, OnCancel, step_place
from interlingua.model.card import AgentCard
from interlingua.model.errors import InvalidAnswer
from interlingua.model.events import CancelRequested, OutputDelta, RunRestarted, Thought, Warned
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, gone, listens, parked, question, submit


class Far:
    """The remote side: what it was told, and what it waits for."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, str]] = []
        self.left = asyncio.Event()  # a handler that was in memory has seen its end
        self.calls = 0

    async def on_cancel(self, left: LeftRun) -> None:
        self.calls += 1
        self.told.append((left.id, left.recorded("start"), left.why))


def card(name: str = "far", **more: Any) -> AgentCard:
    return AgentCard(name, metadata={MOUNTED_FROM: "somewhere"}, **more)


def asking(far: Far, on_cancel: OnCancel | None = None) -> Agent[..., Any]:
    """Starts something, asks, and gives back the answer."""

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        async def start() -> dict[str, Any]:
            return {"handle": 7}

        mounted = MountedRun(ctx)
        try:
            await ctx.step("start", start)
            return {"said": await mounted.ask("pick", {"message": "Which?"}, {"type": "string"}, key="pick")}
        except asyncio.CancelledError:
            if mounted.leaving_for_good:
                far.left.set()
            raise

    return Agent(card(), handler, shape="async", ctx_param="ctx", on_cancel=on_cancel or far.on_cancel)


async def parked_run(eng: il.Engine) -> str:
    run = await submit(eng, "far")
    await question(eng, run.id)
    await parked(eng, run.id)
    return run.id


# -- telling the remote side ----------------------------------------------------------------------------------


async def test_a_parked_run_that_is_cancelled_tells_the_remote_side_what_was_recorded(store: Path) -> None:
    far = Far()
    async with engine(store, asking(far)) as eng:
        run = await parked_run(eng)
        await eng.runs.cancel(run)
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
    assert far.told == [(run, {"handle": 7}, "cancelled")]
    assert not far.left.is_set()


@pytest.mark.parametrize("entered_again", [False, True])
async def test_a_handler_in_memory_sees_to_the_remote_side_itself(store: Path, entered_again: bool) -> None:
    far = Far()
    run = ""
    if entered_again:
        async with engine(store, asking(far)) as eng:
            run = await parked_run(eng)
    async with engine(store, asking(far), settings=PATIENT) as eng:
        if entered_again:
            await eng.runs.send(run, "wake up")
        else:
            run = (await submit(eng, "far")).id
        async with asyncio.timeout(20):
            while (execution := eng.core.worker.execution(run)) is None or not execution.waits.blocked:
                await asyncio.sleep(0)
        await eng.runs.cancel(run)
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
    assert far.left.is_set()
    assert far.told == []


async def test_parking_and_stopping_are_not_leaving_for_good(store: Path) -> None:
    far = Far()
    async with engine(store, asking(far)) as eng:
        run = await parked_run(eng)
    async with engine(store, asking(far), settings=PATIENT) as eng:
        await eng.questions.answer((await question(eng, run)).id, "this")
        assert (await eng.runs.wait(run, timeout=20)).output == {"said": "this"}
    assert not far.left.is_set()
    assert far.told == []


async def test_the_run_ends_although_the_remote_side_cannot_be_told(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(left: LeftRun) -> None:
        raise ConnectionError("no way there")

    async with engine(store, asking(Far(), fails)) as eng:
        run = await parked_run(eng)
        with caplog.at_level(logging.WARNING, "interlingua.engine"):
            await eng.runs.cancel(run)
            assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
    assert any(run in r.getMessage() and "no way there" in r.getMessage() for r in caplog.records)


async def test_the_run_ends_although_telling_takes_for_ever(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped = asyncio.Event()

    async def hangs(left: LeftRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with engine(store, asking(Far(), hangs)) as eng:
        run = await parked_run(eng)
        with caplog.at_level(logging.WARNING, "interlingua.engine"):
            await eng.runs.cancel(run)
            assert (await eng.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
    assert stopped.is_set()
    assert any("could not be told within" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("again", [False, True])
async def test_while_it_tells_a_second_cancel_or_the_end_of_the_engine_cuts_nothing_short(
    store: Path, again: bool
) -> None:
    entered, done = asyncio.Event(), asyncio.Event()
    go_on = asyncio.Event()

    async def takes_its_time(left: LeftRun) -> None:
        entered.set()
        await go_on.wait()
        done.set()

    eng = engine(store, asking(Far(), takes_its_time))
    await eng.start()
    run = await parked_run(eng)
    await eng.runs.cancel(run)
    await entered.wait()
    if again:  # that process dies, and the next one finds the cancel in the log
        await crash(eng)
        entered.clear()
        eng = engine(store, asking(Far(), takes_its_time))
        await eng.start()
        await entered.wait()
    assert (await eng.runs.get(run)).status is il.Status.CANCELLING
    await eng.runs.cancel(run)
    async with asyncio.timeout(20):
        while len(await bodies(eng, run, CancelRequested)) < 2:
            await eng.runs.next_hint(run)
    stopping = asyncio.ensure_future(eng.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert done.is_set()
    async with engine(store) as later:
        assert (await later.runs.get(run)).status is il.Status.CANCELLED


async def test_a_process_that_dies_while_it_tells_leaves_that_to_the_next(store: Path) -> None:
    entered = asyncio.Event()

    async def dies(left: LeftRun) -> None:
        entered.set()
        await asyncio.Event().wait()

    eng = engine(store, asking(Far(), dies))
    await eng.start()
    run = await parked_run(eng)
    await eng.runs.cancel(run)
    await entered.wait()
    await crash(eng)
    far = Far()
    async with engine(store, asking(far)) as again:
        assert (await again.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
    assert far.told == [(run, {"handle": 7}, "cancelled")]


async def test_a_process_that_dies_while_its_handler_stops_leaves_that_to_the_next(store: Path) -> None:
    stopping = asyncio.Event()

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        async def start() -> str:
            return "begun"

        await ctx.step("start", start)
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await asyncio.Event().wait()

    far = Far()

    def made() -> Agent[..., Any]:
        return Agent(card(), handler, shape="async", ctx_param="ctx", on_cancel=far.on_cancel)

    eng = engine(store, made(), settings=il.Settings(cancel_grace=60, sweep_every=0.05, stall_warning=0))
    await eng.start()
    run = await submit(eng, "far")
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run.id):
            if event.kind == "recorded":
                break
    await eng.runs.cancel(run.id)
    await stopping.wait()
    await crash(eng)
    async with engine(store, made()) as again:
        assert (await again.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
    assert far.told == [(run.id, "begun", "cancelled")]


async def test_a_run_that_is_given_up_after_crashes_tells_the_remote_side(store: Path) -> None:
    begun = asyncio.Event()

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        begun.set()
        await asyncio.Event().wait()

    far = Far()
    run = ""
    for _ in range(2):  # the first time it may have been another run; the second time it executed as the suspect
        begun.clear()
        made: Agent[..., Any] = Agent(
            card(), handler, shape="async", ctx_param="ctx", on_cancel=far.on_cancel, retries=2
        )
        eng = engine(store, made)
        await eng.start()
        run = run or (await submit(eng, "far")).id
        await begun.wait()
        await crash(eng)
    async with engine(store, made) as again:
        ended = await again.runs.wait(run, timeout=20)
    assert ended.error is not None
    assert ended.error.code == "run_lost"
    assert far.told == [(run, None, "lost")]


async def test_a_run_that_never_started_has_nobody_to_tell(store: Path) -> None:
    far = Far()
    async with engine(store, asking(far)) as eng:
        run = await submit(eng, "far", delay=3600)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
    assert far.told == []


async def test_a_cancel_with_rollback_tells_the_remote_side_before_the_run_is_gone(store: Path) -> None:
    far = Far()
    async with engine(store, asking(far)) as eng:
        run = await parked_run(eng)
        await eng.runs.cancel(run, rollback=True)
        await gone(eng, run)
    assert [told[0] for told in far.told] == [run]


# -- processes without the agent's code -----------------------------------------------------------------------


async def test_without_the_code_a_cancel_is_left_to_a_process_that_has_it(store: Path) -> None:
    far = Far()
    async with engine(store, asking(far)) as eng:
        run = await parked_run(eng)
    async with engine(store) as other:
        await other.runs.cancel(run)
        async with asyncio.timeout(20):
            while (await other.runs.get(run)).status is not il.Status.CANCELLING:
                await other.runs.next_hint(run)
        await parked(other, run)
        assert far.told == []
        async with engine(store, asking(far)) as eng:
            assert (await other.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
            assert (await eng.runs.get(run)).status is il.Status.CANCELLED
    assert far.told == [(run, {"handle": 7}, "cancelled")]


async def test_without_the_code_a_second_cancel_ends_it_all_the_same(store: Path) -> None:
    far = Far()
    async with engine(store, asking(far)) as eng:
        run = await parked_run(eng)
    async with engine(store) as other:
        await other.runs.cancel(run)
        await parked(other, run)
        assert not (await other.runs.get(run)).status.final
        await other.runs.cancel(run)
        assert (await other.runs.wait(run, timeout=20)).status is il.Status.CANCELLED


async def test_without_the_code_a_run_that_is_not_mounted_is_ended_at_once(store: Path) -> None:
    @il.agent(asks=[il.AskText])
    async def near(ctx: il.Context[Any, Any]) -> str:
        return (await ctx.ask(il.AskText("Well?"))).text

    async with engine(store, near) as eng:
        run = await submit(eng, "near")
        await question(eng, run.id)
    async with engine(store) as other:
        await other.runs.cancel(run.id)
        assert (await other.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED


# -- asking and showing ---------------------------------------------------------------------------------------


async def test_one_type_of_question_may_come_with_another_schema_each_time(store: Path) -> None:
    schemas = {"a": {"type": "string"}, "b": {"type": "integer"}}

    def made(name: str) -> Agent[..., Any]:
        async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
            mounted = MountedRun(ctx)
            first = await mounted.ask("pick", {}, schemas[name], key="first")
            second = await mounted.ask("pick", {}, {"const": first}, key="second")
            return {"both": [first, second]}

        return Agent(card(name), handler, shape="async", ctx_param="ctx")

    async with engine(store, made("a"), made("b")) as eng:
        runs = {name: await submit(eng, name) for name in schemas}
        for name, value, wrong in (("a", "x", 1), ("b", 2, "y")):
            asked = await question(eng, runs[name].id)
            assert (asked.type, asked.answer_schema, asked.prompt) == ("pick", schemas[name], "pick")
            with pytest.raises(InvalidAnswer):
                await eng.questions.answer(asked.id, wrong)
            await eng.questions.answer(asked.id, value)
            async with asyncio.timeout(20):
                async for event in eng.runs.events(runs[name].id):
                    if event.kind == "asked" and event.body.question.id != asked.id:
                        asked = event.body.question
                        break
            assert asked.answer_schema == {"const": value}
            await eng.questions.answer(asked.id, value)
            assert (await eng.runs.wait(runs[name].id, timeout=20)).output == {"both": [value, value]}


@pytest.mark.parametrize(
    ("payload", "prompt", "shown"),
    [
        ({"message": "Which?"}, None, "Which?"),
        ("Plain words", None, "Plain words"),
        ({"n": 1}, None, "pick one"),
        ({"message": "Which?"}, "Better words", "Better words"),
    ],
)
async def test_a_remote_question_has_words_for_a_human_and_options(
    store: Path, payload: Any, prompt: str | None, shown: str
) -> None:
    options = [il.Option("x", "The x")]

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        return {"a": await MountedRun(ctx).ask("pick_one", payload, {}, key="k", prompt=prompt, options=options)}

    agent: Agent[..., Any] = Agent(card(), handler, shape="async", ctx_param="ctx")
    async with engine(store, agent) as eng:
        run = await submit(eng, "far")
        asked = await question(eng, run.id)
        assert (asked.prompt, asked.payload, asked.options) == (shown, payload, options)
        await eng.questions.answer(asked.id, {"any": ["thing"]})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"a": {"any": ["thing"]}}


async def test_a_question_class_may_still_narrow_its_answer(store: Path) -> None:
    @il.agent(asks=[il.Choose])
    async def chooser(ctx: il.Context[Any, Any]) -> str:
        return (await ctx.ask(il.Choose("Which?", [il.Option("x", "X")]))).choice

    async with engine(store, chooser) as eng:
        run = await submit(eng, "chooser")
        asked = await question(eng, run.id)
        assert asked.answer_schema["properties"]["choice"] == {"enum": ["x"]}


async def test_what_a_step_showed_before_a_crash_is_found_and_not_written_twice(store: Path) -> None:
    entered, gate = asyncio.Event(), asyncio.Event()
    found: list[list[Any]] = []

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        mounted = MountedRun(ctx)

        async def read(key: str) -> str:
            before = mounted.shown(key)
            found.append(before)
            for body in before:
                await mounted.show(body)
            if not before:
                await mounted.show(Thought("hm", step=step_place(key)))
                await mounted.show(OutputDelta({"text": "one"}, step_place(key)))
            entered.set()
            await gate.wait()
            await mounted.show(OutputDelta({"text": " two"}, step_place(key)))
            return "read"

        await ctx.step("read", read, "read-1", key="read-1")

    made: Agent[..., Any] = Agent(card(), handler, shape="async", ctx_param="ctx")
    eng = engine(store, made, settings=QUICK)
    await eng.start()
    run = await submit(eng, "far")
    await entered.wait()
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, OutputDelta):
                break
    await crash(eng)
    gate.set()
    async with engine(store, made) as again:
        assert (await again.runs.wait(run.id, timeout=20)).output == {"text": "one two"}
        assert [type(body) for body in found[1]] == [Thought, OutputDelta]
        assert len(await bodies(again, run.id, Thought)) == 1
        assert "".join(d.delta["text"] for d in await bodies(again, run.id, OutputDelta)) == "one two"
        assert await bodies(again, run.id, RunRestarted) == []


async def test_an_answer_that_was_on_its_way_when_its_question_was_withdrawn_is_said_to_have_come_too_late(
    store: Path,
) -> None:
    answered, gate = asyncio.Event(), asyncio.Event()

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        mounted = MountedRun(ctx)
        waits = asyncio.ensure_future(mounted.ask("pick", {"message": "Which?"}, {"type": "string"}, key="pick"))
        await answered.wait()
        mounted.withdraw("pick", "the server no longer asks")
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await ctx.thought("it asks no more")
        await gate.wait()
        await ctx.thought("it is done")
        return {"said": "theirs"}

    made: Agent[..., Any] = Agent(card(), handler, shape="async", ctx_param="ctx")
    settings = il.Settings(park_after=60, sweep_every=60, stall_warning=0)
    eng = engine(store, made, settings=settings)
    await eng.start()
    run = await submit(eng, "far")
    asked = await question(eng, run.id)
    await eng.core.store.questions.answer(asked.id, "ours", "ada", 1)  # its worker has not heard of it yet
    answered.set()
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                eng.core.worker.notify_run(run.id, owner=eng.core.worker.id)
            elif event.kind == "warning":
                break
    await crash(eng)
    gate.set()
    async with engine(store, made) as again:
        assert (await again.runs.wait(run.id, timeout=20)).output == {"said": "theirs"}
        (late,) = await bodies(again, run.id, Warned)
        assert late.message == ("the answer given here (by ada) came too late: the question had been withdrawn before")
        assert late.details == {"question": asked.id}
        assert [body.text for body in await bodies(again, run.id, Thought)] == ["it asks no more", "it is done"]
        assert await bodies(again, run.id, RunRestarted) == []
        assert (await again.questions.get(asked.id)).state == "answered"


# -- who stays in memory to listen ----------------------------------------------------------------------------


def listening(answered: asyncio.Event) -> Agent[..., Any]:
    """Asks for as long as the remote side does."""

    async def handler(ctx: il.Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002
        async def moved_on() -> None:
            await answered.wait()

        try:
            said = await MountedRun(ctx).ask_while(
                moved_on, "pick", {"message": "Which?"}, {"type": "string"}, key="pick"
            )
        except il.QuestionExpired:
            said = "answered there"
        return {"said": said}

    return Agent(card(), handler, shape="async", ctx_param="ctx")


async def asked_of(eng: il.Engine) -> str:
    run = await submit(eng, "far")
    await question(eng, run.id)
    return run.id


async def test_of_runs_that_wait_for_what_may_be_answered_there_those_with_the_newest_questions_stay(
    store: Path,
) -> None:
    answered = asyncio.Event()
    settings = msgspec.structs.replace(QUICK, max_listening=2)
    async with engine(store, listening(answered), settings=settings) as eng:
        first, second = await asked_of(eng), await asked_of(eng)
        for run in (first, second):
            await listens(eng, run)
        third = await asked_of(eng)
        await listens(eng, third)
        await parked(eng, first)
        row = await eng.core.store.runs.get(first)
        assert row is not None
        assert row.wake_at is not None, "it will look"
        answered.set()
        for run in (second, third):
            assert (await eng.runs.wait(run, timeout=20)).output == {"said": "answered there"}
        assert not (await eng.runs.get(first)).status.final
        await eng.questions.answer((await question(eng, first)).id, "here")
        assert (await eng.runs.wait(first, timeout=20)).output is not None
        assert len(eng.core.worker.listeners) == 0


async def test_a_run_that_listens_is_answered_here_and_cancelled_here_like_any_other(store: Path) -> None:
    settings = msgspec.structs.replace(QUICK, max_listening=2)
    async with engine(store, listening(asyncio.Event()), settings=settings) as eng:
        one, two = await asked_of(eng), await asked_of(eng)
        for run in (one, two):
            await listens(eng, run)
        await eng.questions.answer((await question(eng, one)).id, "here")
        assert (await eng.runs.wait(one, timeout=20)).output == {"said": "here"}
        await eng.runs.cancel(two)
        assert (await eng.runs.wait(two, timeout=20)).status is il.Status.CANCELLED
        assert len(eng.core.worker.listeners) == 0
