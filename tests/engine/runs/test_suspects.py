"""Runs that were there when a process died: the one that ends it again and again ends, and takes no other with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.store.rows import SUSPECT
from tests.kit.engines import PATIENT, crash, engine, finish, submit
from tests.kit.wait_for import wait_for


class Scene:
    """Agents that stay at it until they are let go, and who is at it in this life of the process."""

    def __init__(self) -> None:
        self.entered: dict[str, asyncio.Event] = {}
        self.let_go: dict[str, asyncio.Event] = {}
        self.entries: list[str] = []
        self.agents: list[il.Agent[..., Any]] = []
        self.add("poison", retries=3)

    def add(self, name: str, **options: Any) -> None:
        self.let_go.setdefault(name, asyncio.Event())

        async def work() -> str:
            self.entries.append(name)
            self.entered[name].set()
            await self.let_go[name].wait()
            return "done"

        self.agents.append(il.agent(name=name, **options)(work))

    async def life(self, store: Path | str) -> il.Engine:
        self.entered = {agent.card.name: asyncio.Event() for agent in self.agents}
        eng = engine(store, *self.agents, settings=PATIENT)
        await eng.start()
        return eng

    async def anybody(self, *names: str) -> str:
        """The first of these that is entered."""
        tasks = {asyncio.create_task(self.entered[name].wait()): name for name in names}
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        for task in rest:
            task.cancel()
        assert done
        return tasks[done.pop()]

    async def all(self, *names: str) -> None:
        async with asyncio.timeout(20):
            for name in names:
                await self.entered[name].wait()


async def crashes(eng: il.Engine, run: str) -> int:
    row = await eng.core.store.runs.get(run)
    assert row is not None
    return row.crashes


async def test_a_crash_counts_only_against_the_suspect_that_executed(store: Path) -> None:
    scene = Scene()
    scene.add("innocent", retries=3)
    scene.add("other", retries=3)
    eng = await scene.life(store)
    runs = {name: (await submit(eng, name)).id for name in ("poison", "innocent")}
    for _ in range(2):  # nobody knows who it was
        await scene.all("poison", "innocent")
        await crash(eng)
        eng = await scene.life(store)
    # Both are suspects now, and execute one at a time; what is new executes beside them.
    runs["other"] = (await submit(eng, "other")).id
    await scene.all("other")
    first = await scene.anybody("poison", "innocent")
    await quick_run(eng, scene, "quick")
    assert sum(scene.entered[name].is_set() for name in ("poison", "innocent")) == 1
    if first == "innocent":
        scene.let_go["innocent"].set()
        assert (await eng.runs.wait(runs["innocent"], timeout=20)).output == {"text": "done"}
        await scene.all("poison")
    await crash(eng)
    eng = await scene.life(store)
    poison = await eng.runs.wait(runs["poison"], timeout=20)
    assert poison.error is not None
    assert (poison.status, poison.error.code) == (il.Status.FAILED, "run_lost")
    assert await crashes(eng, runs["other"]) == 1
    for name in ("innocent", "other"):
        scene.let_go[name].set()
        assert (await eng.runs.wait(runs[name], timeout=20)).output == {"text": "done"}, name
    await eng.stop()


async def quick_run(eng: il.Engine, scene: Scene, name: str) -> None:
    """A run of a new agent, to its end: by then, whatever was due has been claimed."""
    scene.add(name)
    scene.let_go[name].set()
    scene.entered[name] = asyncio.Event()
    eng.teams.add(scene.agents[-1])
    assert (await finish(eng, name)).status is il.Status.SUCCEEDED


async def test_a_suspect_stays_one_for_as_long_as_it_executes(store: Path) -> None:
    """A poison that takes its time: however long that is, no other suspect is entered beside it."""
    scene = Scene()
    for name in ("b", "c", "d"):
        scene.add(name, retries=3)
    names = ["poison", "b", "c", "d"]
    eng = await scene.life(store)
    runs = {name: (await submit(eng, name)).id for name in names}
    for _ in range(2):
        await scene.all(*names)
        await crash(eng)
        eng = await scene.life(store)
    seen = list[str]()
    while len(seen) < len(names):
        name = await scene.anybody(*[name for name in names if name not in seen])
        for quick in range(3):
            await quick_run(eng, scene, f"quick-{len(seen)}-{quick}")
        assert {other for other in names if scene.entered[other].is_set()} - set(seen) == {name}
        seen.append(name)
        if name == "poison":
            await crash(eng)
            eng = await scene.life(store)
            assert await crashes(eng, runs[name]) == SUSPECT + 1
            assert (await eng.runs.wait(runs[name], timeout=20)).status is il.Status.FAILED
        else:
            scene.let_go[name].set()
            assert (await eng.runs.wait(runs[name], timeout=20)).status is il.Status.SUCCEEDED
    await eng.stop()


@pytest.mark.parametrize(("retries", "entries"), [(1, 2), (2, 2), (3, 3), (5, 5)])
async def test_a_poison_run_ends_after_its_retries(store: Path, retries: int, entries: int) -> None:
    scene = Scene()
    scene.agents.clear()
    scene.add("poison", retries=retries)
    eng = await scene.life(store)
    run = (await submit(eng, "poison")).id
    while True:
        entered = asyncio.create_task(scene.entered["poison"].wait())
        ended = asyncio.create_task(eng.runs.wait(run, timeout=20))
        await asyncio.wait([entered, ended], return_when=asyncio.FIRST_COMPLETED)
        entered.cancel()
        if ended.done():
            break
        ended.cancel()
        await crash(eng)
        eng = await scene.life(store)
    done = ended.result()
    assert done.status is il.Status.FAILED
    assert done.error is not None
    assert (done.error.code, done.error.transient) == ("run_lost", False)
    assert f"died {entries} times" in done.error.message
    assert len(scene.entries) == entries
    await eng.stop()


async def test_a_run_without_suspicion_is_never_ended_for_a_crash(store: Path) -> None:
    """Also one that allows a single retry, and whatever happens beside it."""
    scene = Scene()
    scene.add("innocent", retries=1)
    eng = await scene.life(store)
    run = (await submit(eng, "innocent")).id
    await scene.all("innocent")
    await crash(eng)
    scene.let_go["innocent"].set()
    eng = await scene.life(store)
    assert (await eng.runs.wait(run, timeout=20)).output == {"text": "done"}
    await eng.stop()


async def test_a_suspect_that_makes_a_record_makes_room_for_the_next(store: Path) -> None:
    go, entered = asyncio.Event(), list[str]()

    @il.agent
    async def agent(ctx: il.Context[None, None], name: str) -> str:
        entered.append(name)
        reached[name].set()
        await go.wait()
        await ctx.step("progress", lambda: None)
        if not last:
            await asyncio.Event().wait()
        return "done"

    last = False
    runs: dict[str, str] = {}
    for life in range(3):
        reached = {"a": asyncio.Event(), "b": asyncio.Event()}
        eng = engine(store, agent, settings=PATIENT)
        await eng.start()
        if not life:
            runs = {name: (await submit(eng, "agent", {"name": name})).id for name in reached}
        if life < 2:
            await asyncio.gather(*(event.wait() for event in reached.values()))
            await crash(eng)
    await wait_for(lambda: len(entered) == 5)
    assert sum(event.is_set() for event in reached.values()) == 1
    go.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*(event.wait() for event in reached.values()))
    await crash(eng)
    last = True
    async with engine(store, agent, settings=PATIENT) as eng:
        for run in runs.values():
            assert (await eng.runs.wait(run, timeout=20)).output == {"text": "done"}


async def test_a_run_with_a_waiting_branch_is_a_suspect_for_what_another_branch_executes(store: Path) -> None:
    entered = asyncio.Event()

    @il.agent
    async def poison(ctx: il.Context[None, None]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.receive())
            group.create_task(work())

    async def work() -> None:
        await asyncio.sleep(0)
        entered.set()
        await asyncio.Event().wait()

    run = ""
    for _ in range(3):
        entered.clear()
        eng = engine(store, poison, settings=PATIENT)
        await eng.start()
        run = run or (await submit(eng, "poison")).id
        await asyncio.wait_for(entered.wait(), 20)
        await crash(eng)
    async with engine(store, poison, settings=PATIENT) as eng:
        ended = await eng.runs.wait(run, timeout=20)
    assert ended.error is not None
    assert ended.error.code == "run_lost"
