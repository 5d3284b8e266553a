"""A process with a mounted run is killed after each event of its log, with every protocol: the remote run is begun
once, and the local one goes on where it stood, or says that it is lost."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.events import OutputDelta, QuestionAsked, RunFinished, RunRestarted, Warned
from interlingua.model.filters import RunFilter
from interlingua.mounts.settings import Access
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_all
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, submit
from tests.kit.wait_for import wait_for

SCHEMES = {
    "connect": "connect+http://HOST/connect",
    "mcp": "mcp+http://HOST/mcp",
    "editor": "editor+ws://HOST/editor",
    "peer": "peer+http://HOST/peer",
    "cap": "cap+http://HOST/cap",
}
SETTINGS: dict[str, dict[str, Any]] = {"editor": {"ask_again_within": 1.0, "quiet_after": 0.1}}
LOST = {"editor"}
"""Their wires find a run again only where it asks: in other moments it is lost, and the run says so."""


@il.agent(asks=[il.AskText])
async def careful(ctx: il.Context[None, None], text: str) -> Any:
    """Says something, asks, and gives back the answer."""
    yield "so "
    answer = await ctx.ask(il.AskText("What else?"))
    yield f"{text} {answer.text}"


@contextlib.asynccontextmanager
async def mounted(there: Server, protocol: str, store: Path) -> AsyncIterator[il.Engine]:
    """A process that has mounted the server. What is not stopped by then was killed."""
    target = SCHEMES[protocol].replace("HOST", there.address.removeprefix("http://"))
    access = Access(settings=SETTINGS.get(protocol, {}))
    agents = await load_all(msgspec.structs.replace(parse(target), access=access))
    eng = engine(store, *agents, settings=PATIENT)
    await eng.start()
    try:
        yield eng
    finally:
        if eng.running:
            await eng.stop()
        for let_go in {agent.let_go for agent in agents if agent.let_go is not None}:
            await let_go()


async def killed_after(there: Server, protocol: str, store: Path, number: int) -> tuple[str, bool]:
    """Begins a run, and kills its process when so many events are committed. Returns its id, and if it was killed
    before its end."""
    async with mounted(there, protocol, store) as eng:
        run = (await submit(eng, "careful", {"text": "hello"})).id
        seen = 0
        async for event in eng.runs.events(run):
            seen += 1
            if seen == number:
                await crash(eng)
                return run, not isinstance(event.body, RunFinished)
            if isinstance(event.body, QuestionAsked):
                await eng.questions.answer(event.body.question.id, {"text": "bye"})
    return run, False


async def gone_on(there: Server, protocol: str, store: Path, run: str) -> None:
    """Another process goes on with the run, whose log is right in the end."""
    async with mounted(there, protocol, store) as eng:
        await wait_for(lambda: settled(eng, run))
        for asked in (await eng.runs.get(run)).questions:
            await eng.questions.answer(asked.id, {"text": "bye"})
        view = await eng.runs.wait(run, timeout=60)
        if protocol in LOST and view.status is il.Status.FAILED:
            assert view.error is not None
            assert (view.error.code, view.error.transient) == ("run_lost", True)
            return
        assert (view.error, view.output) == (None, {"text": "so hello bye"})
        said = "".join(body.delta["text"] for body in await bodies(eng, run, OutputDelta))
        assert said == "so hello bye"
        assert await bodies(eng, run, RunRestarted) == []
        assert len(await bodies(eng, run, QuestionAsked)) == 1
        assert protocol in LOST or await bodies(eng, run, Warned) == []
        assert await eng.runs.verify(run) is None


async def settled(eng: il.Engine, run: str) -> bool:
    view = await eng.runs.get(run)
    return view.status.final or bool(view.questions)


@pytest.mark.parametrize("protocol", SCHEMES)
async def test_a_run_whose_process_is_killed_after_any_event_is_done_once(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with serving(tmp_path / "there.db", [careful], ServeSettings(port=0, engine=QUICK)) as there:
        for number in range(1, 100):
            run, was_killed = await killed_after(there, protocol, store, number)
            if not was_killed:
                break
            await gone_on(there, protocol, store, run)
            remote = await there.engine.runs.search(RunFilter(agent="careful"))
            assert len(remote) <= number, f"begun twice after event {number}"
        assert number > 6
