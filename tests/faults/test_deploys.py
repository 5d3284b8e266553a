"""Deploys in the middle of waiting runs: typos, code that does not fit, replicas side by side, kill -9 between them.

No run ends for it. Once good code is there, every run goes on by itself, with its answers, and repeats no record.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import QuestionAnswered, Recorded, RunBlocked
from interlingua.model.filters import QuestionFilter, RunFilter
from tests.kit import processes

_CODE = """
import interlingua as il

def charge(amount: int) -> int:
    return amount

@il.agent(asks=[il.Confirm])
async def payer(ctx: il.Context[None, None], n: int) -> list[int]:
    {first}
    found = []
    for part in range(3):
        found.append(await ctx.step(f"charge-{{part}}", charge, {amount}))
        await ctx.ask(il.Confirm(f"{{n}}: go on after {{part}}?"))
    return found
"""
GOOD = {"first": "pass", "amount": "n * 10 + part"}
TYPO = {"first": "undefined_name", "amount": "n * 10 + part"}
OTHER_STEPS = {"first": "await ctx.step('check', charge, 1)", "amount": "n * 10 + part"}


class Fleet:
    """The replicas that are alive, each of some deploy."""

    def __init__(self, folder: Path, store: Path | str) -> None:
        self.folder = folder
        self.store = store
        self.replicas: list[asyncio.subprocess.Process] = []
        self.deploys = 0

    def release(self, code: dict[str, str]) -> Path:
        self.deploys += 1
        file = self.folder / f"release-{self.deploys}" / "payers.py"
        file.parent.mkdir()
        file.write_text(f"# release {self.deploys}\n{_CODE.format(**code)}")
        return file

    async def start(self, file: Path) -> None:
        process = await processes.start("faults.replica", self.store, file, stderr=asyncio.subprocess.DEVNULL)
        assert await processes.said(process) == "ready"
        self.replicas.append(process)

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        self.replicas.remove(process)
        await processes.end(process)

    async def end(self) -> None:
        for process in list(self.replicas):
            await self.kill(process)


async def answer_some(eng: il.Engine, choose: random.Random, share: float) -> None:
    for record in await eng.core.store.questions.search(QuestionFilter(limit=1000)):
        if choose.random() < share:
            await eng.questions.answer(record.question.id, {"approved": True})


async def all_ended(eng: il.Engine, runs: list[str], choose: random.Random) -> list[il.Run]:
    async with asyncio.timeout(120):
        while True:
            await answer_some(eng, choose, 1.0)
            views = [await eng.runs.get(run) for run in runs]
            if all(view.status.final for view in views):
                return views
            await eng.runs.next_hint(runs[0])


async def deploys(tmp_path: Path, store: Path | str, *, rounds: int, runs: int, seed: int) -> None:
    choose = random.Random(seed)
    fleet = Fleet(tmp_path, store)
    settings = il.Settings(sweep_every=0.05, stall_warning=0)
    try:
        async with il.Engine(store, settings=settings) as eng:
            await fleet.start(fleet.release(GOOD))
            requests = [il.RunRequest("payer", input={"n": n}) for n in range(runs)]
            ids = [(await eng.runs.submit(request)).id for request in requests]
            async with asyncio.timeout(60):
                while len(await eng.core.store.questions.search(QuestionFilter(limit=1000))) < runs:
                    await eng.runs.next_hint(ids[0])
            for _ in range(rounds):
                await fleet.start(fleet.release(choose.choice([GOOD, TYPO, TYPO, OTHER_STEPS])))
                await answer_some(eng, choose, 0.3)
                if len(fleet.replicas) > 2:
                    await fleet.kill(choose.choice(fleet.replicas))
                assert not await eng.runs.search(RunFilter(status=[il.Status.FAILED, il.Status.CANCELLED], limit=10))
            await fleet.start(fleet.release(GOOD))
            for n, view in enumerate(await all_ended(eng, ids, choose)):
                assert view.status is il.Status.SUCCEEDED, view.error
                assert view.output == {"value": [n * 10, n * 10 + 1, n * 10 + 2]}
                bodies: list[Any] = [event.body async for event in eng.runs.events(view.id, follow=False)]
                assert sum(isinstance(body, QuestionAnswered) for body in bodies) == 3
                records = [body.key for body in bodies if isinstance(body, Recorded)]
                assert len(records) == len(set(records)) == 3
                codes = [body.code for body in bodies if isinstance(body, RunBlocked)]
                assert len(codes) == len(set(codes)), "the same code tried twice"
    finally:
        await fleet.end()


async def test_deploys_end_no_run(tmp_path: Path, store: Path | str) -> None:
    await deploys(tmp_path, store, rounds=4, runs=6, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(5))
async def test_many_deploys_end_no_run(tmp_path: Path, each_store: Path | str, seed: int) -> None:
    await deploys(tmp_path, each_store, rounds=40, runs=30, seed=seed)
