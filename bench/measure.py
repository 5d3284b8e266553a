"""What every benchmark shares: a line of the table, the rounds it is measured in, and the machine it ran on."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


class Line(msgspec.Struct, omit_defaults=True):
    """One measurement beside its ceiling. `asked` bounds the ratio, or `ours` where there is no ceiling.

    The ratio is the median of the ratios of the rounds and not the ratio of the medians: both sides of a round have
    seen the same disk and the same neighbours.
    """

    bench: str
    what: str
    unit: str
    ours: float = 0.0
    ceiling: float | None = None
    beside: str = ""  # what the ceiling is
    asked: float | None = None
    bound: Literal["at least", "at most"] = "at least"
    note: str = ""
    rounds: list[float] = []

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def reached(self) -> bool | None:
        if self.asked is None:
            return None
        measured = self.ours if self.ratio is None else self.ratio
        return measured >= self.asked if self.bound == "at least" else measured <= self.asked


class Rounds(msgspec.Struct):
    """What the sides of a comparison measured, side by side and round by round."""

    sides: list[list[float]]

    def median(self, side: int) -> float:
        return statistics.median(self.sides[side])

    def line(self, ours: int, ceiling: int, line: Line) -> Line:
        """The line with the numbers of these two sides."""
        line.ours, line.ceiling = self.median(ours), self.median(ceiling)
        line.rounds = [one / other for one, other in zip(self.sides[ours], self.sides[ceiling], strict=True)]
        return line


async def interleave(rounds: int, *sides: Callable[[], Awaitable[float]]) -> Rounds:
    """Measure the sides in turn, round after round, so that a busy machine is unfair to none."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, values in zip(sides, found, strict=True):
            values.append(await side())
            await asyncio.sleep(0)
    return Rounds(found)


@contextmanager
def disk_folder() -> Iterator[Path]:
    """A folder on the disk of the checkout: /tmp may be memory, where a commit costs nothing."""
    RESULTS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=RESULTS))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fsync_time(folder: Path, count: int = 50) -> float:
    """Seconds for the disk to take a page, in the middle of `count` tries."""
    times = []
    with (folder / "fsync").open("wb") as file:
        for _ in range(count):
            file.write(os.urandom(4096))
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def machine() -> dict[str, str | int]:
    return {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
