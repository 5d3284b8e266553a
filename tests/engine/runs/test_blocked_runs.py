"""Runs that the code cannot go on with: they are blocked, keep everything, and go on by themselves with other code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.agents.imported_files import imports_of
from interlingua.model.events import CodeChanged, RunBlocked, RunCreated, Warned
from interlingua.model.filters import RunFilter
from interlingua.model.run import Blocked
from interlingua.server.health import Probes
from interlingua.server.loading.file import agents_of_file, forget_modules
from interlingua.server.metrics import render
from tests.kit.engines import QUICK, blocked, bodies, engine, kinds, parked, question, settle, submit

_GOOD = """
import interlingua as il

def charge(amount: int) -> str:
    with open({done!r}, "a") as file:
        file.write("charged\\n")
    return f"charged {{amount}}"

@il.agent(asks=[il.Confirm])
async def payer(ctx: il.Context[None, None], amount: int = 1) -> str:
    {before}
    receipt = await ctx.step("charge", charge, amount)
    if (await ctx.ask(il.Confirm("Send it?"))).approved:
        {after}
        return f"{{receipt}}, {version}"
    return "kept"
"""


class Project:
    """A folder with an agents file that changes from deploy to deploy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "payer_agents.py"
        self.done = folder / "done.txt"
        self._times = itertools.count(1_000_000_000_000_000_000, 1_000_000_000)

    def write(self, version: str, *, before: str = "pass", after: str = "pass") -> None:
        self.put(self.file, _GOOD.format(done=str(self.done), version=version, before=before, after=after))

    def put(self, file: Path, text: str) -> None:
        file.write_text(text)
        time = next(self._times)  # no two deploys are of the same moment, however fast the test is
        os.utime(file, ns=(time, time))

    def load(self) -> il.Agent[..., Any]:
        forget_modules(imports_of(self.file))
        (agent,) = agents_of_file(self.file)
        return agent

    @property
    def charged(self) -> int:
        return len(self.done.read_text().splitlines()) if self.done.exists() else 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "shop"
    folder.mkdir()
    return Project(folder)


async def asked(store: Path | str, project: Project) -> tuple[str, str]:
    """A run of the good code that waits for an answer, and its question."""
    project.write("v1")
    async with engine(store, project.load()) as eng:
        run = await submit(eng, "payer", {"amount": 10})
        asked = await question(eng, run.id)
        await parked(eng, run.id)
    return run.id, asked.id


@contextlib.asynccontextmanager
async def deployed(store: Path | str, project: Project) -> AsyncIterator[il.Engine]:
    async with engine(store, project.load()) as eng:
        yield eng


async def test_a_deploy_with_a_typo_ends_no_waiting_run_and_its_fix_goes_on(
    store: Path | str, project: Project
) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        view = await blocked(eng, run)
        assert view.status is il.Status.RUNNING
        assert view.blocked is not None
        assert view.blocked.reason == "failed_on_resume"
        assert "undefined_name" in view.blocked.message
        assert eng.core.worker.execution(run) is None
    project.write("v3")
    async with deployed(store, project) as eng:
        done = await eng.runs.wait(run, timeout=20)
        assert done.output == {"text": "charged 10, v3"}
        assert done.blocked is None
        assert len(await bodies(eng, run, RunBlocked)) == 1
        assert len(await bodies(eng, run, CodeChanged)) == 2
    assert project.charged == 1


