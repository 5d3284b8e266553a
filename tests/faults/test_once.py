"""An agent that must not be repeated is called once: whoever submits its run, and whatever dies on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from tests.kit import processes
from tests.kit.processes import Process, said, tell

from .payer import KEYS
from .paying import agents

HOW = ["plain", "key", "thread", "sync", "delay"]


@asynccontextmanager
async def payer(store: Path | str, effects: Path, *what: str) -> AsyncIterator[Process]:
    async with processes.ended(await processes.start_warm("faults.payer", store, effects, *what)) as process:
        yield process


def paid(effects: Path) -> Counter[str]:
    return Counter(effects.read_text().splitlines() if effects.exists() else [])


async def race(store: Path | str, effects: Path, processes: int) -> None:
    """Processes submit the same keys at the same moment: each is one run, and one call of its agent."""
    async with asyncio.timeout(120):
        async with payer(store, effects, "race") as first:
            assert await said(first) == "ready"  # the schema is there
            async with payers(store, effects, processes - 1) as others:
                for one in [first, *others]:
                    tell(one)
                made = await asyncio.gather(*(said(one) for one in [first, *others]))
    assert len({run for run, _ in made[0]}) == KEYS
    assert {status for _, status in made[0]} == {"succeeded"}
    assert all(other == made[0] for other in made)
    assert paid(effects) == Counter(str(n) for n in range(KEYS))


@asynccontextmanager
async def payers(store: Path | str, effects: Path, count: int) -> AsyncIterator[list[Process]]:
    if not count:
        yield []
        return
    async with payer(store, effects, "race") as one, payers(store, effects, count - 1) as others:
        assert await said(one) == "ready"
        yield [one, *others]


async def killed(store: Path | str, effects: Path, how: str) -> None:
    """A process is killed by the call of its agent. Nobody calls it again."""
    async with asyncio.timeout(60), payer(store, effects, "die", how) as dying:
        assert await said(dying) == "ready"
        assert await dying.wait() == -9
    settings = il.Settings(sweep_every=0.05, shutdown_grace=1, stall_warning=0)
    async with il.Engine(store, agents=agents(effects, dies=False), settings=settings) as engine:
        (run,) = await engine.runs.search(RunFilter())
        ended = await engine.runs.wait(run.id, timeout=30)
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert ended.error.code == "run_lost"
        if how == "key":
            again = await engine.runs.submit(il.RunRequest("pay", input={"what": how}, key="once"))
            assert again.id == run.id
    assert paid(effects) == {how: 1}


async def test_a_key_that_two_processes_use_at_once_is_one_call_of_the_agent(store: Path, tmp_path: Path) -> None:
    await race(store, tmp_path / "effects", 2)


@pytest.mark.parametrize("how", ["plain", "sync"])
async def test_a_run_whose_agent_was_called_when_its_process_was_killed_is_not_repeated(
    store: Path, tmp_path: Path, how: str
) -> None:
    await killed(store, tmp_path / "effects", how)


@pytest.mark.faults
@pytest.mark.parametrize("number", range(10))
async def test_keys_that_many_processes_use_at_once_are_one_call_each(
    each_store: Path | str, tmp_path: Path, number: int
) -> None:
    await race(each_store, tmp_path / "effects", 4)


@pytest.mark.faults
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("number", range(5))
async def test_however_a_run_was_submitted_its_agent_is_not_called_again_after_a_kill(
    each_store: Path | str, tmp_path: Path, how: str, number: int
) -> None:
    await killed(each_store, tmp_path / "effects", how)


@pytest.mark.faults
@pytest.mark.parametrize("number", range(3))
async def test_keys_that_are_used_while_processes_are_killed_are_one_run_and_at_most_one_call_each(
    each_store: Path | str, tmp_path: Path, number: int
) -> None:
    """A process that is killed in the middle of a race takes its calls along; none of them is made again."""
    effects = tmp_path / "effects"
    async with asyncio.timeout(120):
        for life in range(5):
            async with payer(each_store, effects, "race") as one, payer(each_store, effects, "race") as other:
                assert await said(one) == "ready"
                assert await said(other) == "ready"
                tell(one)
                tell(other)
                # Runs that a kill has lost are paid by nobody, so there may be too few others for this life.
                over = asyncio.gather(said(one), said(other), return_exceptions=True)
                while len(paid(effects)) < life * KEYS // 5 + 1 and not over.done():
                    await asyncio.sleep(0)
                one.kill()
                other.kill()
                await over
    settings = il.Settings(sweep_every=0.05, shutdown_grace=1, stall_warning=0)
    async with il.Engine(each_store, agents=agents(effects, dies=False), settings=settings) as engine:
        asked = (il.RunRequest("pay", input={"what": str(n)}, key=f"key {n}") for n in range(KEYS))
        made = [run.id for run in await asyncio.gather(*map(engine.runs.submit, asked))]
        assert len(set(made)) == KEYS
        ended = [await engine.runs.wait(run, timeout=60) for run in made]
        assert len(await engine.runs.search(RunFilter(limit=1000))) == KEYS
    assert max(paid(effects).values()) == 1
    succeeded = {str(n) for n, run in enumerate(ended) if run.status is il.Status.SUCCEEDED}
    assert succeeded <= paid(effects).keys()
    assert all(run.error is None or run.error.code == "run_lost" for run in ended)


@pytest.mark.faults
@pytest.mark.parametrize("number", range(5))
async def test_a_submission_that_was_refused_in_a_flood_or_while_a_process_stops_has_called_no_agent(
    each_store: Path | str, tmp_path: Path, number: int
) -> None:
    effects = tmp_path / "effects"
    async with asyncio.timeout(120), payer(each_store, effects, "flood") as one:
        assert await said(one) == "ready"
        tell(one)
        made, refused = await said(one)
        assert await one.wait() == 0
    assert made, "nothing was taken"
    assert refused, "nothing was refused"
    settings = il.Settings(sweep_every=0.05, shutdown_grace=1, stall_warning=0)
    async with il.Engine(each_store, agents=agents(effects, dies=False), settings=settings) as engine:
        for run in made.values():
            assert (await engine.runs.wait(run, timeout=60)).status in (il.Status.SUCCEEDED, il.Status.FAILED)
        assert {run.id for run in await engine.runs.search(RunFilter(limit=1000))} == set(made.values())
    assert paid(effects).keys() <= made.keys()
    assert max(paid(effects).values()) == 1
