"""Whole runs: how many per second, how long one takes alone, and what is left beside an agent that computes."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from interlingua import Agent, Engine, RunRequest, Settings

from .agents import enough, spin, spin_elsewhere, trivial
from .ceiling import Raw, real_rows
from .measure import ROUNDS, Line, Rounds, disk_folder, interleave

TEXT = "What is said here comes back."
# The raw inserts block the event loop, on purpose and while no run is under way.
SETTINGS = Settings(stall_warning=0)


async def one_run(engine: Engine) -> None:
    run = await engine.runs.submit(RunRequest(trivial.card.name, input={"text": TEXT}))
    done = await engine.runs.wait(run.id)
    assert done.output == {"text": TEXT}, done


async def rate(engine: Engine, clients: int, count: int) -> float:
    """Runs per second that so many clients get, each waiting for its run before it submits the next."""
    left = count

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one_run(engine)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return count / (time.perf_counter() - begun)


async def throughput(quick: bool) -> list[Line]:
    lines = []
    with disk_folder() as folder:
        async with Engine(folder / "ours.db", agents=[trivial], settings=SETTINGS) as engine:
            await rate(engine, 16, 50 if quick else 1000)
            template = real_rows(folder / "ours.db")
            raw = Raw(folder / "raw.db", template)
            rows_per_run = 1 + len(template[0][1])
            raw.insert(50 if quick else 1000, 50)
            for clients in (1, 16, 64):
                count = 64 if quick else {1: 400, 16: 2000, 64: 4000}[clients]
                ceiling_count = 100 if quick else 5000

                async def ours(clients: int = clients, count: int = count) -> float:
                    return await rate(engine, clients, count)

                async def ceiling(count: int = ceiling_count) -> float:
                    return raw.insert(count, 50)

                async def small(count: int = ceiling_count) -> float:
                    return raw.insert(count, max(1, 50 // rows_per_run))

                measured = await interleave(1 if quick else ROUNDS, ours, ceiling, small)
                what = f"durable runs, {clients} client{'s' * (clients > 1)}"
                beside = f"the same {rows_per_run} rows per run, 50 runs per transaction"
                asked = 0.25 if clients == 64 else None
                lines.append(measured.line(0, 1, Line("throughput", what, "runs/s", beside=beside, asked=asked)))
                if clients == 64:
                    beside = "the same rows, 50 rows per transaction"
                    lines.append(
                        measured.line(0, 2, Line("throughput", what, "runs/s", beside=beside, note="for information"))
                    )
            raw.close()
    return lines


async def alone(quick: bool) -> list[Line]:
    count = 20 if quick else 300
    with disk_folder() as folder:
        async with Engine(folder / "ours.db", agents=[trivial], settings=SETTINGS) as engine:
            for _ in range(20):
                await one_run(engine)
            raw = Raw(folder / "raw.db", real_rows(folder / "ours.db"))
            raw.insert(20, 1)
            found = Rounds([[], []])
            for _ in range(1 if quick else ROUNDS):
                # One and one: what disturbs the machine then disturbs both.
                ours, bare = [], []
                for _ in range(count):
                    begun = time.perf_counter()
                    await one_run(engine)
                    ours.append(time.perf_counter() - begun)
                    bare.append(raw.commit())
                found.sides[0].append(statistics.median(ours) * 1000)
                found.sides[1].append(statistics.median(bare) * 1000)
            raw.close()
    line = Line("alone", "p50 of a whole run", "ms", beside="p50 of one raw commit", asked=2.5, bound="at most")
    return [found.line(0, 1, line)]


async def beside_cpu(quick: bool) -> list[Line]:
    count = 100 if quick else 2000
    rounds = 1 if quick else ROUNDS
    with disk_folder() as folder:
        async with Engine(folder / "ours.db", agents=[trivial, spin, spin_elsewhere], settings=SETTINGS) as engine:
            await rate(engine, 16, count)

            async def nothing() -> float:
                return await rate(engine, 16, count)

            async def thread() -> float:
                return await _beside(engine, spin, count)

            async def process() -> float:
                return await _beside(engine, spin_elsewhere, count)

            found = await interleave(rounds, nothing, thread, process)
    beside = "the same with nothing beside it"
    return [
        found.line(side, 0, Line("beside-cpu", f"16 clients, {what}", "runs/s", beside=beside, asked=0.25))
        for side, what in ((1, "an agent computing in a thread"), (2, "an agent computing in a process"))
    ]


async def _beside(engine: Engine, busy: Agent[[float], Any], count: int) -> float:
    """The rate of others from the moment at which `busy` computes; it is stopped afterwards."""
    enough.clear()
    begun = time.perf_counter()
    run = await engine.runs.submit(RunRequest(busy.card.name, input={"seconds": 60.0}))
    async for event in engine.runs.events(run.id):
        if event.kind == "delta":
            break
    found = await rate(engine, 16, count)
    assert time.perf_counter() - begun < 60, "the busy agent ended before the measurement did"
    assert not (await engine.runs.get(run.id)).status.final
    enough.set()
    await engine.runs.cancel(run.id)
    await engine.runs.wait(run.id)
    return found
