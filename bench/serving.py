"""Over HTTP: whole runs through the Connect door, and a thousand event streams at once, with an API key.

Beside each stands a bare starlette endpoint that says the same and does nothing: a process of its own on the same
uvicorn, asked by the same client. Both sides share the machine with the client, which is a process of its own too.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from .load import Found, Job
from .measure import ROUNDS, Line, Rounds, disk_folder, interleave
from .runs import TEXT
from .servers import ROOT, Running, bare, ours

WAIT, STREAM = "/connect/runs/wait", "/connect/runs/stream"
TRIVIAL: dict[str, Any] = {"agent_id": "trivial", "input": {"text": TEXT}}
BESIDE_BARE = 0.1  # of its rate, at 16 clients
PAUSE = 0.1  # seconds between two tokens of a stream


def ticks(count: int) -> dict[str, Any]:
    return {"agent_id": "ticks", "input": {"count": count, "pause": PAUSE}, "stream_mode": "custom"}


async def load(job: Job) -> Found:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load", cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(msgspec.json.encode(job))
    if process.returncode:
        raise RuntimeError(f"the load ended with {process.returncode}")
    return msgspec.json.decode(output, type=Found)


@contextlib.asynccontextmanager
async def both(folder: Path) -> AsyncIterator[tuple[Running, Running]]:
    """Ours and the bare endpoint, fresh. The bare one answers with what ours has answered."""
    async with ours(_new_store(folder)) as server:
        found = await load(Job(server.port, WAIT, TRIVIAL, 1, 1, key=server.key))
        answer = msgspec.json.decode(found.last)
        assert answer["output"]["values"] == {"text": TEXT}, answer
        async with bare(answer) as other:
            yield server, other


def _new_store(folder: Path) -> Path:
    return folder / f"{len(list(folder.iterdir()))}.db"


class _Rates:
    """What one server does: runs a second, and what it computes for each."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self.computed: list[float] = []  # microseconds for each run
        self.busy: list[float] = []  # shares of the time in which the client computed

    async def __call__(self, clients: int, count: int) -> float:
        server = self._server
        found = await load(Job(server.port, WAIT, TRIVIAL, clients, count, server=server.process, key=server.key))
        self.busy.append(found.busy)
        self.computed.append(found.server_time / count * 1e6)
        return count / found.seconds

    def forget(self) -> None:
        self.computed.clear()
        self.busy.clear()


async def serving(quick: bool) -> list[Line]:
    lines = []
    with disk_folder() as folder:
        async with both(folder) as (keyed, other), ours(_new_store(folder), keyed=False) as unkeyed:
            with_key, without, least = sides = [_Rates(server) for server in (keyed, unkeyed, other)]
            for side in sides:
                await side(16, 50 if quick else 2000)
            for clients in (1, 16, 64):
                count = 64 if quick else {1: 500, 16: 3000, 64: 4000}[clients]
                for side in sides:
                    side.forget()
                measured = await interleave(
                    1 if quick else ROUNDS,
                    partial(with_key, clients, count),
                    partial(without, clients, count),
                    partial(least, clients, 2 * count),
                )
                each, open_, bare_ = (statistics.median(side.computed) for side in sides)
                what = f"create and wait over HTTP, {clients} client{'s' * (clients > 1)}"
                note = (
                    f"durable runs, with a key; the server computed {each:.0f} µs for each, bare {bare_:.0f} µs; "
                    f"the client was busy {max(max(side.busy) for side in sides):.0%} of the time at most"
                )
                beside = "a bare starlette endpoint, same JSON"
                asked = BESIDE_BARE if clients == 16 else None
                lines.append(
                    measured.line(0, 2, Line("serving", what, "runs/s", beside=beside, asked=asked, note=note))
                )
                note = f"the server without keys computed {open_:.0f} µs for each"
                asked = 0.9 if clients == 16 else None
                beside = "the same without a key"
                lines.append(
                    measured.line(0, 1, Line("serving", what, "runs/s", beside=beside, asked=asked, note=note))
                )
    return lines


