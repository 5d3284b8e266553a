"""What a run costs in memory while it waits for an answer. It is a row, so: nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from interlingua import Engine, RunRequest, Settings

from .agents import asks
from .measure import Line, disk_folder

ROOT = Path(__file__).parent.parent


def rss() -> int:
    """Bytes of memory that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the most it ever held, which is close enough for something that only grows
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


async def settle(engine: Engine) -> int:
    """Wait until every handler is unwound, and see what is left."""
    while engine.metrics.running or engine.metrics.backlog:
        await asyncio.sleep(0.01)
    gc.collect()
    return rss()


async def start(engine: Engine, count: int) -> list[str]:
    """Start so many runs that ask something, and return when each of them waits. Only the last ids are kept.

    (A list of all ids would weigh as much as what is measured.)
    """
    last: deque[str] = deque(maxlen=50)
    left = count

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            run = await engine.runs.submit(RunRequest(asks.card.name, input={"text": "May this be done?"}))
            last.append(run.id)

    await asyncio.gather(*(client() for _ in range(64)))
    for run in last:
        await engine.runs.wait(run, settled=True)
    return list(last)


async def waiting(quick: bool) -> list[Line]:
    """Measured in a process of its own: memory that another benchmark has freed would hide what this one takes."""
    command = [sys.executable, "-m", "bench.memory", *(["--quick"] if quick else [])]
    done = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    output, _ = await done.communicate()
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return msgspec.json.decode(output, type=list[Line])


async def measure(quick: bool) -> list[Line]:
    # Enough to fill what has a fixed size and fills once: the page caches of SQLite above all.
    warm, steps = (100, (200,)) if quick else (40_000, (10_000, 100_000))
    lines = []
    with disk_folder() as folder:
        settings = Settings(park_after=0, stall_warning=0)
        async with Engine(folder / "ours.db", agents=[asks], settings=settings) as engine:
            first = await start(engine, warm)
            before = await settle(engine)
            waiting_now, last = 0, first
            for target in steps:
                begun = time.perf_counter()
                last = await start(engine, target - waiting_now)
                took = time.perf_counter() - begun
                rate = (target - waiting_now) / took
                waiting_now = target
                after = await settle(engine)
                lines.append(
                    Line(
                        "waiting",
                        f"memory of a run that waits, {target:,} of them",
                        "bytes/run",
                        (after - before) / target,
                        asked=200.0 if target == 100_000 else None,
                        bound="at most",
                        note=f"{before / 2**20:.0f} MiB before, {after / 2**20:.0f} MiB after; {rate:,.0f} runs/s",
                    )
                )
            answered = [*first, *last]
            begun = time.perf_counter()
            await asyncio.gather(*(_answer(engine, run) for run in answered))
            took = (time.perf_counter() - begun) * 1000
            lines.append(Line("waiting", f"answering {len(answered)} of them, to the end of their runs", "ms", took))
    return lines


async def _answer(engine: Engine, run: str) -> None:
    (question,) = await engine.questions.open(run=run)
    await engine.questions.answer(question.id, {"approved": True})
    done = await engine.runs.wait(run, timeout=60)
    assert done.output == {"text": "yes"}, done


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measure("--quick" in sys.argv))))
