"""Agents that call agents, and messages into a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import AgentNotFound, AlreadyFinished, InvalidInput, InvalidRequest
from interlingua.model.events import ChildCalled, ChildEnded, MessageReceived, QuestionAsked, RunCreated
from interlingua.model.filters import RunFilter
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, kinds, log, parked, question, submit

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


@il.agent
async def shout(text: str) -> str:
    return text.upper()


@il.agent(asks=[il.Confirm])
async def careful(ctx: il.Context[None, None], text: str) -> str:
    verdict = await ctx.ask(il.Confirm(f"Shout {text}?"))
    return text.upper() if verdict.approved else text


@il.agent
async def parent(ctx: il.Context[None, None], text: str) -> str:
    return f"<{await ctx.call(careful, text=text)}>"


@il.agent
async def grandparent(ctx: il.Context[None, None], text: str) -> str:
    output = await ctx.call("parent", {"text": text})
    return f"[{output['text']}]"


@both
async def test_a_child_runs_and_its_output_comes_back(store: Path, settings: il.Settings) -> None:
    @il.agent
    async def caller(ctx: il.Context[None, None]) -> str:
        typed = await ctx.call(shout, text="a")
        by_name = await ctx.call("shout", "b")
        return f"{typed} {by_name['text']}"

    async with engine(store, shout, caller, settings=settings) as eng:
        run = await finish(eng, "caller")
        assert run.output == {"text": "A B"}
        children = await eng.runs.search(RunFilter(parent=run.id))
        assert [child.agent for child in children] == ["shout", "shout"]
        assert all(child.root == run.id for child in children)


async def test_one_root_proves_the_whole_tree(store: Path) -> None:
    async with engine(store, shout, careful, parent, settings=PATIENT) as eng:
        run = await submit(eng, "parent", {"text": "x"})
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        await eng.runs.wait(run.id, timeout=10)
        (called,) = await bodies(eng, run.id, ChildCalled)
        (ended,) = await bodies(eng, run.id, ChildEnded)
        child = await eng.runs.get(called.run)
        assert ended.head == child.head
        (created,) = await bodies(eng, child.id, RunCreated)
        hashes = {event.hash.hex() for event in await log(eng, run.id)}
        assert created.parent == run.id
        assert created.parent_head in hashes


@both
async def test_a_question_of_a_descendant_shows_on_every_ancestor(store: Path, settings: il.Settings) -> None:
    async with engine(store, careful, parent, grandparent, settings=settings) as eng:
        run = await submit(eng, "grandparent", {"text": "hi"})
        asked = await question(eng, run.id)
        assert asked.payload == {"message": "Shout hi?"}
        (relayed,) = await bodies(eng, run.id, QuestionAsked)
        assert relayed.run == asked.run
        everyone = await eng.runs.search(RunFilter(root=run.id))
        assert len(everyone) == 3
        for member in everyone:
            assert (await eng.runs.wait(member.id, timeout=10, settled=True)).status is il.Status.WAITING
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "[<HI>]"}


@pytest.mark.parametrize("crashes", [1, 2, 3])
async def test_a_tree_survives_crashes(store: Path, crashes: int) -> None:
    eng = engine(store, careful, parent, grandparent)
    await eng.start()
    run = await submit(eng, "grandparent", {"text": "hi"})
    asked = await question(eng, run.id)
    for _ in range(crashes):
        await crash(eng)
        eng = engine(store, careful, parent, grandparent)
        await eng.start()
    await eng.questions.answer(asked.id, {"approved": True})
    await crash(eng)
    async with engine(store, careful, parent, grandparent) as last:
        assert (await last.runs.wait(run.id, timeout=20)).output == {"text": "[<HI>]"}
        assert len(await last.runs.search(RunFilter(root=run.id))) == 3
        for member in await last.runs.search(RunFilter(root=run.id)):
            assert await last.runs.verify(member.id) is None


async def test_a_failing_child_raises_with_its_own_error(store: Path) -> None:
    class Broke(il.AgentError):
        code = "broke"
        transient = True

    @il.agent(errors=[Broke])
    async def failing() -> str:
        raise Broke("out of money")

    @il.agent
    async def caller(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.call(failing)
        except il.ChildFailed as error:
            return f"{error.error.code} {error.transient}"
        return "?"

    async with engine(store, failing, caller) as eng:
        assert (await finish(eng, "caller")).output == {"text": "broke True"}


async def test_calling_an_unknown_agent_or_with_bad_input_raises_in_the_caller(store: Path) -> None:
    @il.agent
    async def caller(ctx: il.Context[None, None], name: str) -> str:
        try:
            await ctx.call(name, {"wrong": 1})
        except il.InterlinguaError as error:
            return error.code
        return "?"

    async with engine(store, shout, caller) as eng:
        assert (await finish(eng, "caller", {"name": "nobody"})).output == {"text": "agent_not_found"}
        assert (await finish(eng, "caller", {"name": "shout"})).output == {"text": "invalid_input"}


@both
async def test_cancelling_a_parent_cancels_its_children(store: Path, settings: il.Settings) -> None:
    async with engine(store, careful, parent, settings=settings) as eng:
        run = await submit(eng, "parent", {"text": "x"})
        asked = await question(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=10)).status is il.Status.CANCELLED
        assert (await eng.runs.wait(asked.run, timeout=10)).status is il.Status.CANCELLED
        assert await eng.questions.open() == []


async def test_children_run_side_by_side(store: Path) -> None:
    together = asyncio.Event()
    running = 0

    @il.agent
    async def member(n: int) -> int:
        nonlocal running
        running += 1
        if running == 5:
            together.set()
        await together.wait()
        return n

    @il.agent
    async def caller(ctx: il.Context[None, None]) -> int:
        return sum(await asyncio.gather(*(ctx.call(member, n=n, key=str(n)) for n in range(5))))

    async with engine(store, member, caller, settings=PATIENT) as eng:
        assert (await finish(eng, "caller")).output == {"value": 10}


@both
async def test_messages_reach_the_agent_in_order_and_are_replayed(store: Path, settings: il.Settings) -> None:
    @il.agent
    async def listener(ctx: il.Context[None, None]) -> str:
        return " ".join([(await ctx.receive()).text for _ in range(3)])

    async with engine(store, listener, settings=settings) as eng:
        run = await submit(eng, "listener")
        for text in "abc":
            await eng.runs.send(run.id, text)
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "a b c"}
        assert [m.message.text for m in await bodies(eng, run.id, MessageReceived)] == ["a", "b", "c"]
        with pytest.raises(AlreadyFinished):
            await eng.runs.send(run.id, "too late")


async def test_an_acknowledged_message_survives_a_crash(store: Path) -> None:
    @il.agent
    async def listener(ctx: il.Context[None, None]) -> str:
        return f"{(await ctx.receive()).text} {(await ctx.receive()).text}"

    first = engine(store, listener)
    await first.start()
    run = await submit(first, "listener")
    await first.runs.send(run.id, "one")
    await crash(first)
    async with engine(store, listener) as eng:
        await eng.runs.send(run.id, "two")
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "one two"}


@both
async def test_receiving_times_out(store: Path, settings: il.Settings) -> None:
    @il.agent
    async def listener(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.receive(timeout=0.1)
        except TimeoutError:
            return "silence"
        return "?"

    async with engine(store, listener, settings=settings) as eng:
        assert (await finish(eng, "listener")).output == {"text": "silence"}


async def test_a_message_with_what_is_no_json_is_refused(store: Path) -> None:
    @il.agent
    async def listener(ctx: il.Context[None, None]) -> str:
        return (await ctx.receive()).text

    async with engine(store, listener) as eng:
        run = await submit(eng, "listener")
        with pytest.raises(InvalidRequest):
            await eng.runs.send(run.id, il.DataPart(float("inf")))
        await eng.runs.send(run.id, "fine")
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "fine"}


async def test_a_child_that_its_parent_does_not_wait_for_is_cancelled_with_it(store: Path) -> None:
    @il.agent
    async def impatient(ctx: il.Context[None, None]) -> str:
        calling = asyncio.ensure_future(ctx.call(careful, text="x"))
        while not ctx._run.data.replay.relayed:
            await asyncio.sleep(0.001)
        calling.cancel()
        return "done"

    async with engine(store, careful, impatient, settings=PATIENT) as eng:
        run = await finish(eng, "impatient")
        assert run.output == {"text": "done"}
        (child,) = await eng.runs.search(RunFilter(parent=run.id))
        assert (await eng.runs.wait(child.id, timeout=10)).status is il.Status.CANCELLED
        assert (await kinds(eng, run.id))[-1] == "finished"


async def test_mail_that_nobody_reads_leaves_with_the_run(store: Path) -> None:
    @il.agent
    async def deaf(ctx: il.Context[None, None]) -> str:
        await ctx.thought("here")
        await go.wait()
        return "done"

    go = asyncio.Event()
    async with engine(store, deaf, settings=PATIENT) as eng:
        run = await submit(eng, "deaf")
        execution = eng.core.worker.execution(run.id)
        assert execution is not None
        await eng.core.store.runs.deliver(run.id, "message", b"{}", 1)
        go.set()
        assert (await eng.runs.wait(run.id, timeout=10)).output == {"text": "done"}
        assert await eng.core.store.runs.inbox(run.id) == []


async def test_a_handler_of_which_one_branch_waits_and_another_works_is_not_set_aside_for_ever(store: Path) -> None:
    @il.agent
    async def shouts(text: str) -> str:
        return text.upper()

    @il.agent
    async def torn(ctx: il.Context[None, None], text: str) -> str:
        mail = asyncio.ensure_future(ctx.receive())
        first = await ctx.call(shouts, text=text)
        second = await ctx.call(shouts, text=f"{first} again")
        mail.cancel()
        await asyncio.wait([mail])
        return str(second)

    async with engine(store, shouts, torn) as eng:
        for _ in range(5):
            run = await finish(eng, "torn", {"text": "x"})
            assert run.output == {"text": "X AGAIN"}


@pytest.mark.parametrize("why", ["invalid input", "no such agent"])
async def test_a_child_that_was_refused_is_refused_again_for_the_same_reason(store: Path, why: str) -> None:
    """Whatever would become of the call by then: the handler has gone on with the refusal."""
    seen: list[tuple[type[Exception], str, str]] = []
    ran: list[int] = []

    @il.agent(asks=[il.Confirm])
    async def caller(ctx: il.Context[None, None]) -> str:
        try:
            await ctx.call("picky", {"n": "no number"})
        except (InvalidInput, AgentNotFound) as error:
            seen.append((type(error), error.message, getattr(error, "path", "")))
        await ctx.ask(il.Confirm("Go on?"))
        return "done"

    @il.agent(name="picky")
    async def picky(n: int) -> str:
        ran.append(n)
        return "ran"

    @il.agent(name="picky")
    async def easy(n: Any) -> str:
        ran.append(n)
        return "ran"

    first = [caller, picky] if why == "invalid input" else [caller]
    async with engine(store, *first) as eng:
        run = await submit(eng, "caller")
        await question(eng, run.id)
        await parked(eng, run.id)
    async with engine(store, caller, easy) as eng:
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
        assert await eng.runs.search(RunFilter(parent=run.id)) == []
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][0] is (InvalidInput if why == "invalid input" else AgentNotFound)
    assert ran == []