async def sse(quick: bool) -> list[Line]:
    return [*await _many_streams(quick), *await _first_event(quick)]


async def _many_streams(quick: bool) -> list[Line]:
    """All tokens of all streams count, also those that came while other streams were still being opened."""
    streams, tokens, spread = (20, 5, 0.1) if quick else (1000, 100, 2.0)
    found: list[list[Found]] = [[], []]
    with disk_folder() as folder:
        for _ in range(1 if quick else 3):
            # Fresh servers in each round: memory that was freed by one round would hide what the next one takes.
            async with both(folder) as pair:
                for server, results in zip(pair, found, strict=True):
                    await load(Job(server.port, STREAM, ticks(2), 20, 40, streams=True, tokens=2, key=server.key))
                    job = Job(
                        server.port, STREAM, ticks(tokens), streams, streams, streams=True, tokens=tokens,
                        spread=spread, server=server.process, key=server.key,
                    )  # fmt: skip
                    results.append(seen := await load(job))
                    assert len(seen.delays) == streams * tokens, f"{len(seen.delays)} of {streams * tokens} tokens came"
                    assert seen.most == streams, f"{seen.most} of {streams} streams were open at once"
    own = found[0]
    beside = "a bare starlette stream of the same updates"
    what = f"{streams:,} streams, a token per 100 ms"

    def rounds(measure: Callable[[Found], float]) -> Rounds:
        return Rounds([[measure(seen) for seen in side] for side in found])

    def middle(side: list[Found], measure: Callable[[Found], float]) -> float:
        return statistics.median(measure(seen) for seen in side)

    p99 = rounds(lambda seen: percentile(seen.delays, 0.99) * 1000)
    memory = rounds(lambda seen: (seen.memory_during - seen.memory_before) / streams / 1024)
    p50 = [middle(side, lambda seen: percentile(seen.delays, 0.5) * 1000) for side in found]
    late = [middle(side, lambda seen: seen.seconds - spread - PAUSE * (tokens - 1)) for side in found]
    updates = middle(own, lambda seen: seen.events)
    each = [middle(side, lambda seen: seen.server_time / streams / tokens * 1e6) for side in found]
    busy = max(seen.busy for side in found for seen in side)
    note = (
        f"from yield to arrival; all {streams * tokens:,} tokens came, in {updates:,.0f} updates; "
        f"p50 {p50[0]:.1f} ms, bare {p50[1]:.1f} ms; the last ended {late[0]:.1f} s late, bare {late[1]:.1f} s; "
        f"the server computed {each[0]:.0f} µs for each token, bare {each[1]:.0f} µs; "
        f"the client was busy {busy:.0%} of the time at most"
    )
    before = middle(own, lambda seen: seen.memory_before) / 2**20
    return [
        p99.line(0, 1, Line("sse", f"{what}: p99 delay of a token", "ms", beside=beside, note=note)),
        memory.line(
            0,
            1,
            Line(
                "sse",
                f"{what}: memory of a stream",
                "KiB",
                beside=beside,
                note=f"of the server's process, with connection, run and reader; {before:.0f} MiB before",
            ),
        ),
    ]


async def _first_event(quick: bool) -> list[Line]:
    count = 20 if quick else 400
    found: list[Rounds] = [Rounds([[], []]), Rounds([[], []])]  # p50, p99
    with disk_folder() as folder:
        async with both(folder) as pair:
            for at in range(2 if quick else ROUNDS + 1):
                for side, server in enumerate(pair):
                    job = Job(server.port, STREAM, ticks(1), 1, count, streams=True, tokens=1, key=server.key)
                    firsts = sorted((await load(job)).firsts)
                    if at:  # the first round warms up
                        for rounds, share in zip(found, (0.5, 0.99), strict=True):
                            rounds.sides[side].append(percentile(firsts, share) * 1000)
    beside = "a bare starlette stream"
    note = "from the request to the first token of a durable run, one stream at a time"
    return [
        rounds.line(0, 1, Line("sse", f"time to the first event, {name}", "ms", beside=beside, note=note))
        for name, rounds in zip(("p50", "p99"), found, strict=True)
    ]


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
