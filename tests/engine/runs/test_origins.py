"""Runs belong to the code that began them: other code of the same name and version does not touch them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.handler.mounted_run import MOUNTED_FROM
from interlingua.engine.services.move import Mover
from interlingua.engine.services.store_owner import OtherProject
from interlingua.model.errors import AgentNotFound, AlreadyFinished, Conflict, NotFound
from interlingua.model.events import RunCreated, RunMoved
from interlingua.model.filters import RunFilter
from interlingua.model.run_identity import Origin
from tests.engine.cluster.test_remote_agents import doors, until, works
from tests.kit.engines import PATIENT, QUICK, bodies, engine, finish, kinds, log, parked, question, submit
from tests.kit.teams import chain


def mailer(source: str, says: str = "", version: str = "0.1.0") -> il.Agent[..., Any]:
    """Asks, and then says what it is."""

    @il.agent(name="mailer", version=version, asks=[il.Confirm])
    async def mail(ctx: il.Context[None, None]) -> str:
        answer = await ctx.ask(il.Confirm(f"{says or source}: Send it?"))
        return f"{says or source} {answer.approved}"

    mail.source = source
    return mail


def echo(source: str, version: str = "0.1.0") -> il.Agent[..., Any]:
    @il.agent(name="echo", version=version)
    async def says() -> str:
        return f"{source} {version}"

    says.source = source
    return says


def project(store: Path | str, name: str, *agents: il.Agent[..., Any], **more: Any) -> il.Engine:
    return il.Engine(store, agents=agents, settings=QUICK, project=name, **more)


# -- origins ------------------------------------------------------------------------------------------------


async def test_a_run_records_the_origin_of_its_code(store: Path) -> None:
    async with project(store, "shop", echo("file:agents.py")) as eng:
        for more in ({}, {"delay": 0.01}, {"key": "k"}, {"thread": "t", "create_thread": True}):
            run = await finish(eng, "echo", **more)
            row = await eng.runs.row(run.id)
            assert (row.origin, row.queue) == ("shop file:agents.py", "shop file:agents.py echo@0.1.0")
            (created,) = await bodies(eng, run.id, RunCreated)
            assert created.origin == "shop file:agents.py"


def test_an_agent_belongs_to_the_module_of_its_function() -> None:
    @il.agent
    async def here() -> str:
        return ""

    assert here.source == f"module:{__name__}"


@pytest.mark.parametrize("how", [["shop_agents.py"], ["-m", "shop_agents"]])
def test_the_main_file_of_a_program_is_the_module_that_others_import(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "shop_agents.py").write_text(
        "import interlingua as il\n\n@il.agent\nasync def here() -> str:\n    return ''\n\nprint(here.source)\n"
    )
    said = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "module:shop_agents\n"


async def test_a_child_has_the_origin_of_its_own_code(store: Path) -> None:
    @il.agent
    async def boss(ctx: il.Context[None, None]) -> str:
        return str((await ctx.call("echo"))["text"])

    boss.source = "file:boss.py"
    async with project(store, "shop", boss, echo("file:agents.py")) as eng:
        run = await finish(eng, "boss")
        assert run.output == {"text": "file:agents.py 0.1.0"}
        (child,) = await eng.core.store.runs.search(RunFilter(parent=run.id))
        assert (child.origin, (await eng.runs.row(run.id)).origin) == ("shop file:agents.py", "shop file:boss.py")


async def test_all_runs_of_a_team_have_the_origin_of_the_team(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        chain()(eng)
        run = await finish(eng, "crew", {"text": "middle expert x"})
        rows = await eng.core.store.runs.search(RunFilter(root=run.id, sealed=True))
        assert len(rows) > 2
        assert {row.origin for row in rows} == {" team:crew"}


# -- who claims ---------------------------------------------------------------------------------------------


async def test_code_of_another_origin_does_not_claim_withdraw_or_answer_a_run(store: Path) -> None:
    """Two agents files of one project, each with an agent of the same name and version."""
    async with project(store, "shop", mailer("file:a.py", "A")) as first:
        run = await submit(first, "mailer")
        asked = await question(first, run.id)
        await parked(first, run.id)
    async with project(store, "shop", mailer("file:b.py", "B")) as second:
        own = await submit(second, "mailer")
        assert (await question(second, own.id)).prompt == "B: Send it?"
        await second.questions.answer(
            asked.id, {"approved": True}
        )  # the question of the other run may be answered here
        await second.questions.answer((await question(second, own.id)).id, {"approved": False})
        assert (await second.runs.wait(own.id, timeout=20)).output == {"text": "B False"}
        row = await second.runs.row(run.id)
        assert (row.worker, row.status, row.wake_at) == (None, il.Status.WAITING, 0)
        assert await kinds(second, run.id) == ["created", "started", "asked"]
    async with project(store, "shop", mailer("file:a.py", "A")) as first:
        assert (await first.runs.wait(run.id, timeout=20)).output == {"text": "A True"}
        assert (await kinds(first, run.id)).count("asked") == 1


async def test_two_processes_with_an_agent_of_one_name_each_run_their_own(store: Path) -> None:
    async with project(store, "shop", echo("file:a.py")) as first, project(store, "shop", echo("file:b.py")) as second:
        for eng, source in ((first, "file:a.py"), (second, "file:b.py")):
            runs = [await submit(eng, "echo", delay=0.01) for _ in range(10)]
            for run in runs:
                assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": f"{source} 0.1.0"}


async def test_a_server_with_the_function_never_executes_the_mounted_run_of_another_process(store: Path) -> None:
    """`interlingua run http://…#mailer` beside the server of that address, on one store."""
    mounted = mailer("mount:http://127.0.0.1:8000#mailer", "mounted")
    mounted.card.metadata[MOUNTED_FROM] = "http://127.0.0.1:8000"
    async with project(store, "shop", mailer("file:agents.py", "served")) as server:
        async with project(store, "shop", mounted) as caller:
            run = await submit(caller, "mailer")
            asked = await question(caller, run.id)
            await parked(caller, run.id)
        await server.questions.answer(asked.id, {"approved": True})
        beside = await submit(server, "mailer")  # the server looks for what is due, and finds its own
        await question(server, beside.id)
        row = await server.runs.row(run.id)
        assert (row.worker, row.wake_at) == (None, 0)
        async with project(store, "shop", mounted) as caller:
            assert (await caller.runs.wait(run.id, timeout=20)).output == {"text": "mounted True"}
            assert (await kinds(caller, run.id)).count("asked") == 1


async def test_an_agent_that_another_one_replaces_still_ends_its_own_runs(store: Path) -> None:
    old, new = mailer("file:old.py"), mailer("file:new.py")
    async with project(store, "shop", old) as eng:
        run = await submit(eng, "mailer")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        eng.teams.exchange([old], [new])
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "file:old.py True"}
        assert (await eng.runs.row((await submit(eng, "mailer")).id)).origin == "shop file:new.py"


async def test_a_worker_says_which_queues_it_serves_also_when_they_change(store: Path) -> None:
    async with project(store, "shop", echo("file:a.py")) as eng:

        async def served() -> list[str]:
            (row,) = await eng.core.store.claims.workers()
            return row.queues

        assert await served() == ["shop file:a.py echo@0.1.0"]
        eng.teams.add(echo("mount:far#echo", "2.0"))
        async with asyncio.timeout(20):
            while await served() != ["shop file:a.py echo@0.1.0", "shop mount:far#echo echo@2.0"]:
                await asyncio.sleep(0.01)


async def test_a_limit_by_name_counts_the_runs_of_the_agents_of_that_name(store: Path) -> None:
    settings = il.Settings(agents={"mailer": 1}, park_after=60, sweep_every=0.05, stall_warning=0)
    agents = [mailer("file:a.py", version="1"), mailer("file:b.py", version="2")]
    async with il.Engine(store, agents=agents, settings=settings, project="shop") as eng:
        limits = {id(eng.core.worker.limits.of_agent(agent)) for agent in agents}
        assert len(limits) == 1


# -- agents that are elsewhere ------------------------------------------------------------------------------


async def test_a_call_goes_to_code_of_the_project_before_a_mount_and_that_is_said_once(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "interlingua.agents")
    mounted, own = echo("mount:a#echo"), echo("file:agents.py")
    async with works(store, mounted), works(store, own), doors(store) as eng:
        assert (await finish(eng, "echo")).output == {"text": "file:agents.py 0.1.0"}
        async with works(store, echo("file:other.py", "2.0")):
            await until(eng, lambda: eng.agents.find("echo", "2.0") is not None)
    said = [record.getMessage() for record in caplog.records if "several origins" in record.getMessage()]
    assert said == [
        "agent echo@0.1.0 has code of several origins, and calls of it here go to the first: "
        "file:agents.py; mount:a#echo"
    ]


async def test_an_agent_here_comes_before_one_of_its_name_elsewhere_and_that_is_said(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "interlingua.agents")
    async with works(store, echo("file:agents.py")), doors(store, echo("mount:a#echo")) as eng:
        assert (await finish(eng, "echo")).output == {"text": "mount:a#echo 0.1.0"}
    (said,) = [record.getMessage() for record in caplog.records if "several origins" in record.getMessage()]
    assert said.endswith("go to the first: mount:a#echo; file:agents.py")


async def test_when_the_code_of_one_origin_is_gone_the_other_is_called(store: Path) -> None:
    async with works(store, echo("file:b.py")), doors(store) as eng:
        async with works(store, echo("file:a.py")):
            await until(eng, lambda: (found := eng.agents.find("echo")) is not None and found.source == "file:a.py")
            assert (await finish(eng, "echo")).output == {"text": "file:a.py 0.1.0"}
        await until(eng, lambda: (found := eng.agents.find("echo")) is not None and found.source == "file:b.py")
        assert (await finish(eng, "echo")).output == {"text": "file:b.py 0.1.0"}


# -- the project of a store ---------------------------------------------------------------------------------


async def test_a_store_of_one_project_refuses_another(store: Path) -> None:
    async with project(store, "shop", echo("file:agents.py")):
        pass
    where = str(store).partition("?")[0].rpartition("@")[2]
    with pytest.raises(OtherProject) as caught:
        await project(store, "bank", echo("file:agents.py")).start()
    assert where in str(caught.value)
    assert str(caught.value).endswith(
        ' belongs to project shop; use another file or PostgreSQL schema, or set project = "shop"'
    )
    with pytest.raises(OtherProject):
        await project(store, "", echo("file:agents.py")).start()
    async with project(store, "shop", echo("file:agents.py")) as eng:
        assert (await finish(eng, "echo")).status is il.Status.SUCCEEDED


async def test_an_engine_without_agents_looks_at_the_store_of_any_project(store: Path) -> None:
    async with project(store, "shop", echo("file:agents.py")) as eng:
        run = await finish(eng, "echo")
    async with project(store, "") as eng:
        assert (await eng.runs.get(run.id)).output == {"text": "file:agents.py 0.1.0"}
        assert eng.agents.project == "shop"
        with pytest.raises(OtherProject):
            eng.teams.add(echo("file:agents.py"))


async def test_without_a_project_a_store_stays_without_one(store: Path) -> None:
    async with project(store, "", echo("file:agents.py")) as eng:
        run = await finish(eng, "echo")
        assert (await eng.runs.row(run.id)).origin == " file:agents.py"
        assert await eng.core.store.claims.project() is None


# -- moving -------------------------------------------------------------------------------------------------


async def waiting(store: Path, *agents: il.Agent[..., Any]) -> tuple[str, str]:
    """A parked run of a mailer, and its question."""
    async with project(store, "shop", *agents) as eng:
        run = await submit(eng, "mailer")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
    return run.id, asked.id


async def test_a_moved_run_goes_on_with_the_code_that_it_was_moved_to(store: Path) -> None:
    run, asked = await waiting(store, mailer("file:old.py", "old"))
    async with project(store, "shop", mailer("file:new.py", "old")) as eng:
        await eng.runs.move(run, Origin("shop", "file:new.py"))
        await eng.questions.answer(asked, {"approved": True})
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "old True"}
        (moved,) = await bodies(eng, run, RunMoved)
        assert moved == RunMoved("shop file:old.py mailer@0.1.0", "shop file:new.py mailer@0.1.0", "owner")
        assert await eng.runs.verify(run) is None


async def test_a_moved_run_that_is_due_is_claimed_at_once(store: Path) -> None:
    run, asked = await waiting(store, mailer("file:old.py", "old"))
    async with project(store, "shop") as eng:
        await eng.questions.answer(asked, {"approved": True})
    async with (
        project(store, "shop", mailer("file:new.py", "old", "2.0")) as eng,
        project(store, "shop") as mover,
    ):
        await mover.runs.move(run, "shop file:new.py", version="2.0")
        assert (await eng.runs.wait(run, timeout=20)).output == {"text": "old True"}
        assert (await eng.runs.get(run)).version == "2.0"


async def test_who_follows_a_run_is_told_that_it_was_moved(store: Path) -> None:
    run, _ = await waiting(store, mailer("file:old.py"))
    async with project(store, "shop") as eng:
        told = eng.runs.events(run)
        heard = [(await anext(told)).kind for _ in range(3)]
        await eng.runs.move(run, "shop file:new.py")
        async with asyncio.timeout(20):
            assert [*heard, (await anext(told)).kind] == ["created", "started", "asked", "moved"]


async def test_a_run_that_executes_is_not_moved(store: Path) -> None:
    settings = il.Settings(park_after=60, shutdown_grace=0.5, cancel_grace=0.5, stall_warning=0)
    async with il.Engine(store, agents=[mailer("file:old.py")], settings=settings, project="shop") as eng:
        run = await submit(eng, "mailer")
        asked = await question(eng, run.id)
        with pytest.raises(Conflict, match="is executing"):
            await eng.runs.move(run.id, "shop file:new.py")
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "file:old.py True"}
        with pytest.raises(AlreadyFinished):
            await eng.runs.move(run.id, "shop file:new.py")


async def test_runs_move_to_the_agent_of_their_name(store: Path) -> None:
    run, _ = await waiting(store, mailer("file:old.py"))
    async with project(store, "shop") as eng:
        mover = Mover(eng, [echo("file:new.py")])
        with pytest.raises(AgentNotFound, match=r"no agent mailer.*it has: echo"):
            await mover.move(run)
        mover = Mover(
            eng, [echo("file:new.py"), mailer("file:new.py", version="9"), mailer("file:new.py", version="10")]
        )
        assert [one.origin for one in await mover.move(run)] == ["shop file:new.py"]
        row = await eng.runs.row(run)
        assert (row.queue, row.version) == ("shop file:new.py mailer@10", "10")
        assert "moved" in await kinds(eng, run)


async def test_all_runs_of_an_origin_are_moved_and_what_cannot_be_moved_is_said(store: Path) -> None:
    runs = [(await waiting(store, mailer("file:old.py")))[0] for _ in range(3)]
    await waiting(store, mailer("file:other.py"))
    async with project(store, "shop", echo("file:old.py")) as eng:
        await finish(eng, "echo")  # it has ended, and stays where it was
    async with project(store, "shop") as eng:
        mover = Mover(eng, [mailer("file:new.py")])
        with pytest.raises(NotFound, match=r"there are: shop file:old\.py, shop file:other\.py"):
            await mover.open_queues("file:nowhere.py")
        for given in ("file:old.py", "shop file:old.py"):
            queues = await mover.open_queues(given)
            assert [(one.queue, one.runs) for one in queues] == [("shop file:old.py mailer@0.1.0", 3)]
        moved = await mover.move_all(queues)
        assert sorted(one.run for one in moved) == sorted(runs)
        assert {(one.origin, one.problem) for one in moved} == {("shop file:new.py", "")}
        (left, other) = await eng.core.store.claims.open_queues()
        assert (left.queue, left.runs, other.queue) == (
            "shop file:new.py mailer@0.1.0", 3, "shop file:other.py mailer@0.1.0",
        )  # fmt: skip
        (refused,) = await Mover(eng, [echo("file:new.py")]).move_all([other])
        assert "no agent mailer" in refused.problem


async def test_moving_a_run_moves_the_runs_below_it_that_are_of_its_origin(store: Path) -> None:
    @il.agent(name="boss")
    async def old(ctx: il.Context[None, None]) -> str:
        return str((await ctx.call("mailer"))["text"])

    @il.agent(name="boss")
    async def new(ctx: il.Context[None, None]) -> str:
        return str((await ctx.call("mailer"))["text"])

    old.source, new.source = "file:old.py", "file:new.py"
    async with project(store, "shop", old, mailer("file:old.py", "mail")) as eng:
        run = await submit(eng, "boss")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        await parked(eng, asked.run)
    agents = [new, mailer("file:new.py", "mail")]
    async with project(store, "shop", *agents) as eng:
        moved = await Mover(eng, agents).move(run.id)
        assert [one.run for one in moved] == [run.id, asked.run]
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "mail True"}
        assert len(await log(eng, run.id)) > 3
