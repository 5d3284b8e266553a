"""Whole runs: how many per second, how long one takes alone, and what is left beside an agent that computes."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from interlingua import Agent, Engine, RunRequest, Settings

from .agents import enough, spin, spin_elsewhere, trivial
from .ceiling import Raw, real_rows
from .measure import ROUNDS, Line, disk_folder, interleave

TEXT = "What is said here comes back."
# The raw inserts block the event loop, on purpose and while no run is under way.
SETTINGS = Settings(stall_warning=0)


async def one_run(engine: Engine) -> None:
    run = await engine.submit(RunRequest(trivial.card.name, input={"text": TEXT}))
    done = await engine.wait(run.id)
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
                lines.append(
                    Line(
                        "throughput", f"durable runs, {clients} client{'s' * (clients > 1)}", measured[0], "runs/s",
                        measured[1], f"the same {rows_per_run} rows per run, 50 runs per transaction",
                        asked=0.25 if clients == 64 else None,
                    )
                )  # fmt: skip
                if clients == 64:
                    lines.append(
                        Line(
                            "throughput", "durable runs, 64 clients", measured[0], "runs/s",
                            measured[2], "the same rows, 50 rows per transaction", note="for information",
                        )
                    )  # fmt: skip
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
            runs, commits = [], []
            for _ in range(1 if quick else ROUNDS):
                # One and one: what disturbs the machine then disturbs both.
                ours, bare = [], []
                for _ in range(count):
                    begun = time.perf_counter()
                    await one_run(engine)
                    ours.append(time.perf_counter() - begun)
                    bare.append(raw.commit())
                runs.append(statistics.median(ours))
                commits.append(statistics.median(bare))
            raw.close()
    return [
        Line(
            "alone", "p50 of a whole run", statistics.median(runs) * 1000, "ms", statistics.median(commits) * 1000,
            "p50 of one raw commit", asked=2.5, bound="at most",
        )
    ]  # fmt: skip


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

            plain, threaded, processed = await interleave(rounds, nothing, thread, process)
    beside = "the same with nothing beside it"
    return [
        Line("beside-cpu", "16 clients, an agent computing in a thread", threaded, "runs/s", plain, beside, asked=0.25),
        Line(
            "beside-cpu", "16 clients, an agent computing in a process", processed, "runs/s", plain, beside, asked=0.25
        ),
    ]


async def _beside(engine: Engine, busy: Agent[[float], Any], count: int) -> float:
    """The rate of others from the moment at which `busy` computes; it is stopped afterwards."""
    enough.clear()
    begun = time.perf_counter()
    run = await engine.submit(RunRequest(busy.card.name, input={"seconds": 60.0}))
    async for event in engine.events(run.id):
        if event.kind == "delta":
            break
    found = await rate(engine, 16, count)
    assert time.perf_counter() - begun < 60, "the busy agent ended before the measurement did"
    assert not (await engine.run(run.id)).status.final
    enough.set()
    await engine.cancel(run.id)
    await engine.wait(run.id)
    return found