async def test_an_answer_to_a_blocked_run_is_kept(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with deployed(store, project) as eng:
        await eng.runs.send(run, "are you there?")  # wakes it
        view = await blocked(eng, run)
        assert view.status is il.Status.WAITING
        assert [one.id for one in view.questions] == [asked_]
        await eng.questions.answer(asked_, {"approved": True})
        await eng.runs.send(run, "hello")
        await settle()
        assert len(await bodies(eng, run, RunBlocked)) == 1, "nothing wakes it"
        assert eng.core.worker.execution(run) is None
    project.write("v3")
    async with deployed(store, project) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v3"}


async def test_a_fix_in_an_imported_module_wakes_a_blocked_run(store: Path | str, project: Project) -> None:
    prices = project.folder / "payer_prices.py"
    project.put(prices, "def check() -> None:\n    pass\n")
    run, asked_ = await asked(store, project)
    project.write("v2", before="from payer_prices import check; check()")
    project.put(prices, "def check() -> None:\n    raise KeyError('gone')\n")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
        await settle()
        assert len(await bodies(eng, run, RunBlocked)) == 1
    async with deployed(store, project) as eng:  # the same code again
        await settle()
        assert len(await bodies(eng, run, RunBlocked)) == 1
        assert (await eng.runs.get(run)).blocked is not None
    project.put(prices, "def check() -> None:\n    print('fine')\n")
    async with deployed(store, project) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v2"}


async def test_a_reload_with_a_fix_goes_on_at_once(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with engine(store, broken := project.load()) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
        project.write("v3")
        eng.teams.exchange([broken], [project.load()])
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v3"}


async def test_old_and_new_replicas_on_one_store_do_not_pass_a_run_back_and_forth(
    store: Path | str, project: Project
) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    old = engine(store, project.load())
    async with old:
        await old.questions.answer(asked_, {"approved": True})
        await blocked(old, run)
        project.write("v3", after="await ctx.ask(il.Confirm('Really?'))")
        async with deployed(store, project) as new:
            async with asyncio.timeout(20):
                while not (questions := await new.questions.open(run=run)):
                    await new.runs.next_hint(run)
            await parked(new, run)
            for _ in range(3):  # what wakes it is for the new one, however often the old one looks
                await new.runs.send(run, "still there?")
                old.core.worker.claims.wake()
                await settle()
            await old.questions.answer(questions[0].id, {"approved": True})
            done = await new.runs.wait(run, timeout=20)
            assert done.output == {"text": "charged 10, v3"}
            assert len(await bodies(new, run, RunBlocked)) == 1
            assert len(await bodies(new, run, CodeChanged)) == 2
    assert project.charged == 1


async def test_code_that_is_rolled_back_leaves_no_run_without_a_word(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with engine(store, old := project.load()) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
    project.write("v3", after="await ctx.ask(il.Confirm('Really?'))")
    async with deployed(store, project) as eng:
        again = (await question(eng, run)).id
        await parked(eng, run)
        assert (await eng.runs.get(run)).blocked is None
    async with engine(store, old) as eng:
        assert (await eng.runs.get(run)).blocked is None
        await eng.questions.answer(again, {"approved": True})
        view = await blocked(eng, run)
        assert view.blocked is not None
        assert view.blocked.reason == "no_code"
        assert "it went on with other code, which is gone" in view.blocked.message
        assert [one.id for one in await eng.runs.search(RunFilter(blocked=True))] == [run]
        assert (await eng.runs.blocked_report.counts())["no_code"] == 1
    async with engine(store) as eng:  # nor is that code there any more
        view = await blocked(eng, run)
        assert view.blocked is not None
        assert "which nobody serves" in view.blocked.message
        assert [one.id for one in await eng.runs.search(RunFilter(blocked=True))] == [run]
        assert (await eng.runs.blocked_report.counts())["no_code"] == 1
    async with engine(store, old) as eng:
        await eng.runs.retry(run)
        async with asyncio.timeout(20):
            while len(await bodies(eng, run, RunBlocked)) < 2:
                await eng.runs.next_hint(run)
    async with deployed(store, project) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v3"}


async def test_a_blocked_run_can_be_cancelled(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
        await eng.runs.cancel(run)
        done = await eng.runs.wait(run, timeout=20)
        assert done.status is il.Status.CANCELLED
        assert done.blocked is None


async def test_a_blocked_child_ends_with_its_parent(store: Path | str, project: Project) -> None:
    project.write("v1")

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        await ctx.call("payer", amount=3)
        return "done"

    async with engine(store, project.load(), parent) as eng:
        run = await submit(eng, "parent")
        asked_ = (await question(eng, run.id)).id
        child = (await eng.questions.open(run=run.id))[0].run
        await parked(eng, child)
        await parked(eng, run.id)
    project.write("v2", before="undefined_name")
    async with engine(store, project.load(), parent) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, child)
        async with asyncio.timeout(20):
            while not (told := await bodies(eng, run.id, Warned)):
                await eng.runs.next_hint(run.id)
        assert told[0].message.startswith(f"agent payer (run {child}) is blocked: ")
        assert (await eng.runs.get(run.id)).status is il.Status.RUNNING
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert (await eng.runs.wait(child, timeout=20)).status is il.Status.CANCELLED


async def test_an_unexpected_error_after_the_last_record_fails_the_run(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", after="undefined_name")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        done = await eng.runs.wait(run, timeout=20)
        assert done.status is il.Status.FAILED
        assert done.error is not None
        assert done.error.code == "agent_crashed"


async def test_an_unexpected_error_on_the_first_entry_fails_the_run(store: Path | str, project: Project) -> None:
    project.write("v1", before="undefined_name")
    async with deployed(store, project) as eng:
        run = await submit(eng, "payer")
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.FAILED


async def test_an_error_of_the_agents_own_ends_a_resumed_run(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="raise il.AgentError('closed for today')")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        done = await eng.runs.wait(run, timeout=20)
        assert done.status is il.Status.FAILED
        assert done.error is not None
        assert done.error.message == "closed for today"


async def test_input_that_new_code_does_not_take_blocks(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2")
    project.put(project.file, project.file.read_text().replace("amount: int = 1", "amount: list[int]"))
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        view = await blocked(eng, run)
        assert view.blocked is not None
        assert view.blocked.reason == "failed_on_resume"


async def test_a_recorded_value_that_new_code_does_not_take_blocks(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2")
    text = project.file.read_text().replace("amount: int) -> str", "amount: int) -> list[int]")
    project.put(project.file, text.replace("    receipt =", "    receipt: object ="))
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        view = await blocked(eng, run)
        assert view.blocked is not None
        assert view.blocked.reason == "failed_on_resume"
        assert "the code cannot read the result of step 'charge'" in view.blocked.message
    project.write("v3")
    async with deployed(store, project) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v3"}


_READER = """
import interlingua as il

@il.agent
async def reader(ctx: il.Context[None, None]) -> str:
    {before}
    first = await ctx.receive()
    {after}
    return first.text
"""


async def test_a_typo_ends_no_run_that_waits_for_mail(store: Path | str, project: Project) -> None:
    project.put(project.file, _READER.format(before="pass", after="pass"))
    async with deployed(store, project) as eng:
        run = (await submit(eng, "reader")).id
        await parked(eng, run)
    project.put(project.file, _READER.format(before="undefined_name", after="pass"))
    async with deployed(store, project) as eng:
        await eng.runs.send(run, "hello")
        assert (await blocked(eng, run)).status is il.Status.RUNNING
    project.put(project.file, _READER.format(before="pass", after="fixed = True"))
    async with deployed(store, project) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "hello"}


async def test_an_error_after_the_mail_was_read_fails_the_run(store: Path | str, project: Project) -> None:
    project.put(project.file, _READER.format(before="pass", after="undefined_name"))
    async with deployed(store, project) as eng:
        run = (await submit(eng, "reader")).id
        await parked(eng, run)
        await eng.runs.send(run, "hello")
        assert (await eng.runs.wait(run, timeout=20)).status is il.Status.FAILED


async def test_the_log_says_which_code_a_run_began_with(store: Path | str, project: Project) -> None:
    project.write("v1")
    first, again = project.load(), project.load()
    async with engine(store, first) as eng:
        run = await submit(eng, "payer")
        (created,) = await bodies(eng, run.id, RunCreated)
        assert created.code == first.code != ""
        await question(eng, run.id)
    async with engine(store, again) as eng:
        assert again.code == first.code
        asked_ = await question(eng, run.id)
        await eng.questions.answer(asked_.id, {"approved": False})
        await eng.runs.wait(run.id, timeout=20)
        assert "code_changed" not in await kinds(eng, run.id)


async def test_blocking_from_a_branch_ends_the_handler(store: Path | str) -> None:
    entered = asyncio.Event()

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        async def branch() -> None:
            ctx._run.block_run("history_mismatch", "it does not fit", {"step": "charge"})

        task = asyncio.create_task(branch())
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(task, return_exceptions=True) if not task.done() else None
        return "?"

    async with engine(store, agent, settings=QUICK) as eng:
        run = await submit(eng, "agent")
        view = await blocked(eng, run.id)
        assert view.blocked == Blocked("history_mismatch", "it does not fit", {"step": "charge"})


async def test_a_run_whose_agent_nobody_serves_any_more_says_so(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.put(project.file, project.file.read_text().replace("async def payer", "async def cashier"))
    async with deployed(store, project) as eng:
        assert (await eng.runs.get(run)).blocked is None, "it waits for an answer, and is not due"
        await eng.questions.answer(asked_, {"approved": True})
        view = await blocked(eng, run)
        assert view.status is il.Status.RUNNING
        assert view.blocked is not None
        assert view.blocked.reason == "no_code"
        assert "it waits for payer 0.1.0" in view.blocked.message
        assert f"interlingua runs move {run} --to TARGET" in view.blocked.message
        assert [one.id for one in await eng.runs.search(RunFilter(blocked=True))] == [run]
        assert (await eng.runs.blocked_report.counts())["no_code"] == 1
        assert 'interlingua_runs_blocked{reason="no_code"} 1' in await render(eng)
    project.write("v1")
    async with deployed(store, project) as eng:
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "charged 10, v1"}
        assert await eng.runs.search(RunFilter(blocked=True)) == []


async def test_lists_metrics_and_readiness_tell_of_blocked_runs(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with deployed(store, project) as eng:
        probes = Probes(eng)
        assert bytes((await probes.readyz()).body) == b"ready\n"
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
        (found,) = await eng.runs.search(RunFilter(blocked=True))
        assert found.id == run
        assert found.blocked is not None
        assert found.blocked.reason == "failed_on_resume"
        assert await eng.runs.search(RunFilter(blocked=True, agent="another")) == []
        assert 'interlingua_runs_blocked{reason="failed_on_resume"} 1' in await render(eng)
        answer = await probes.readyz()
        assert (answer.status_code, bytes(answer.body)) == (200, b"ready\nblocked: 1 failed_on_resume\n")


async def test_the_log_of_the_program_warns_of_a_blocked_run(
    store: Path | str, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with deployed(store, project) as eng:
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
    (line,) = [record for record in caplog.records if "is blocked" in record.message]
    assert line.levelname == "WARNING"
    assert run in line.message
    assert "undefined_name" in line.message


async def test_a_question_of_a_blocked_run_expires_in_time(store: Path | str, project: Project) -> None:
    project.write("v1")
    with_deadline = project.file.read_text().replace('("Send it?")', '("Send it?"), deadline=0.3')
    project.put(project.file, with_deadline)
    async with deployed(store, project) as eng:
        run = (await submit(eng, "payer")).id
        asked_ = (await question(eng, run)).id
        await parked(eng, run)
    project.put(project.file, with_deadline.replace("    pass\n    receipt", "    undefined_name\n    receipt"))
    async with deployed(store, project) as eng:
        await blocked(eng, run)  # the end of the time woke it
        with pytest.raises(il.InterlinguaError, match="expired"):
            await eng.questions.answer(asked_, {"approved": True})
    project.put(project.file, with_deadline)
    async with deployed(store, project) as eng:
        done = await eng.runs.wait(run, timeout=20)
        assert done.error is not None
        assert done.error.code == "question_expired"


async def test_a_process_that_starts_says_which_runs_it_cannot_execute(store: Path | str, project: Project) -> None:
    run, asked_ = await asked(store, project)
    project.write("v2", before="undefined_name")
    async with deployed(store, project) as eng:
        assert await eng.runs.blocked_report.announce() == []
        await eng.questions.answer(asked_, {"approved": True})
        await blocked(eng, run)
    async with deployed(store, project) as eng:
        (line,) = await eng.runs.blocked_report.announce()
        assert line.startswith("1 run of payer@0.1.0 is blocked: the code failed before it came as far")
        assert "undefined_name" in line
    async with engine(store) as eng:
        lines = await eng.runs.blocked_report.announce()
        assert "1 run waits for payer 0.1.0" in lines[0]
        assert "which nobody serves. Serve it, or: interlingua runs move --from" in lines[0]
