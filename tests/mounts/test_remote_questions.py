"""Questions that a remote side asks by requests: the same question is asked here once, whoever repeats it, and one that
is no longer asked is withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.handler.context import Context
from interlingua.engine.handler.mounted_run import MountedRun
from interlingua.model.events import QuestionAsked, QuestionWithdrawn, Warned
from interlingua.mounts.loader import RemoteAgent, local_agents
from interlingua.mounts.remote_questions import Asked, RemoteQuestions, key_of
from interlingua.mounts.remote_run import ENDED, Stretch
from tests.kit.engines import PATIENT, bodies, crash, engine, question, submit

from .far_side import WORDS, FarRun, FarSide

Play = Callable[[RemoteQuestions, MountedRun], Awaitable[Any]]


class Playing(FarSide):
    """A remote side whose run is one function, which gets the questions of the local run and returns the output."""

    def __init__(self, play: Play) -> None:
        super().__init__([], cursors=False)
        self.play = play

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> PlayingRun:  # fmt: skip
        return PlayingRun(self, ctx, input_)


class PlayingRun(FarRun):
    far: Playing
    has_cursors = False

    async def follow(self) -> Stretch:
        return Stretch(ENDED, {"text": str(await self.far.play(self.questions, self.mounted))})


def asked(message: str = "what?", **more: Any) -> Asked:
    return Asked(key=key_of("words", message), type="words", payload={"message": message}, answer=WORDS, **more)


@contextlib.asynccontextmanager
async def playing(store: Path, play: Play) -> AsyncIterator[tuple[il.Engine, str]]:
    async with engine(store, *await local_agents(Playing(play)), settings=PATIENT) as eng:
        yield eng, (await submit(eng, "far", {"text": "go"})).id


async def answered(eng: il.Engine, run: str, *texts: str) -> il.Run:
    for text in texts:
        await eng.questions.answer((await question(eng, run)).id, {"text": text})
    return await eng.runs.wait(run, timeout=20)


async def times_asked(eng: il.Engine, run: str) -> int:
    return len(await bodies(eng, run, QuestionAsked))


async def both(questions: RemoteQuestions, first: Asked, second: Asked) -> list[str]:
    waits = [asyncio.ensure_future(questions.ask(one)) for one in (first, second)]
    return [answer["text"] for answer in await asyncio.gather(*waits)]


async def test_two_questions_in_the_same_words_are_two_questions(store: Path) -> None:
    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        return [(await questions.ask(asked()))["text"] for _ in range(2)]

    async with playing(store, play) as (eng, run):
        assert (await answered(eng, run, "a", "b")).output == {"text": "['a', 'b']"}
        assert await times_asked(eng, run) == 2


async def test_a_question_with_the_same_id_is_the_same_question(store: Path) -> None:
    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        one = await both(questions, asked(named=True), asked(named=True))
        return [*one, (await questions.ask(asked(named=True)))["text"]]

    async with playing(store, play) as (eng, run):
        assert (await answered(eng, run, "a")).output == {"text": "['a', 'a', 'a']"}
        assert await times_asked(eng, run) == 1


@pytest.mark.parametrize(("about", "times"), [(("call", "call"), 1), (("call", "other"), 2), ((None, None), 2)])
async def test_for_one_tool_call_the_same_words_are_the_same_question(
    store: Path, about: tuple[str | None, str | None], times: int
) -> None:
    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        return len(await both(questions, asked(about=about[0]), asked(about=about[1])))

    async with playing(store, play) as (eng, run):
        assert (await answered(eng, run, *"ab"[:times])).output == {"text": "2"}
        assert await times_asked(eng, run) == times


async def test_a_question_that_is_taken_back_is_withdrawn_and_asked_anew_when_it_is_repeated(store: Path) -> None:
    withdrawn = asyncio.Event()

    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        request = asyncio.ensure_future(questions.ask(asked(named=True)))
        await withdrawn.wait()
        request.cancel()
        await asyncio.wait({request})
        return (await questions.ask(asked(named=True)))["text"]

    async with playing(store, play) as (eng, run):
        await question(eng, run)
        withdrawn.set()
        async for event in eng.runs.events(run):
            if isinstance(event.body, QuestionWithdrawn):
                break
        assert (await answered(eng, run, "b")).output == {"text": "b"}
        assert await times_asked(eng, run) == 2


async def test_a_question_that_was_withdrawn_before_a_kill_is_asked_anew_when_it_is_repeated(store: Path) -> None:
    withdrawn, repeats = asyncio.Event(), False

    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        if repeats:
            return (await questions.ask(asked(named=True)))["text"]
        request = asyncio.ensure_future(questions.ask(asked(named=True)))
        while not mounted.open():
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait({request})
        await mounted.committed()
        withdrawn.set()
        return await asyncio.Event().wait()  # until it is killed

    far = Playing(play)
    eng = engine(store, *await local_agents(far), settings=PATIENT)
    await eng.start()
    run = (await submit(eng, "far", {"text": "go"})).id
    await asyncio.wait_for(withdrawn.wait(), 20)
    await crash(eng)
    repeats = True
    async with engine(store, *await local_agents(far), settings=PATIENT) as eng:
        assert (await answered(eng, run, "b")).output == {"text": "b"}
        assert await times_asked(eng, run) == 2


async def test_a_question_whose_connection_is_gone_stays_open_and_is_found_again(store: Path) -> None:
    cut = asyncio.Event()

    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        request = asyncio.ensure_future(questions.ask(asked()))
        await cut.wait()
        questions.is_gone = lambda: True
        request.cancel()
        await asyncio.wait({request})
        return (await questions.ask(asked()))["text"]

    async with playing(store, play) as (eng, run):
        await question(eng, run)
        cut.set()
        assert (await answered(eng, run, "a")).output == {"text": "a"}
        assert await times_asked(eng, run) == 1
        assert await bodies(eng, run, QuestionWithdrawn) == []


async def test_an_answer_that_the_remote_side_did_not_hear_is_given_when_it_asks_again(store: Path) -> None:
    heard = asyncio.Event()

    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        if not heard.is_set():
            await mounted.ask("words", {"message": "what?"}, WORDS, key=f"{asked().key}-1")
            heard.set()  # the process dies before the answer is passed on
            await asyncio.Event().wait()
        return (await questions.ask(asked()))["text"]

    far = Playing(play)
    eng = engine(store, *await local_agents(far), settings=PATIENT)
    await eng.start()
    run = (await submit(eng, "far", {"text": "go"})).id
    await eng.questions.answer((await question(eng, run)).id, {"text": "a"})
    await asyncio.wait_for(heard.wait(), 20)
    await crash(eng)
    async with engine(store, *await local_agents(far), settings=PATIENT) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "a"}
        assert await times_asked(eng, run) == 1
        assert await bodies(eng, run, Warned) == []


async def test_an_answer_that_nobody_wanted_is_a_warning_of_the_run(store: Path) -> None:
    answered_here = asyncio.Event()

    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        if not answered_here.is_set():
            await mounted.ask("words", {"message": "what?"}, WORDS, key=f"{asked().key}-1")
            answered_here.set()
            await asyncio.Event().wait()
        return "went on"

    far = Playing(play)
    eng = engine(store, *await local_agents(far), settings=PATIENT)
    await eng.start()
    run = (await submit(eng, "far", {"text": "go"})).id
    await eng.questions.answer((await question(eng, run)).id, {"text": "a"})
    await asyncio.wait_for(answered_here.wait(), 20)
    await crash(eng)
    async with engine(store, *await local_agents(far), settings=PATIENT) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "went on"}
        (warning,) = await bodies(eng, run, Warned)
    assert warning.message == (
        "the answer given here (by owner) came too late: the question was no longer asked at far:side"
    )


async def test_something_else_under_the_same_id_withdraws_what_was_asked_before(store: Path) -> None:
    async def play(questions: RemoteQuestions, mounted: MountedRun) -> Any:
        first, second = asked("what?", named=True), asked("what else?", named=True)
        second.key = first.key
        request = asyncio.ensure_future(questions.ask(first))
        while not first.place or not mounted.open():
            await asyncio.sleep(0)
        answer = (await questions.ask(second))["text"]
        await asyncio.gather(request, return_exceptions=True)
        return answer

    async with playing(store, play) as (eng, run):
        async for event in eng.runs.events(run):
            if isinstance(event.body, QuestionAsked) and event.body.question.payload == {"message": "what else?"}:
                break
        assert (await answered(eng, run, "a")).output == {"text": "a"}
        (withdrawn,) = await bodies(eng, run, QuestionWithdrawn)
    assert withdrawn.reason == "the remote side asks something else now"
