"""Other code that enters a run of which the log does not say how far it had come."""

from __future__ import annotations

from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.events import RunBlocked
from tests.engine.runs.test_blocked_runs import Project, deployed, project
from tests.kit.engines import PATIENT, blocked, bodies, crash, engine, submit

__all__ = ["project"]

_CODE = """
import asyncio
import interlingua as il

@il.agent
async def worker(ctx: il.Context[None, None]) -> str:
    {before}
    {work}
    {after}
    return "done"
"""
FIRST = {
    "mail": "await ctx.receive()",
    "work": "await asyncio.sleep(60)",
    "step": 'await ctx.step("s", asyncio.sleep, 60)',
}
LATER = {"mail": "await ctx.receive()", "work": "pass", "step": 'await ctx.step("s", asyncio.sleep, 0)'}


def write(project: Project, work: str, *, before: str = "pass", after: str = "pass") -> None:
    project.put(project.file, _CODE.format(work=work, before=before, after=after))


async def interrupted(store: Path | str, project: Project, work: str) -> str:
    """A run that executes when its process is killed."""
    write(project, work)
    eng = engine(store, project.load(), settings=PATIENT)
    await eng.start()
    run = (await submit(eng, "worker")).id
    async for event in eng.runs.events(run):
        if event.kind == "started":
            break
    await crash(eng)
    return run


@pytest.mark.parametrize("kind", FIRST)
async def test_a_typo_ends_no_run_that_has_no_record_yet(store: Path | str, project: Project, kind: str) -> None:
    run = await interrupted(store, project, FIRST[kind])
    write(project, LATER[kind], before="undefined_name")
    async with deployed(store, project) as eng:
        view = await blocked(eng, run)
        assert view.blocked is not None
        assert view.blocked.reason == "failed_on_resume"
        await eng.runs.retry(run)
        while len(await bodies(eng, run, RunBlocked)) < 2:
            await eng.runs.next_hint(run)
        assert not (await eng.runs.get(run)).status.final, "the same code ends it at no later entry either"
    write(project, LATER[kind])
    async with deployed(store, project) as eng:
        if kind == "mail":
            await eng.runs.send(run, "hello")
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "done"}


async def test_the_code_of_before_fails_a_run_that_has_no_record_yet(store: Path | str, project: Project) -> None:
    entered = f"await asyncio.sleep(0 if os.path.exists({str(project.done)!r}) else 60)"
    run = await interrupted(store, project, f"import os; {entered}; raise OSError('no route')")
    project.done.touch()
    async with engine(store, project.load()) as eng:
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.FAILED


@pytest.mark.parametrize("kind", ["mail", "step"])
async def test_an_error_after_the_first_call_of_other_code_fails_the_run(
    store: Path | str, project: Project, kind: str
) -> None:
    run = await interrupted(store, project, FIRST[kind])
    write(project, LATER[kind], after="undefined_name")
    async with deployed(store, project) as eng:
        if kind == "mail":
            await eng.runs.send(run, "hello")
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.FAILED
