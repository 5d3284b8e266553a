"""What the same work costs on one machine's file and on PostgreSQL and NATS with one, two and four workers: CPU seconds
of every process for each run and each delta, what a hop adds, and how long a run stands still whose worker was killed.

Not part of `python -m bench`, since it needs PostgreSQL and NATS (both come with packages): `python -m bench.cluster`.
All processes share the cores of this machine: throughput here says little, CPU seconds say what more machines would do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from interlingua.server.dev.local_nats import LocalNats
from interlingua.server.dev.local_servers import LocalPostgres

from .load import Job, memory_of, time_of
from .measure import disk_folder
from .serving import STREAM, WAIT, load, percentile

AGENTS = """
import asyncio
import os
import time
from collections.abc import AsyncIterator

import interlingua as il


@il.agent
async def trivial(text: str) -> str:
    return text


@il.agent
async def ticks(count: int, pause: float) -> AsyncIterator[str]:
    for index in range(count):
        if index:
            await asyncio.sleep(pause)
        yield f"{index}:{time.monotonic_ns()} "


@il.agent
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@il.agent
async def alive(seconds: float) -> AsyncIterator[str]:
    for _ in range(int(seconds / 0.05)):
        yield f"{os.getpid()} "
        await asyncio.sleep(0.05)
"""
_ROLES = ("server", "workers", "postgres", "nats")


class Fleet:
    """A server and its workers, or a server alone with a file; and how much each has computed so far."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.workers = workers
        self.name = "one process, a file" if not workers else f"{workers} worker{'s' * (workers > 1)}"
        self._folder = folder
        self._agents = folder / "agents.py"
        self._agents.write_text(AGENTS)
        self._processes: list[asyncio.subprocess.Process] = []
        self._read: list[asyncio.Future[bytes]] = []  # what they still say, so that no pipe fills up
        self._postgres: LocalPostgres | None = None
        self._nats: LocalNats | None = None
        self.port = 0

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[Fleet]:
        try:
            await self._start()
            yield self
        finally:
            for process in self._processes:
                if process.returncode is None:
                    process.terminate()
            for process in self._processes:
                await process.wait()
            for server in (self._nats, self._postgres):
                if server is not None:
                    await asyncio.to_thread(server.stop)

    async def _start(self) -> None:
        where = ["--store", str(self._folder / "store.db")]
        serve = ["serve", str(self._agents), "--port", "0", "--no-peer-ports"]
        if self.workers:
            self._postgres = LocalPostgres(self._folder / "postgres")
            self._nats = LocalNats(self._folder / "nats")
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in (self._postgres, self._nats)))
            where = ["--store", self._postgres.url, "--bus", self._nats.url]
            serve += ["--limits-max-running", "0"]
        said = await self._run("Serving on ", *serve, *where)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found is not None, said
        self.port = int(found[1])
        self._worker = ["worker", str(self._agents), *where]
        for _ in range(self.workers):
            await self._run("Working on ", *self._worker)

    async def replace(self, pid: int) -> None:
        """Another worker for one that was killed."""
        (dead,) = (process for process in self._processes if process.pid == pid)
        await dead.wait()
        self._processes.remove(dead)
        await self._run("Working on ", *self._worker)

    async def _run(self, ready: str, *args: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "interlingua", *args, cwd=self._folder, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._processes.append(process)
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while line := (await process.stderr.readline()).decode():
                if ready in line:
                    self._read.append(asyncio.ensure_future(process.stderr.read()))
                    return line
        raise RuntimeError(f"interlingua {' '.join(args)} did not come up")

    def memory(self) -> int:
        """Of all that run agents, in bytes."""
        return sum(memory_of(process.pid) for process in self._processes[min(1, self.workers) :])

    def computed(self) -> dict[str, float]:
        """CPU seconds of each role."""
        server, *workers = (process.pid for process in self._processes)
        spent = {"server": time_of(server), "workers": sum(time_of(pid) for pid in workers)}
        if self._postgres is not None and self._nats is not None:
            spent["postgres"] = sum(_family(int((self._postgres.data / "postmaster.pid").read_text().split()[0])))
            spent["nats"] = time_of(self._nats.pid)
        return spent


_gone: dict[int, float] = {}  # what processes of PostgreSQL had computed when they were last seen: some end meanwhile


def _family(pid: int) -> Iterator[float]:
    """Of a process and its children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            number = int(path.parent.name)
            if number == pid or int(text.rpartition(")")[2].split()[1]) == pid:
                _gone[number] = time_of(number)
    yield from _gone.values()


class Cost(msgspec.Struct):
    """What one thing cost: CPU microseconds of each role, and what a client saw."""

    seconds: float
    each: dict[str, float]
    delay: float = 0.0

    @property
    def all(self) -> float:
        return sum(self.each.values())


async def _cost(fleet: Fleet, job: Job, units: int) -> Cost:
    before = fleet.computed()
    found = await load(job)
    after = fleet.computed()
    each = {role: (after[role] - before[role]) / units * 1e6 for role in after}
    return Cost(found.seconds, each, percentile(found.delays, 0.5) * 1e3 if found.delays else 0.0)


def _input(agent: str, **given: Any) -> dict[str, Any]:
    return {"agent_id": agent, "input": given}


async def _measure(fleet: Fleet, quick: bool) -> dict[str, Any]:
    runs, streams, tokens, naps = (100, 4, 20, 40) if quick else (1500, 40, 200, 1000)
    trivial = _input("trivial", text="x" * 100)
    ticks = {**_input("ticks", count=tokens, pause=0.02), "stream_mode": "custom"}
    await load(Job(fleet.port, WAIT, trivial, 16, runs // 4))
    rounds = 1 if quick else 2
    whole = [await _cost(fleet, Job(fleet.port, WAIT, trivial, 16, runs), runs) for _ in range(rounds)]
    alone = [await _cost(fleet, Job(fleet.port, WAIT, trivial, 1, runs // 10), runs // 10) for _ in range(rounds)]
    told = [
        await _cost(
            fleet, Job(fleet.port, STREAM, ticks, streams, streams, streams=True, tokens=tokens), streams * tokens
        )
        for _ in range(rounds)
    ]
    asleep = min(200, naps)
    resting = await _cost(fleet, Job(fleet.port, WAIT, _input("nap", seconds=0.5), asleep, naps), naps)
    many = 50 if quick else 1000
    before = fleet.memory()
    asleep_at_once = asyncio.ensure_future(load(Job(fleet.port, WAIT, _input("nap", seconds=4.0), many, many)))
    most = before
    while not asleep_at_once.done():
        most = max(most, fleet.memory())
        await asyncio.sleep(0.05)
    await asleep_at_once
    return {
        "run": min(whole, key=lambda one: one.all),
        "delta": min(told, key=lambda one: one.all),
        "rate": max(runs / one.seconds for one in whole),
        "alone": statistics.median(one.seconds / (runs // 10) * 1e3 for one in alone),
        "delay": statistics.median(one.delay for one in told),
        "naps": naps / resting.seconds,
        "naps_most": asleep / 0.5,
        "memory": (most - before) / many,
    }


async def _takeover(fleet: Fleet, times: int) -> list[float]:
    """Seconds between the death of a worker and the next word of its run, from another one."""
    found = []
    for _ in range(times):
        body = msgspec.json.encode({**_input("alive", seconds=120), "stream_mode": "custom"})
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        head = f"POST {STREAM} HTTP/1.1\r\nhost: 127.0.0.1:{fleet.port}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        first = 0
        killed = 0.0
        async with asyncio.timeout(60):
            while line := await reader.readline():
                for pid in (int(one) for one in re.findall(rb"(\d+) ", line.partition(b'"text":"')[2])):
                    if not first:
                        first = pid
                        os.kill(pid, signal.SIGKILL)
                        killed = time.monotonic()
                    elif pid != first and killed:
                        found.append(time.monotonic() - killed)
                        killed = 0.0
                if first and not killed:
                    break
        writer.close()
        await fleet.replace(first)
    return found


def _show(console: Console, found: dict[str, dict[str, Any]]) -> None:
    base = next(iter(found.values()))
    table = Table("CPU microseconds", *(name for name in found))
    for column in range(1, len(found) + 1):
        table.columns[column].justify = "right"
    for what in ("run", "delta"):
        for role in _ROLES:
            cells = [measured[what].each.get(role) for measured in found.values()]
            table.add_row(f"for each {what}: {role}", *("" if cell is None else f"{cell:,.1f}" for cell in cells))
        totals = [measured[what].all for measured in found.values()]
        table.add_row(f"[bold]for each {what}", *(f"[bold]{one:,.1f} ({one / base[what].all:.2f})" for one in totals))
        table.add_section()
    for name, title, unit in (
        ("rate", "create and wait, 16 clients", "runs/s"), ("alone", "create and wait, 1 client", "ms"),
        ("delay", "from yield to arrival, p50", "ms"),
        ("naps", "agents that rest half a second, 200 clients", "runs/s"),
    ):  # fmt: skip
        cells = [measured[name] for measured in found.values()]
        table.add_row(title, *(f"{one:,.2f} {unit} ({one / base[name]:.2f})" for one in cells))
    table.add_row("  of the most that they can", *(f"{one['naps'] / one['naps_most']:.2f}" for one in found.values()))
    table.add_row("memory of a run that rests", *(f"{one['memory'] / 1024:,.1f} KiB" for one in found.values()))
    console.print(table)
    console.print("in brackets: beside one process with a file", highlight=False)


class Shape(msgspec.Struct):
    """Of the runs whose needs are calculated."""

    name: str
    seconds: float  # that a run takes, or waits
    deltas: float  # that are told to one reader
    aside: bool = False  # while it waits it is in the database only


_SHAPES = (
    Shape("streams 300 deltas in 15 s", 15, 300),
    Shape("works for 60 s, streams nothing", 60, 0),
    Shape("waits a day for an answer", 86_400, 0, aside=True),
)
_USED = 0.6  # of a core, so that peaks have room


def _needs(console: Console, measured: dict[str, Any]) -> None:
    """What so many runs at once need, from what one costs here. Nothing of it was run at that size."""
    run, delta = measured["run"].each, measured["delta"].each
    table = Table("at once", "each", "begun per second", *(f"cores: {role}" for role in _ROLES), "memory of workers")
    for column in range(2, 8):
        table.columns[column].justify = "right"
    for count in (10**3, 10**5, 10**7):
        for shape in _SHAPES:
            rate = count / shape.seconds
            times = 2 if shape.aside else 1  # it is entered once more for its answer
            cores = [rate * (times * run[role] + shape.deltas * delta[role]) / 1e6 / _USED for role in _ROLES]
            memory = "" if shape.aside else f"{count * measured['memory'] / 2**30:,.1f} GiB"
            table.add_row(f"{count:,}", shape.name, f"{rate:,.1f}", *(f"{one:,.2f}" for one in cores), memory)
        table.add_section()
    console.print(table)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that everything works; the numbers mean nothing")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    found: dict[str, dict[str, Any]] = {}
    takeovers: list[float] = []
    for workers in (0, 2) if options.quick else (0, 1, 2, 4):
        with disk_folder() as folder:
            folder.chmod(0o711)
            async with Fleet(folder, workers).up() as fleet:
                begun = time.monotonic()
                found[fleet.name] = await _measure(fleet, options.quick)
                console.print(f"[dim]{fleet.name}: {time.monotonic() - begun:.0f} s", highlight=False)
                if workers == 2:
                    takeovers = await _takeover(fleet, 1 if options.quick else 3)
    _show(console, found)
    spread = f"{min(takeovers):.1f} to {max(takeovers):.1f} s, in the middle {statistics.median(takeovers):.1f} s"
    _needs(console, found["2 workers"])
    console.print(f"from kill -9 of a worker to the next word of its run, elsewhere: {spread}", highlight=False)


if __name__ == "__main__":
    asyncio.run(main())
