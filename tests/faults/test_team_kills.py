"""kill -9 while a team works, tools and reviews included. Afterwards everything is as if nothing had happened.

The moments are counted in events that the killed process has told: when they are on disk, wherever that is in the task.
Three kills in the suite; `make faults` does thirty.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.log.record_keys import kind_of
from interlingua.model.events import Recorded, RunFinished
from interlingua.model.filters import RunFilter
from interlingua.store.rows import SUSPECT
from tests.faults.sales import LOG
from tests.kit import processes
from tests.protocols.cap.test_sales_team import CALLS, EXAMPLE, TALK, calls_on_record
from tests.protocols.cap.tool_common import Watched

Told = dict[str, Any]
Moment = Callable[[Told], bool]
Start = Callable[..., Awaitable[Process]]


class Office:
    """The folder in which the team works, and its store. The process in it comes and goes."""

    def __init__(self, folder: Path, park_after: float = 60.0, start: Start = processes.start_warm) -> None:
        self.folder = folder / "sales-team"
        self.store = folder / "store.db"
        self.park_after = park_after
        self.start = start
        self.kills = 0
        self.lives: list[tuple[list[str], int]] = []  # of each: the calls that were made, and how many were on record
        shutil.copytree(EXAMPLE, self.folder)

    async def live(self, moment: Moment | None) -> bool:
        """One life: to the end of the task, or to a moment at which it is killed. Whether the task has ended."""
        before = len(self._calls())
        process = await self.start("faults.sales", self.store, self.folder, self.park_after)
        assert process.stdout is not None
        ended, killed = False, False
        async with asyncio.timeout(90):
            while line := await process.stdout.readline():
                told: Told = json.loads(line)
                ended = ended or "ended" in told
                if moment is not None and not killed and moment(told) and not self._suspects():
                    process.kill()
                    killed = True
            code = await process.wait()
        await processes.end(process)
        assert ended or killed, f"the process ended by itself, with {code}"
        await no_strays(self.folder)
        self.kills += killed
        self.lives.append((self._calls()[before:], await self._recorded()))
        return ended

    def _suspects(self) -> bool:
        """Tells whether a run would be given up if the process died now, because it got nowhere in its last lives. That
        is not what is tried: the kill waits until the run has made a record or waits for another one."""
        with contextlib.closing(sqlite3.connect(self.store, timeout=30)) as conn:
            found = conn.execute("SELECT 1 FROM runs WHERE crashes>=? LIMIT 1", (SUSPECT,)).fetchone()
        return found is not None

    def _calls(self) -> list[str]:
        log = self.folder / LOG
        return log.read_text().splitlines() if log.exists() else []

    async def _recorded(self) -> int:
        """How many calls of tools are on record."""
        async with il.Engine(self.store) as eng:
            found = 0
            for run in await eng.runs.search(RunFilter(limit=100, sealed=True)):
                async for event in eng.runs.events(run.id, follow=False, sealed=True):
                    body = event.body
                    found += isinstance(body, Recorded) and kind_of(body.key) == "tool" and body.error is None
            return found

    async def check(self) -> Told:
        """Hold everything that was promised against the logs, and give what others can see of the task."""
        at = 0
        for number, (calls, recorded) in enumerate(self.lives):
            exact, under_way = CALLS[at:recorded], CALLS[at : recorded + 1]
            # One more than is on record may have been made: the one that was under way when the process was killed.
            assert calls in ([exact, under_way] if number < len(self.lives) - 1 else [exact]), self.lives
            at = recorded
        async with il.Engine(self.store) as eng:
            runs = await eng.runs.search(RunFilter(limit=100, sealed=True))
            (root,) = [run for run in runs if run.parent is None]
            for run in runs:
                assert await eng.runs.verify(run.id, sealed=True) is None, run.agent
                events = [event async for event in eng.runs.events(run.id, follow=False, sealed=True)]
                assert run.status is il.Status.SUCCEEDED, (run.agent, run.error)
                assert sum(isinstance(event.body, RunFinished) for event in events) == 1
                keys = [event.body.key for event in events if isinstance(event.body, Recorded)]
                assert len(keys) == len(set(keys)), "something was recorded twice"
            return {
                "output": (await eng.runs.get(root.id)).output,
                "talk": [
                    (one.form, one.task, one.sender, one.recipient, [msgspec.to_builtins(p) for p in one.message.parts])
                    for _, one in await eng.teams.conversation(root.id)
                ],
                "calls": await calls_on_record(eng, root.id),
                "agents": sorted(run.agent for run in runs),
            }


def working_in(folder: Path) -> list[int]:
    """The processes whose folder this is: the tool servers of the team."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "cwd").readlink() == folder:
                    found.append(int(process.name))
            except OSError:  # it has ended, or is none of ours
                continue
    return found


async def no_strays(folder: Path) -> None:
    """Servers end by themselves when whoever started them is gone."""
    while pids := working_in(folder):
        for pid in pids:
            try:
                await Watched(pid).ended()
            except ProcessLookupError:
                continue


async def undisturbed(folder: Path) -> Told:
    folder.mkdir()
    office = Office(folder)
    assert await office.live(None)
    seen = await office.check()
    assert [tuple(one[:4]) for one in seen["talk"]] == TALK
    assert office.lives[0][0] == CALLS
    return seen


async def work_through(office: Office, moments: list[Moment]) -> None:
    """A life for each moment, and one in which it comes to the end."""
    for moment in moments:
        if await office.live(moment):
            return
    assert await office.live(None)


def at(kind: str, agent: str, **members: Any) -> Moment:
    wanted = {"kind": kind, "agent": f"sales-team/{agent}", **members}
    reached = False

    def moment(told: Told) -> bool:
        nonlocal reached
        reached = reached or all(told.get(name) == value for name, value in wanted.items())
        return reached

    return moment


@pytest.mark.timeout(180)
async def test_a_team_that_is_killed_while_it_works_does_nothing_twice(tmp_path: Path) -> None:
    office = Office(tmp_path)
    await work_through(
        office,
        [
            at("ToolCall", "pm-1", tool="DataServer.query_data", status="in_progress"),
            at("Said", "analyst-1/work"),
            at("ChildEnded", "analyst-1/work"),
        ],
    )
    assert office.kills == 3
    assert await office.check() == await undisturbed(tmp_path / "undisturbed")


def after(events: int) -> Moment:
    left = iter(range(events))
    return lambda told: next(left, None) is None


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("park_after", [60.0, 0.0], ids=["in memory", "parked"])
async def test_a_team_survives_thirty_kills_at_any_moment(tmp_path: Path, park_after: float) -> None:
    expected = await undisturbed(tmp_path / "undisturbed")
    kills, seed = 0, 0
    while kills < 30:
        seed += 1
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        office = Office(folder, park_after, processes.start)
        await work_through(office, [after(dice.randint(0, 12)) for _ in range(30)])
        assert await office.check() == expected, (seed, office.lives)
        kills += office.kills
    print(f"\n{kills} kills in {seed} tasks")
