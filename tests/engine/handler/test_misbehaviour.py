"""Agents that raise, never return, yield garbage or hog the CPU: each has its result, and nothing else is disturbed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.events import ArtifactAdded, MessageSent, RunFinished
from tests.kit.databases import disk_is_busy
from tests.kit.engines import QUICK, engine, finish, log, settle, submit


@il.agent
async def fine(text: str) -> str:
    return text


@il.agent(process=True)
def burn(seconds: float) -> int:
    """Keeps a CPU busy."""
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        n += 1
    return n


@il.agent(process=True)
def count(to: int) -> Iterator[str]:
    for n in range(to):
        yield f"{n} "


@il.agent(process=True)
def quit_process() -> str:
    import os

    os._exit(3)


@il.agent(process=True)
def printing(text: str) -> str:
    print("this must not disturb the pipe")
    raise ValueError(text)


class Unfriendly(Exception):
    def __str__(self) -> str:
        return "\ud800 odd text"


def cyclic() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ValueError("no"), "agent_crashed"),
        (Unfriendly(), "agent_crashed"),
        (il.AgentError("on purpose"), "agent_error"),
        (object(), "invalid_output"),
        ({"text": float("nan")}, "invalid_output"),
        ({1: 2}, "invalid_output"),
        ({"text": 5}, "invalid_output"),
        ({"value": cyclic()}, "too_large"),
        (asyncio.CancelledError(), "agent_crashed"),
        (StopAsyncIteration(), "agent_crashed"),
        (GeneratorExit(), "agent_crashed"),
        (SystemError("odd"), "agent_crashed"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("shape", ["function", "generator"])
async def test_whatever_an_agent_does_wrong_its_run_fails_and_others_go_on(
    store: Path, result: Any, code: str, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def function():  # type: ignore[no-untyped-def]
        if isinstance(result, BaseException):
            raise result
        return result

    async def generator():  # type: ignore[no-untyped-def]
        yield "a"
        if isinstance(result, BaseException):
            raise result
        yield result

    bad = il.agent(name="bad")(function if shape == "function" else generator)
    async with engine(store, bad, fine) as eng:
        run, other = await asyncio.gather(finish(eng, "bad"), finish(eng, "fine", {"text": "x"}))
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.code == code, run.error
        assert other.output == {"text": "x"}
        assert await eng.runs.verify(run.id) is None


@pytest.mark.parametrize("item", [5, ["x"], {"other": 1}, b"x"], ids=["number", "list", "wrong member", "bytes"])
async def test_a_yield_that_cannot_extend_the_output_fails_the_run(store: Path, item: Any) -> None:
    @il.agent
    async def agent() -> AsyncIterator[str]:
        yield "a"
        yield item

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.code in ("invalid_output", "invalid")


@pytest.mark.parametrize("returned", [{"street": 5}, {"number": 1}], ids=["wrong type", "missing member"])
async def test_output_that_does_not_fit_its_schema_fails_the_run_with_the_path(store: Path, returned: Any) -> None:
    class Address(msgspec.Struct):
        street: str
        number: int = 1

    @il.agent
    async def agent() -> Address:
        return returned  # type: ignore[no-any-return]

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.code == "invalid_output"
        assert "street" in run.error.message


async def test_deltas_that_do_not_combine_fail_the_run_and_keep_what_was_said(store: Path) -> None:
    @il.agent
    async def agent() -> AsyncIterator[dict[str, Any]]:
        yield {"a": 1}
        yield {"a": "text"}

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert run.error.code == "invalid_output"
        assert "$.a" in run.error.message
        deltas = [e for e in await log(eng, run.id) if e.kind == "delta"]
        assert len(deltas) == 1


async def test_an_agent_that_never_returns_disturbs_nobody(store: Path) -> None:
    @il.agent
    async def never() -> None:
        await asyncio.Event().wait()

    async with engine(store, never, fine) as eng:
        run = await submit(eng, "never")
        assert (await finish(eng, "fine", {"text": "x"})).output == {"text": "x"}
        assert (await eng.runs.get(run.id)).status is il.Status.RUNNING


async def test_an_agent_that_blocks_the_loop_is_named_in_the_log(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    @il.agent
    async def hog() -> str:
        time.sleep(0.5)
        return "done"

    async with engine(store, hog, settings=msgspec.structs.replace(QUICK, stall_warning=0.1)) as eng:
        assert (await finish(eng, "hog")).output == {"text": "done"}
    (warning,) = [r for r in caplog.records if "event loop" in r.message]
    assert "time.sleep(0.5)" in warning.message
    assert "process=True" in warning.message


async def test_an_agent_that_never_stops_talking_is_cut_off(store: Path) -> None:
    @il.agent
    async def endless() -> AsyncIterator[str]:
        while True:
            yield "x" * 1000

    async with engine(store, endless, fine, settings=msgspec.structs.replace(QUICK, max_log_bytes=300_000)) as eng:
        run, other = await asyncio.gather(finish(eng, "endless"), finish(eng, "fine", {"text": "x"}))
        assert run.error is not None
        assert run.error.code == "too_large"
        assert other.status is il.Status.SUCCEEDED


async def test_an_agent_that_talks_faster_than_the_disk_waits_for_it(store: Path) -> None:
    said = 0
    go = asyncio.Event()

    @il.agent
    async def fast(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        nonlocal said
        await ctx.thought("ready")
        await go.wait()
        for _ in range(20_000):
            said += 1
            yield "x"

    async with engine(store, fast) as eng:
        run = await submit(eng, "fast")
        async for event in eng.runs.events(run.id):
            if event.kind == "thought":
                break
        with disk_is_busy(store):
            go.set()
            await settle()
            assert 0 < said < 3000  # it waits: what it would say next has no place to go
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "x" * 20_000}


async def test_work_in_a_process_comes_back(store: Path) -> None:
    async with engine(store, burn, count) as eng:
        assert (await finish(eng, "burn", {"seconds": 0.01})).output["value"] > 0
        run = await finish(eng, "count", {"to": 5})
        assert run.error is None
        assert run.output == {"text": "0 1 2 3 4 "}


async def test_cancelling_ends_a_process_in_the_middle_of_its_work(store: Path) -> None:
    async with engine(store, burn) as eng:
        run = await submit(eng, "burn", {"seconds": 60})
        async for event in eng.runs.events(run.id):
            if event.kind == "started":
                await eng.runs.cancel(run.id)
        assert (await eng.runs.get(run.id)).status is il.Status.CANCELLED
        assert (await finish(eng, "burn", {"seconds": 0.01})).status is il.Status.SUCCEEDED


async def test_a_process_that_dies_or_raises_fails_only_its_run(store: Path) -> None:
    async with engine(store, quit_process, printing, burn) as eng:
        died = await finish(eng, "quit_process")
        assert died.error is not None
        assert "exit code 3" in died.error.message
        raised = await finish(eng, "printing", {"text": "boo"})
        assert raised.error is not None
        assert (raised.error.code, raised.error.message) == ("agent_crashed", "ValueError: boo")
        assert (await finish(eng, "burn", {"seconds": 0.01})).status is il.Status.SUCCEEDED


async def test_activity_is_in_the_log_as_it_happened(store: Path) -> None:
    @il.agent
    async def busy(ctx: il.Context[None, None]) -> str:
        await ctx.thought("hm")
        await ctx.plan(["first", il.PlanEntry("second", "in_progress", "high")])
        await ctx.tool_call("t1", title="Edit", tool="edit", kind="edit", status="in_progress", input={"path": "a"})
        await ctx.tool_call(
            "t1", status="completed", diffs=[il.Diff("a", "new", "old")], locations=[il.Location("a", 3)]
        )
        await ctx.artifact("whole text", name="report.md")
        await ctx.artifact([il.FilePart(data=b"\x00\xff", media_type="image/png")])
        await ctx.message([il.TextPart("hello"), il.DataPart({"a": 1})])
        await ctx.warn("odd", {"n": 1})
        ctx.usage(tokens=3)
        ctx.usage(tokens=4, model="m")
        return "done"

    async with engine(store, busy) as eng:
        run = await finish(eng, "busy")
        assert run.error is None
        assert run.usage == {"tokens": 7, "model": "m"}
        shown = [e.kind for e in await log(eng, run.id)][2:-1]
        assert shown == [
            "thought", "plan", "tool_call", "tool_call", "artifact", "artifact", "message", "warning",
        ]  # fmt: skip
    async with engine(store, busy) as eng:
        events = await log(eng, run.id)
        assert events[7].body.artifact.parts[0].data == b"\x00\xff"  # type: ignore[union-attr]
        assert isinstance(events[-1].body, RunFinished)


async def test_activity_that_is_no_json_fails_the_run(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.tool_call("t", input=object())
        return "?"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert run.error.code == "invalid_output"


async def test_a_config_is_checked_and_typed(store: Path) -> None:
    class Style(msgspec.Struct):
        style: str = "formal"

    class Needed(msgspec.Struct):
        token: str

    @il.agent
    async def styled(ctx: il.Context[None, Style]) -> str:
        return ctx.config.style

    @il.agent
    async def needy(ctx: il.Context[None, Needed]) -> str:
        return ctx.config.token

    async with engine(store, styled, needy, fine) as eng:
        assert (await finish(eng, "styled")).output == {"text": "formal"}
        assert (await finish(eng, "styled", config={"style": "friendly"})).output == {"text": "friendly"}
        with pytest.raises(il.InterlinguaError, match="/style"):
            await finish(eng, "styled", config={"style": 3})
        with pytest.raises(il.InterlinguaError, match="needs a config with token"):
            await finish(eng, "needy")
        with pytest.raises(il.InterlinguaError, match="takes no config"):
            await finish(eng, "fine", {"text": "x"}, config={"a": 1})


ODD: dict[str, Callable[[il.Context[Any, Any]], Awaitable[None]]] = {
    "message: a number": lambda ctx: ctx.message(5),  # type: ignore[arg-type]
    "message: a number as text": lambda ctx: ctx.message(il.TextPart(5)),  # type: ignore[arg-type]
    "artifact: a number among parts": lambda ctx: ctx.artifact([5], name="x"),  # type: ignore[list-item]
    "artifact: a number as name": lambda ctx: ctx.artifact("x", name=5),  # type: ignore[arg-type]
    "thought": lambda ctx: ctx.thought(5),  # type: ignore[arg-type]
    "plan": lambda ctx: ctx.plan([5]),  # type: ignore[list-item]
    "tool call: a number as id": lambda ctx: ctx.tool_call(5),  # type: ignore[arg-type]
    "tool call: no such status": lambda ctx: ctx.tool_call("t", status="nope"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("odd", ODD)
async def test_what_is_shown_with_a_wrong_type_fails_the_run_and_does_not_stop_it(store: Path, odd: str) -> None:
    @il.agent
    async def shows(ctx: il.Context[Any, Any]) -> None:
        await ODD[odd](ctx)

    async with engine(store, shows, fine) as eng:
        run = await finish(eng, "shows")
        assert run.error is not None
        assert run.error.code == "invalid_output", run.error
        assert (await finish(eng, "fine", {"text": "x"})).output == {"text": "x"}


async def test_a_message_and_an_artifact_take_texts_among_parts(store: Path) -> None:
    report = il.FilePart(text="a,b", name="report.csv")

    @il.agent
    async def gives(ctx: il.Context[Any, Any]) -> None:
        await ctx.message(["here", report])
        await ctx.artifact(["there", report], name="report")

    async with engine(store, gives) as eng:
        run = await finish(eng, "gives")
        bodies = [event.body for event in await log(eng, run.id)]
        [said] = [body.message.parts for body in bodies if isinstance(body, MessageSent)]
        [given] = [body.artifact.parts for body in bodies if isinstance(body, ArtifactAdded)]
        assert (said, given) == ([il.TextPart("here"), report], [il.TextPart("there"), report])
