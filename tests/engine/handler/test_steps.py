"""Code inside steps: what it may do, which ids it gets, and whose output it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import interlingua as il
from interlingua.model.events import ArtifactAdded, Recorded, RunRestarted, Thought, ToolCall
from tests.engine.log.test_replay import output_of
from tests.kit.engines import PATIENT, bodies, crash, engine, finish, kinds, question, submit
from tests.kit.wait_for import wait_for

Context = il.Context[None, None]
REFUSED: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "step": lambda ctx: ctx.step("inner", lambda: 1),
    "ask": lambda ctx: ctx.ask(il.Confirm("Good?")),
    "call": lambda ctx: ctx.call("other"),
    "delegate": lambda ctx: ctx.delegate("other", "do it"),
    "tool": lambda ctx: ctx.tool("server", "tool"),
    "send": lambda ctx: ctx.send("other", "hello"),
    "receive": lambda ctx: ctx.receive(),
    "sleep": lambda ctx: ctx.sleep(0.01),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_records_or_waits_is_refused_inside_a_step(store: Path, what: str) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        async def work() -> None:
            await REFUSED[what](ctx)

        try:
            await ctx.step("outer", work)
        except il.StepFailed as failed:
            return failed.error.message
        return "?"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is None
        assert f"ctx.{what} was called inside step 'outer'" in run.output["text"]
        assert [record.key for record in await bodies(eng, run.id, Recorded)] == ["step@/1:outer"]


async def test_a_plain_handler_is_refused_it_too(store: Path) -> None:
    @il.agent
    def agent(ctx: il.SyncContext[None, None]) -> str:
        try:
            ctx.step("outer", lambda: ctx.sleep(1))
        except il.StepFailed as failed:
            return failed.error.message
        return "?"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert "ctx.sleep was called inside step 'outer'" in run.output["text"]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_ids_made_inside_a_step_shift_nothing_and_stay_the_same_when_it_is_tried_again(
    store: Path, plain: bool
) -> None:
    seen: list[tuple[str, str, float]] = []
    tries = 0

    def make(ctx: Context) -> str:
        nonlocal tries
        tries += 1
        seen.append((ctx.uuid(), ctx.uuid(), ctx.random()))
        ctx.now()
        if tries < 3:
            raise ValueError("again")
        return seen[-1][0]

    async def make_later(ctx: Context) -> str:
        return make(ctx)

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        first = ctx.uuid()
        inner = await ctx.step("make", make if plain else make_later, ctx, retries=3, backoff=0.001)
        last = ctx.uuid()
        await ctx.ask(il.Confirm("Good?"))
        return f"{first} {inner} {last}"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        keys = [record.key for record in await bodies(eng, run.id, Recorded)]
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        records = {record.key: record.value for record in await bodies(eng, run.id, Recorded)}
    assert keys[0] == "uuid@/1:"
    assert keys[-2:] == ["step@/2:make", "uuid@/3:"]
    assert tries == 3
    assert len(set(seen)) == 1
    assert seen[0][0] != seen[0][1]
    assert done.output == {"text": f"{records['uuid@/1:']} {seen[0][0]} {records['uuid@/3:']}"}


async def test_a_step_that_a_crash_cut_short_gets_the_same_id_again(store: Path) -> None:
    seen: list[str] = []

    @il.agent
    async def agent(ctx: Context) -> str:
        async def pay() -> None:
            seen.append(ctx.uuid())
            if len(seen) == 1:
                await asyncio.Event().wait()

        await ctx.step("pay", pay)
        return "paid"

    eng = await engine(store, agent, settings=PATIENT).__aenter__()
    run = await submit(eng, "agent")
    await wait_for(lambda: seen)
    await crash(eng)
    async with engine(store, agent) as eng:
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "paid"}
    assert len(seen) == 2
    assert len(set(seen)) == 1


@pytest.mark.parametrize("how", ["emit", "yield"])
async def test_what_a_step_showed_stays_after_a_wait(store: Path, how: str) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> None:
        async def tokens() -> None:
            for number in (1, 2):
                await ctx.emit(f"token{number} ")
                await ctx.thought(f"thinking {number}")
            await ctx.artifact("file", name="result")

        async def stream() -> Any:
            for number in (1, 2):
                yield f"token{number} "

        await ctx.step("model", tokens if how == "emit" else stream)
        await ctx.ask(il.Confirm("Good?"))
        await ctx.emit("END")

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "token1 token2 END"}
        assert "restarted" not in await kinds(eng, run.id)
        if how == "emit":
            assert {body.step for body in await bodies(eng, run.id, Thought)} == {"step@/1:model"}
            assert len(await bodies(eng, run.id, ArtifactAdded)) == 1


async def test_what_a_plain_step_showed_stays_after_a_wait(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    def agent(ctx: il.SyncContext[None, None]) -> None:
        def tokens() -> None:
            for number in (1, 2):
                ctx.emit(f"token{number} ")

        ctx.step("model", tokens)
        ctx.ask(il.Confirm("Good?"))
        ctx.emit("END")

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "token1 token2 END"}
        assert "restarted" not in await kinds(eng, run.id)


async def test_a_step_that_is_tried_again_voids_only_what_it_showed_itself(store: Path) -> None:
    """A thought or a tool call of the attempt that failed is void; what another branch showed meanwhile stands."""
    failed, shown = asyncio.Event(), asyncio.Event()
    tries = 0

    @il.agent
    async def agent(ctx: Context) -> None:
        async def flaky() -> None:
            nonlocal tries
            tries += 1
            await ctx.thought(f"try {tries}")
            await ctx.tool_call("call", title=f"try {tries}")
            await ctx.emit(f"try {tries} ")
            if tries == 1:
                failed.set()
                await shown.wait()
                raise ValueError("no luck")

        async def beside() -> None:
            await failed.wait()
            await ctx.thought("beside")
            await ctx.emit("beside ")
            await ctx.emit("more ")
            shown.set()

        await asyncio.gather(ctx.step("flaky", flaky, retries=1, backoff=0.001), beside())

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.output == {"text": "beside more try 2 "}
        events = [event async for event in eng.runs.events(run.id, follow=False)]
    assert output_of(events) == run.output
    (restart,) = [event.body for event in events if isinstance(event.body, RunRestarted)]
    standing = [e for e in events if e.seq <= restart.keep or e.seq > _seq_of(events, restart)]
    assert [e.body.text for e in standing if isinstance(e.body, Thought)] == ["beside", "try 2"]
    assert [e.body.title for e in standing if isinstance(e.body, ToolCall)] == ["try 2"]


def _seq_of(events: list[il.Event], body: Any) -> int:
    return next(event.seq for event in events if event.body is body)


async def test_what_an_attempt_showed_that_a_crash_cut_short_is_void(store: Path) -> None:
    tries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> None:
        async def model() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                await ctx.emit("half a ")
                await asyncio.Event().wait()
            await ctx.emit("whole ")

        await ctx.step("model", model)
        await ctx.ask(il.Confirm("Good?"))
        await ctx.emit("END")

    eng = await engine(store, agent, settings=PATIENT).__aenter__()
    run = await submit(eng, "agent")
    async for event in eng.runs.events(run.id):
        if event.kind == "delta":
            break
    await crash(eng)
    async with engine(store, agent) as eng:
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "whole END"}
        assert output_of([event async for event in eng.runs.events(run.id, follow=False)]) == {"text": "whole END"}


class Pair(NamedTuple):
    left: int
    right: int


async def test_a_result_has_the_same_type_at_first_and_in_replay(store: Path) -> None:
    seen: list[Any] = []

    def plain():  # type: ignore[no-untyped-def]
        return 1, [(2, 3)], {"four": (5,)}

    def annotated() -> tuple[int, int]:
        return 1, 2

    def named() -> Pair:
        return Pair(1, 2)

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        values = [await ctx.step("plain", plain), await ctx.step("annotated", annotated)]
        values.append(await ctx.step("named", named))
        seen.append(values)
        await ctx.ask(il.Confirm("Good?"))
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).error is None
    first, second = seen
    assert first == second == [[1, [[2, 3]], {"four": [5]}], (1, 2), Pair(1, 2)]
    assert [type(value) for value in first] == [type(value) for value in second] == [list, tuple, Pair]
