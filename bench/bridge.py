"""What a bridge costs: an agent of one server, mounted in another by protocol A and called there by protocol B.

Both servers are processes of their own. Beside a bridged call stand the direct calls of its two ends: A at the server
that has the agent, and B at the hub for an agent of its own. The overhead of a hop is what the bridged call takes
beyond the direct one of A. Runs are durable in both.

All three do the same work. A call of the editor door is a turn of a session that the client keeps, so what it is
bridged to is a turn of a conversation too, and is compared with one. A call of any other door is on its own: bridged to
the editor protocol it needs a session of its own, and the direct call beside it makes one, prompts, and closes it. Both
speak that protocol over a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from interlingua.cli.demo.processes import Process
from interlingua.server.logs import LogFormat

from .bridge_clients import CLIENTS, Client
from .load import memory_of, raise_file_limit
from .measure import Line, Rounds, disk_folder, interleave

HERE = Path(__file__).parent
AGENTS = str(HERE / "bridge_agents.py")
PROTOCOLS = tuple(CLIENTS)
TEXT = "What is said here comes back."


class Pair:
    """The server with the agents, and the hub that has mounted them."""

    def __init__(self, source: Process, hub: Process) -> None:
        self.source = source
        self.hub = hub


@contextlib.asynccontextmanager
async def bridged(folder: Path) -> AsyncIterator[Pair]:
    os.environ["BRIDGE_NAMES"] = " ".join(PROTOCOLS)
    source = Process([AGENTS], folder / "source.db", log=LogFormat.OFF)
    await source.start()
    try:
        os.environ["BRIDGE_NAMES"] = "native"
        mounts = [
            f"{protocol}+{_address(source, protocol)}/{protocol}#{kind}-{protocol}"
            for protocol in PROTOCOLS
            for kind in ("quick", "ticker")
        ]
        hub = Process([AGENTS, *mounts], folder / "hub.db", log=LogFormat.OFF)
        await hub.start()
        try:
            yield Pair(source, hub)
        finally:
            await hub.stop()
    finally:
        del os.environ["BRIDGE_NAMES"]
        await source.stop()


def _address(server: Process, protocol: str) -> str:
    return server.address.replace("http://", "ws://") if protocol == "editor" else server.address


async def timed(client: Client, agent: str, count: int, *, talk: bool = False) -> float:
    """Milliseconds of one call, one after the other."""
    begun = time.perf_counter()
    for _ in range(count):
        told = await client.call(agent, TEXT, talk=talk)
        assert told == TEXT, told
    return (time.perf_counter() - begun) / count * 1000


async def bridge(quick: bool) -> list[Line]:
    raise_file_limit()
    with disk_folder() as folder:
        async with bridged(folder) as pair:
            at_source = {name: make(pair.source.address) for name, make in CLIENTS.items()}
            at_hub = {name: make(pair.hub.address) for name, make in CLIENTS.items()}
            try:
                lines = await _hops(at_source, at_hub, quick)
                lines += await _delays(at_source, at_hub, quick)
            finally:
                for client in (*at_source.values(), *at_hub.values()):
                    await client.close()
            lines += await _crowd(pair, quick)
    return lines


async def _hops(at_source: dict[str, Client], at_hub: dict[str, Client], quick: bool) -> list[Line]:
    count, rounds = (2, 1) if quick else (15, 7)
    lines = []
    for mounted in PROTOCOLS:
        for served in PROTOCOLS:
            far, near, talk = at_source[mounted], at_hub[served], served == "editor"
            sides = (
                partial(timed, near, f"quick-{mounted}", count, talk=talk),
                partial(timed, far, f"quick-{mounted}", count, talk=talk),
                partial(timed, near, "quick-native", count, talk=talk),
            )
            for side in sides:
                await side()
            found = await interleave(rounds, *sides)
            both = [far + near for far, near in zip(found.sides[1], found.sides[2], strict=True)]
            hop = [through - far for through, far in zip(found.sides[0], found.sides[1], strict=True)]
            whole = statistics.median(through / ends for through, ends in zip(found.sides[0], both, strict=True))
            line = Line(
                "bridge", f"overhead of the hop: {served} → hub → {mounted}", "ms",
                beside="both ends called directly, added", asked=1.0, bound="at most",
                note=f"the whole call {found.median(0):.2f} ms, {whole:.2f} of both ends; {mounted} alone "
                f"{found.median(1):.2f} ms, {served} alone {found.median(2):.2f} ms",
            )  # fmt: skip
            lines.append(Rounds([hop, both]).line(0, 1, line))
    return lines


async def _delays(at_source: dict[str, Client], at_hub: dict[str, Client], quick: bool) -> list[Line]:
    """From when a token is made until it is read, through the bridge and without it."""
    count = 10 if quick else 100
    lines = []
    for mounted in PROTOCOLS:
        direct = await _delay(at_source[mounted], f"ticker-{mounted}", count)
        for served in PROTOCOLS:
            through = await _delay(at_hub[served], f"ticker-{mounted}", count)
            own = await _delay(at_hub[served], "ticker-native", count)
            least = min(statistics.median(direct), statistics.median(own))
            lines.append(
                Line(
                    "delay",
                    f"a token over the hop, p50: {served} → hub → {mounted}",
                    "ms",
                    ours=statistics.median(through) - least,
                    asked=2.0,
                    bound="at most",
                    note=f"through the bridge {statistics.median(through):.2f} ms (p99 {_p99(through):.2f}), "
                    f"{mounted} alone {statistics.median(direct):.2f}, {served} alone {statistics.median(own):.2f}",
                )
            )
    return lines


async def _delay(client: Client, agent: str, count: int) -> list[float]:
    found: list[float] = []
    async for piece in client.pieces(agent, f"{count} 20"):
        now = time.monotonic_ns()
        found += [(now - int(word)) / 1e6 for word in piece.split()]
    assert len(found) == count, f"{len(found)} of {count} tokens came"
    return found


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


async def _crowd(pair: Pair, quick: bool) -> list[Line]:
    """Many bridged runs at once, for a while, over every pair in turn: none is lost, and memory stays where it is."""
    at_once, seconds, tokens = (10, 2.0, 5) if quick else (200, 60.0, 40)
    ends = asyncio.get_running_loop().time() + seconds
    pairs = [(mounted, served) for mounted in PROTOCOLS for served in PROTOCOLS]
    done = [0]
    memory: list[tuple[float, float, float]] = []

    async def branch(number: int) -> None:
        mounted, served = pairs[number % len(pairs)]
        client = CLIENTS[served](pair.hub.address)
        try:
            while asyncio.get_running_loop().time() < ends:
                pieces = client.pieces(f"ticker-{mounted}", f"{tokens} 50")
                heard = [word async for piece in pieces for word in piece.split()]
                assert len(heard) == tokens, f"{served} → {mounted}: {len(heard)} of {tokens} tokens came"
                assert heard == sorted(heard, key=int), f"{served} → {mounted}: tokens came in another order"
                done[0] += 1
        finally:
            await client.close()

    async def watch() -> None:
        begun = time.perf_counter()
        while True:
            took = time.perf_counter() - begun
            memory.append((took, memory_of(pair.hub.pid) / 2**20, memory_of(pair.source.pid) / 2**20))
            await asyncio.sleep(seconds / 60)

    watching = asyncio.ensure_future(watch())
    try:
        await asyncio.gather(*(branch(number) for number in range(at_once)))
    finally:
        watching.cancel()
    thirds = [[row for row in memory if at <= row[0] / memory[-1][0] * 3 < at + 1] for at in (1, 2)]
    lines = [
        Line(
            "crowd",
            f"{at_once} bridged runs at once for {seconds:.0f} s",
            "runs",
            ours=done[0],
            note=f"{tokens} tokens each, over all pairs; none was lost or came out of order",
        )
    ]
    for column, name in ((1, "hub"), (2, "source")):
        before, after = (statistics.median(row[column] for row in third) for third in thirds if third)
        lines.append(
            Line(
                "crowd",
                f"memory of the {name}, last third beside the second",
                "MiB",
                ours=after,
                ceiling=before,
                beside="the second third",
                asked=1.1,
                bound="at most",
                rounds=[after / before],
            )
        )
    return lines
