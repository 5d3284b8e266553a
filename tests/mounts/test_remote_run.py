"""The skeleton of all mounted runs: recorded before sent, found again, asked once, told of every end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.ids import now
from interlingua.model.events import OutputDelta, QuestionAsked, Recorded, RunRestarted, Thought, Warned
from interlingua.model.run import Caller
from interlingua.mounts.loader import RemoteAgent, local_agents
from tests.kit.engines import PATIENT, bodies, crash, engine, finish, log, parked, question, submit, waits

from .far_side import FarRun, FarSide, Script

wires = pytest.mark.parametrize("cursors", [True, False], ids=["cursors", "repeats"])
OUTPUT = {"text": "so done"}
TALK: Script = [("delta", {"text": "so "}), ("thought", "hm"), ("delta", {"text": "done"}), ("end", OUTPUT)]


def with_question(**question: Any) -> Script:
    return [("delta", {"text": "so "}), ("thought", "hm"), ("ask", {"message": "what?", **question}), *TALK[2:]]


@contextlib.asynccontextmanager
async def local(store: Path, far: FarSide, settings: il.Settings = PATIENT) -> AsyncIterator[il.Engine]:
    async with engine(store, *await local_agents(far), settings=settings) as eng:
        yield eng


async def begin(eng: il.Engine) -> str:
    return (await submit(eng, "far", {"text": "go"})).id


async def ended(eng: il.Engine, run: str) -> il.Run:
    return await eng.runs.wait(run, timeout=20)


async def said(eng: il.Engine, run: str) -> str:
    return "".join(body.delta["text"] for body in await bodies(eng, run, OutputDelta))


async def thoughts(eng: il.Engine, run: str) -> list[str]:
    return [body.text for body in await bodies(eng, run, Thought)]


async def warnings(eng: il.Engine, run: str) -> list[str]:
    return [body.message for body in await bodies(eng, run, Warned)]


# -- beginning and following ----------------------------------------------------------------------------------


@wires
async def test_a_run_shows_what_the_remote_run_tells_and_has_its_output(store: Path, cursors: bool) -> None:
    far = FarSide(TALK, cursors=cursors)
    async with local(store, far) as eng:
        run = await finish(eng, "far", {"text": "go"})
        assert run.output == OUTPUT
        assert (await said(eng, run.id), await thoughts(eng, run.id)) == ("so done", ["hm"])
    assert (far.begun, far.left, far.cancelled) == ([run.id], [run.id], [])


@wires
async def test_the_handle_is_committed_before_the_remote_run_begins(store: Path, cursors: bool) -> None:
    far, seen = FarSide(TALK, cursors=cursors), list[list[str]]()

    async with local(store, far) as eng:

        async def look(what: str, run: FarRun) -> None:
            async with engine(store) as other:
                seen.append([event.body.key for event in await log(other, run.key) if isinstance(event.body, Recorded)])

        far.before = look
        assert (await finish(eng, "far", {"text": "go"})).status is il.Status.SUCCEEDED
    assert seen == [["step:start"]]


@wires
async def test_a_connection_that_breaks_is_replaced_and_nothing_is_shown_twice(store: Path, cursors: bool) -> None:
    far = FarSide([*TALK[:2], ("cut", 3), *TALK[2:]], cursors=cursors)
    async with local(store, far) as eng:
        run = await finish(eng, "far", {"text": "go"})
        assert run.output == OUTPUT
        assert (await said(eng, run.id), await thoughts(eng, run.id)) == ("so done", ["hm"])
    assert (far.begun, far.followed) == ([run.id], 4)


async def test_a_server_that_stays_away_fails_the_run_as_transient(store: Path) -> None:
    far = FarSide([("cut", 1_000_000)])
    far.patience = 0.05
    async with local(store, far) as eng:
        run = await finish(eng, "far", {"text": "go"})
    assert run.error is not None
    assert (run.error.code, run.error.transient) == ("unavailable", True)
    assert run.error.message == "the far side cannot be reached: the line is cut"


@wires
async def test_the_error_of_the_remote_run_is_that_of_the_local_one(store: Path, cursors: bool) -> None:
    async with local(store, FarSide([("fail", "odd")], cursors=cursors)) as eng:
        run = await finish(eng, "far", {"text": "go"})
    assert run.error is not None
    assert (run.error.code, run.error.message, run.error.transient) == ("odd", "it went wrong", True)


async def test_an_output_that_does_not_fit_its_schema_is_a_warning(store: Path) -> None:
    async with local(store, FarSide([("end", {"text": 7})])) as eng:
        run = await finish(eng, "far", {"text": "go"})
        assert run.output == {"text": 7}
        (warning,) = await warnings(eng, run.id)
    assert warning.startswith("the output does not fit the schema that the remote side tells: ")


# -- kills ----------------------------------------------------------------------------------------------------


async def killed(store: Path, far: FarSide, *, until: asyncio.Event) -> str:
    """A run whose process was killed."""
    eng = engine(store, *await local_agents(far), settings=PATIENT)
    await eng.start()
    run = await begin(eng)
    await asyncio.wait_for(until.wait(), 20)
    await crash(eng)
    return run


def killing(far: FarSide, what: str) -> asyncio.Event:
    """Holds a run that is about to send something, for ever, the first time."""
    reached = asyncio.Event()

    async def hold(sending: str, run: FarRun) -> None:
        if sending == what and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    far.before = hold
    return reached


@wires
async def test_a_kill_between_the_record_and_the_request_begins_the_same_remote_run(store: Path, cursors: bool) -> None:
    far = FarSide(TALK, cursors=cursors)
    run = await killed(store, far, until=killing(far, "begin"))
    assert far.begun == []
    async with local(store, far) as eng:
        assert (await ended(eng, run)).output == OUTPUT
        assert await said(eng, run) == "so done"
    assert far.begun == [run]


@wires
async def test_a_kill_in_the_middle_shows_nothing_twice(store: Path, cursors: bool) -> None:
    far = FarSide([*TALK[:2], ("wait", None), *TALK[2:]], cursors=cursors)
    run = await killed(store, far, until=far.waiting)
    far.gate.set()
    async with local(store, far) as eng:
        assert (await ended(eng, run)).output == OUTPUT
        assert (await said(eng, run), await thoughts(eng, run)) == ("so done", ["hm"])
        assert await bodies(eng, run, RunRestarted) == []
    assert far.begun == [run]


@wires
async def test_a_kill_between_the_answer_and_its_sending_sends_the_same_answer(store: Path, cursors: bool) -> None:
    far = FarSide(with_question(id="q"), cursors=cursors)
    reached = killing(far, "answer")
    eng = engine(store, *await local_agents(far), settings=PATIENT)
    await eng.start()
    run = await begin(eng)
    await eng.questions.answer((await question(eng, run)).id, {"text": "this"})
    await asyncio.wait_for(reached.wait(), 20)
    await crash(eng)
    assert far.sent == []
    async with local(store, far) as eng:
        assert (await ended(eng, run)).output == OUTPUT
        assert (await said(eng, run), await thoughts(eng, run)) == ("so done", ["hm"])
        assert len(await bodies(eng, run, QuestionAsked)) == 1
        assert await warnings(eng, run) == []
    assert far.sent == [{"text": "this"}]


@wires
async def test_a_kill_while_a_question_waits_keeps_the_question(store: Path, cursors: bool) -> None:
    far = FarSide(with_question(), cursors=cursors)
    eng = engine(store, *await local_agents(far), settings=PATIENT)
    await eng.start()
    run = await begin(eng)
    asked = await question(eng, run)
    await crash(eng)
    async with local(store, far) as eng:
        await waits(eng, run)
        await eng.questions.answer(asked.id, {"text": "this"})
        assert (await ended(eng, run)).output == OUTPUT
        assert len(await bodies(eng, run, QuestionAsked)) == 1
    assert far.sent == [{"text": "this"}]


async def test_a_run_that_cannot_be_found_again_fails_and_says_so(store: Path) -> None:
    far = FarSide([*TALK[:2], ("wait", None), *TALK[2:]], cursors=False, resumable=False)
    run = await killed(store, far, until=far.waiting)
    async with local(store, far) as eng:
        view = await ended(eng, run)
        assert view.error is not None
        assert (view.error.code, view.error.message) == ("run_lost", "the far side does not find its runs again")
        assert (await said(eng, run), await thoughts(eng, run)) == ("so ", ["hm"])


# -- questions ------------------------------------------------------------------------------------------------


async def test_a_run_that_waits_for_an_answer_is_parked_and_goes_on_with_it(store: Path) -> None:
    far = FarSide(with_question())
    async with engine(store, *await local_agents(far)) as eng:  # parks at once
        run = await begin(eng)
        asked = await question(eng, run)
        await parked(eng, run)
        await eng.questions.answer(asked.id, {"text": "this"})
        assert (await ended(eng, run)).output == OUTPUT
        assert (await said(eng, run), await thoughts(eng, run)) == ("so done", ["hm"])
    assert far.sent == [{"text": "this"}]


async def test_a_question_that_is_answered_elsewhere_is_withdrawn(store: Path) -> None:
    far = FarSide(with_question())
    async with local(store, far) as eng:
        run = await begin(eng)
        asked = await question(eng, run)
        far.elsewhere.set()
        assert (await ended(eng, run)).output == OUTPUT
        assert (await eng.questions.get(asked.id)).state == "withdrawn"
    assert far.sent == []


async def test_an_answer_that_comes_too_late_is_one_warning(store: Path) -> None:
    far = FarSide(with_question())

    async def another(what: str, run: FarRun) -> None:
        if what == "answer":
            far.elsewhere.set()

    far.before = another
    async with local(store, far) as eng:
        run = await begin(eng)
        await eng.questions.answer((await question(eng, run)).id, {"text": "this"}, by=Caller("ann"))
        assert (await ended(eng, run)).output == OUTPUT
        assert await warnings(eng, run) == [
            "the answer given here (by ann) came too late: the question had been answered at far:side before"
        ]


async def test_a_question_that_expires_there_is_left_to_the_remote_side(store: Path) -> None:
    far = FarSide(with_question(until=now() + 100_000))
    async with local(store, far) as eng:
        run = await finish(eng, "far", {"text": "go"})
        assert run.output == OUTPUT
    assert (far.sent, far.cancelled) == ([], [])


async def test_a_question_that_nobody_answers_here_cancels_the_remote_run(store: Path) -> None:
    far = FarSide(with_question())
    settings = il.Settings(question_deadline=0.1, stall_warning=0)
    async with local(store, far, settings) as eng:
        run = await finish(eng, "far", {"text": "go"})
    assert run.error is not None
    assert run.error.code == "question_expired"
    assert far.cancelled == [run.id]


async def test_a_requested_question_that_nobody_answers_is_never_allowed(store: Path) -> None:
    far = FarSide(with_question(until=now() + 100_000), cursors=False)
    async with local(store, far) as eng:
        run = await finish(eng, "far", {"text": "go"})
        assert run.output == OUTPUT
    assert far.sent == [{"text": "nobody"}]


# -- leaving --------------------------------------------------------------------------------------------------


@wires
async def test_a_run_that_is_cancelled_cancels_the_remote_run(store: Path, cursors: bool) -> None:
    far = FarSide([*TALK[:2], ("wait", None), *TALK[2:]], cursors=cursors)
    async with local(store, far) as eng:
        run = await begin(eng)
        await asyncio.wait_for(far.waiting.wait(), 20)
        await eng.runs.cancel(run)
        assert (await ended(eng, run)).status is il.Status.CANCELLED
    assert (far.cancelled, far.left) == ([run], [run])


async def test_a_parked_run_that_is_cancelled_cancels_the_remote_run(store: Path) -> None:
    far = FarSide(with_question())
    async with engine(store, *await local_agents(far)) as eng:
        run = await begin(eng)
        await question(eng, run)
        await parked(eng, run)
        await eng.runs.cancel(run)
        assert (await ended(eng, run)).status is il.Status.CANCELLED
    assert far.cancelled == [run]


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_server_that_stops_leaves_a_remote_run_only_if_it_is_found_again(store: Path, resumable: bool) -> None:
    far = FarSide(with_question(), cursors=False, resumable=resumable)
    async with local(store, far) as eng:
        run = await begin(eng)
        await question(eng, run)
    assert far.cancelled == ([] if resumable else [run])


async def test_a_remote_side_that_cannot_be_told_keeps_no_run_from_ending(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hangs(run: FarRun) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FarRun, "cancel", hangs)
    far = FarSide([("wait", None)])
    settings = il.Settings(cancel_grace=5, stall_warning=0)
    async with local(store, far, settings) as eng:
        run = await begin(eng)
        await asyncio.wait_for(far.waiting.wait(), 20)
        await eng.runs.cancel(run)
        assert (await ended(eng, run)).status is il.Status.CANCELLED
    assert "the far side could not be told in time that a run is over" in [r.getMessage() for r in caplog.records]


# -- agents ---------------------------------------------------------------------------------------------------


class Several(FarSide):
    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        found: list[RemoteAgent] = []
        for name in ("one", "one", "two"):
            (agent,) = await super().agents(wanted)
            agent.card.name, agent.name = name, f"{name} there"
            found.append(agent)
        return found


async def test_agents_of_one_name_are_told_apart_and_a_target_names_one() -> None:
    far = Several(TALK)
    assert [agent.card.name for agent in await local_agents(far)] == ["one", "one-2", "two"]
    assert [agent.card.name for agent in await local_agents(far, "two there")] == ["two"]
    assert [agent.card.key for agent in await local_agents(far, "one-2@1.0.0")] == ["one-2@1.0.0"]
    assert len(await local_agents(far, "three")) == 3  # the caller tells which there are


async def test_an_agent_goes_on_with_a_remote_run_or_says_why_it_cannot() -> None:
    far = FarSide(TALK)
    (agent,) = await local_agents(far)
    assert agent.attach is not None
    assert agent.attach("run-1").card.input_text is None  # the run has its input
    (remote,) = await far.agents()
    remote.no_attach = "there is no such request"

    async def found(wanted: str | None = None) -> list[RemoteAgent]:
        return [remote]

    far.agents = found  # type: ignore[method-assign]
    (agent,) = await local_agents(far)
    assert (agent.attach, agent.no_attach) == (None, "there is no such request")
