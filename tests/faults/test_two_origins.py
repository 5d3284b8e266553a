"""kill -9 of processes with agents of one name in two files, or two projects: no run ever sees the other's code."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.events import QuestionAsked, Recorded
from interlingua.model.filters import RunFilter
from tests.kit import processes
from tests.kit.postgres import forget, fresh

from .conftest import LEASE
from .two_origins import SETTINGS

SOURCES = ("file:a.py", "file:b.py")


class Files:
    """One process for each file. A process is started again when it was killed."""

    def __init__(self, store: Path | str, project: str = "shop") -> None:
        self._store = store
        self._project = project
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self.runs: dict[str, str] = {}  # acknowledged: the source of each

    async def start(self, source: str, runs: int, errors: int | None = None) -> None:
        module = "faults.two_origins"
        process = await processes.start(module, self._store, source, runs, self._project, stderr=errors)
        self._processes[source] = process
        while errors is None and (run := await processes.said(process)) is not None:
            self.runs[run] = source

    async def kill(self, source: str) -> None:
        await processes.end(self._processes.pop(source))

    async def refused(self, source: str) -> str:
        """What a process says that has no business here."""
        await self.start(source, 1, asyncio.subprocess.PIPE)
        process = self._processes.pop(source)
        _, said = await process.communicate()
        assert process.returncode == 1
        return said.decode()

    async def end(self) -> None:
        for source in list(self._processes):
            await self.kill(source)


async def answer_some(eng: il.Engine, chance: random.Random, share: float) -> None:
    for question in await eng.questions.open(limit=1000):
        if chance.random() < share:
            await eng.questions.answer(question.id, {"approved": True})


async def kill_often(store: Path | str, kills: int, seed: int) -> None:
    chance, files = random.Random(seed), Files(store)
    async with il.Engine(store, settings=SETTINGS, project="shop") as eng:
        try:
            for source in SOURCES:
                await files.start(source, 3)
            for _ in range(kills):
                await answer_some(eng, chance, 0.3)
                await asyncio.sleep(chance.random() * 0.3)
                source = chance.choice(SOURCES)
                await files.kill(source)
                await answer_some(eng, chance, 0.3)  # also what was asked by the code that is gone
                await files.start(source, 1)
            async with asyncio.timeout(120):
                while await eng.core.store.claims.open_queues():
                    await answer_some(eng, chance, 1.0)
                    await asyncio.sleep(0.05)
        finally:
            await files.end()
        rows = {row.id: row for row in await eng.core.store.runs.search(RunFilter(limit=10_000))}
        assert files.runs.keys() <= rows.keys()
        for run, row in rows.items():
            source = row.origin.partition(" ")[2]
            assert files.runs.get(run, source) == source
            events = [event.body async for event in eng.runs.events(run, follow=False)]
            assert {body.value for body in events if isinstance(body, Recorded)} == {source}
            asked = [body.question.prompt for body in events if isinstance(body, QuestionAsked)]
            assert asked == [f"{source}: Send it?"], "a question was withdrawn and asked again"
            assert (await eng.runs.get(run)).output == {"text": f"{source} {source} {source}"}
            assert await eng.runs.verify(run) is None


@pytest.mark.timeout(240)
async def test_two_files_with_an_agent_of_one_name_keep_to_their_own_runs(store: Path | str) -> None:
    await kill_often(store, 4, 1)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 6))
async def test_two_files_keep_to_their_own_runs_in_hundreds_of_kills(each_store: Path | str, seed: int) -> None:
    await kill_often(each_store, 50, seed)


async def projects(stores: dict[str, Path | str], kills: int, seed: int) -> None:
    """Each project has its own store and an agent of the same name; now and then one tries the store of the other."""
    chance = random.Random(seed)
    files = {source: Files(stores[source], source[-4]) for source in SOURCES}
    engines = [il.Engine(stores[source], settings=SETTINGS, project=source[-4]) for source in SOURCES]
    async with engines[0] as one, engines[1] as other:
        looking = dict(zip(SOURCES, (one, other), strict=True))
        try:
            for source in SOURCES:
                await files[source].start(source, 3)
            for _ in range(kills):
                source, stranger = chance.sample(SOURCES, 2)
                await asyncio.sleep(chance.random() * 0.2)
                await files[source].kill(source)
                await answer_some(looking[source], chance, 0.5)
                if chance.random() < 0.2:
                    said = await Files(stores[source], stranger[-4]).refused(stranger)
                    assert f"belongs to project {source[-4]}" in said
                await files[source].start(source, 1)
            async with asyncio.timeout(120):
                for source in SOURCES:
                    while await looking[source].core.store.claims.open_queues():
                        await answer_some(looking[source], chance, 1.0)
                        await asyncio.sleep(0.05)
        finally:
            for each in files.values():
                await each.end()
        for source, eng in looking.items():
            rows = await eng.core.store.runs.search(RunFilter(limit=10_000))
            assert files[source].runs.keys() <= {row.id for row in rows}
            assert not files[source].runs.keys() & {
                run for name in SOURCES if name != source for run in files[name].runs
            }
            for row in rows:
                assert (await eng.runs.get(row.id)).output == {"text": f"{source} {source} {source}"}
                assert await eng.runs.verify(row.id) is None


@pytest.mark.timeout(240)
async def test_two_projects_do_not_touch_each_other(tmp_path: Path) -> None:
    await projects({source: tmp_path / f"{source[-4]}.db" for source in SOURCES}, 4, 8)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
async def test_two_projects_do_not_touch_each_other_in_hundreds_of_kills(
    each_store: Path | str, request: pytest.FixtureRequest, seed: int
) -> None:
    if isinstance(each_store, Path):
        await projects(dict(zip(SOURCES, (each_store, each_store.with_name("other.db")), strict=True)), 50, seed)
        return
    other = f"{fresh(request.getfixturevalue('postgres'))}&lease={LEASE:g}"
    try:
        await projects(dict(zip(SOURCES, (each_store, other), strict=True)), 50, seed)
    finally:
        forget(other)
