"""New code that lives with old runs: `ctx.patched` and `ctx.deprecate_patch`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.events import Recorded, RunBlocked
from tests.kit.engines import bodies, engine, finish, parked, question, submit

Context = il.Context[None, None]
Code = Callable[[Context], Awaitable[str]]


async def _old(ctx: Context) -> str:
    return await ctx.step("old", lambda: "old")


async def _both(ctx: Context) -> str:
    if ctx.patched("faster"):
        await ctx.step("check", lambda: None)
        return await ctx.step("new", lambda: "new")
    return await _old(ctx)


async def _deprecated(ctx: Context) -> str:
    ctx.deprecate_patch("faster")
    await ctx.step("check", lambda: None)
    return await ctx.step("new", lambda: "new")


async def _without(ctx: Context) -> str:
    await ctx.step("check", lambda: None)
    return await ctx.step("new", lambda: "new")


def _agent(code: Code) -> il.Agent[..., object]:
    @il.agent(name="agent", asks=[il.Confirm])
    async def agent(ctx: Context) -> str:
        done = await code(ctx)
        await ctx.ask(il.Confirm("Good?"))
        if code is _both:
            assert ctx.patched("faster") == (done == "new")  # the same answer each time
        await ctx.ask(il.Confirm("Sure?"))
        return done

    return agent


async def _goes_on(store: Path, before: Code, after: Code) -> str:
    async with engine(store, _agent(before)) as eng:
        run = await submit(eng, "agent")
        await question(eng, run.id)
        await parked(eng, run.id)
    async with engine(store, _agent(after)) as eng:
        for _ in range(2):
            await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is None
        return str(done.output["text"])


async def test_runs_of_the_old_code_take_the_old_path_and_new_runs_the_new_one(store: Path) -> None:
    assert await _goes_on(store, _old, _both) == "old"
    assert await _goes_on(store, _both, _both) == "new"
    assert await _goes_on(store, _both, _deprecated) == "new"
    assert await _goes_on(store, _without, _deprecated) == "new"


async def test_a_run_that_has_not_come_there_yet_takes_the_new_path(store: Path) -> None:
    @il.agent(name="agent", asks=[il.Confirm])
    async def before(ctx: Context) -> str:
        await ctx.ask(il.Confirm("Good?"))
        return await _old(ctx)

    @il.agent(name="agent", asks=[il.Confirm])
    async def after(ctx: Context) -> str:
        await ctx.ask(il.Confirm("Good?"))
        return await _both(ctx)

    async with engine(store, before) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
    async with engine(store, after) as eng:
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "new"}
        assert "patch:faster" in [record.key for record in await bodies(eng, run.id, Recorded)]


async def test_a_patch_that_is_taken_out_without_deprecating_it_blocks_its_runs(store: Path) -> None:
    async with engine(store, _agent(_both)) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
    async with engine(store, _agent(_without)) as eng:
        await eng.questions.answer(asked.id, {"approved": True})
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if isinstance(event.body, RunBlocked):
                    break
        assert event.body.message == "the history has patch 'faster' here; the code ended"


@pytest.mark.parametrize("what", ["patched", "deprecate_patch"])
async def test_a_step_does_not_decide_it(store: Path, what: str) -> None:
    @il.agent
    async def agent(ctx: Context) -> str:
        async def work() -> None:
            getattr(ctx, what)("faster")

        try:
            await ctx.step("outer", work)
        except il.StepFailed as failed:
            return failed.error.message
        return "?"

    async with engine(store, agent) as eng:
        assert f"ctx.{what} was called inside step 'outer'" in (await finish(eng, "agent")).output["text"]


async def test_a_plain_handler_has_patches_too(store: Path) -> None:
    @il.agent
    def agent(ctx: il.SyncContext[None, None]) -> str:
        ctx.deprecate_patch("older")
        return str([ctx.patched("faster"), ctx.patched("faster")])

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.output == {"text": "[True, True]"}
        assert [record.key for record in await bodies(eng, run.id, Recorded)] == ["patch:faster"]
