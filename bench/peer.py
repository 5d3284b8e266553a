"""Between two nodes, each in a process of its own: messages over HTTP and WebSocket, and events to those who listen.

Every message is on the disk of both nodes before it counts, and is counted there: each has come, and once. Beside them
stand a bare starlette endpoint and a bare echo, which keep nothing.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from interlingua.protocols.peer.translate import parts
from interlingua.protocols.peer.wire import frames

from .load import Job, time_of
from .measure import ROUNDS, Line, disk_folder, interleave
from .peer_echo import Job as EchoJob
from .peer_echo import echo
from .peer_echo import serving as echoing
from .peer_node import Done, Running, Send, Start, Tally, started
from .peer_streams import listening
from .servers import Running as Bare
from .servers import bare as started_bare
from .serving import WAIT, load, percentile

PATH = "/message:send"
TEXT = "The quick brown fox jumps over the lazy dog, and nobody in the office seems to mind it at all."
MESSAGE: dict[str, Any] = {"role": "user", "text": TEXT}
ASKED = 1000  # messages under way at once where a share of the echo's rate is asked: as many as carry the most


@contextlib.asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Running, Running]]:
    """A node and the peer that it is connected to, fresh."""
    number = len(list(folder.iterdir()))
    async with (
        started(Start(str(folder / f"{number}-to.db"), "to", notes=True)) as to,
        started(Start(str(folder / f"{number}-from.db"), "from", to.up.link)) as from_,
    ):
        yield from_, to


class Counts(Protocol):
    """A node, as far as it counts."""

    async def say(self, what: Tally, answer: type[Done]) -> Done: ...


class Arrivals:
    """How many messages have come to a peer, and that each has come once."""

    def __init__(self, from_: Counts, to: Counts) -> None:
        self._from, self._to = from_, to
        self._before = 0

    async def check(self, count: int) -> Done:
        """That `count` more have come since the last time."""
        await self._from.say(Tally(), Done)
        told = await self._to.say(Tally(), Done)
        came, self._before = told.letters - self._before, told.letters
        if came != count or told.again:
            raise RuntimeError(f"{count} messages were sent, {came} came, {told.again} of them twice")
        return told


async def peer(quick: bool) -> list[Line]:
    with disk_folder() as folder:
        return [
            *await _over_http(folder, quick),
            *await _between(folder, quick),
            *await _pushed(folder, quick),
        ]


# -- /message:send --------------------------------------------------------------------------------------------


async def _over_http(folder: Path, quick: bool) -> list[Line]:
    lines = []
    async with pair(folder) as (from_, to):
        arrivals = Arrivals(from_, to)
        found = await load(Job(from_.up.port, PATH, MESSAGE, 1, 1, says='"ok":true'))
        await arrivals.check(1)
        async with started_bare(msgspec.json.decode(found.last)) as bare:
            used: dict[int, list[float]] = {from_.id: [], bare.process: [], to.id: []}
            busy: list[float] = []

            async def ours(clients: int, count: int) -> float:
                before = time_of(to.id)
                job = Job(from_.up.port, PATH, MESSAGE, clients, count, server=from_.id, says='"ok":true')
                found = await load(job)
                await arrivals.check(count)
                used[from_.id].append(found.server_time / count * 1e6)
                used[to.id].append((time_of(to.id) - before) / count * 1e6)
                busy.append(found.busy)
                return count / found.seconds

            async def theirs(server: Bare, clients: int, count: int) -> float:
                job = Job(server.port, WAIT, MESSAGE, clients, count, server=server.process, says='"ok":true')
                found = await load(job)
                used[server.process].append(found.server_time / count * 1e6)
                busy.append(found.busy)
                return count / found.seconds

            await ours(50, 50 if quick else 2000)
            await theirs(bare, 50, 50 if quick else 2000)
            for clients in (1, 10, 50, 200):
                count = max(64, clients) if quick else {1: 500, 10: 2000}.get(clients, 4000)
                for noted in (busy, *used.values()):
                    noted.clear()
                measured = await interleave(
                    1 if quick else ROUNDS,
                    lambda clients=clients, count=count: ours(clients, count),  # type: ignore[misc]
                    lambda clients=clients, count=count: theirs(bare, clients, 2 * count),  # type: ignore[misc]
                )
                each, least, there = (statistics.median(values) for values in used.values())
                what = f"{PATH} over HTTP, {clients} client{'s' * (clients > 1)}"
                note = (
                    f"all came, each once; the node computed {each:.0f} µs for each, its peer {there:.0f} µs, bare "
                    f"{least:.0f} µs; the client was busy {max(busy):.0%} of the time at most"
                )
                line = Line("peer", what, "messages/s", beside="a bare starlette endpoint, same JSON", note=note)
                lines.append(measured.line(0, 1, line))
    return lines


# -- from node to node ----------------------------------------------------------------------------------------


async def _between(folder: Path, quick: bool) -> list[Line]:
    lines = []
    async with pair(folder) as (from_, to), echoing() as (port, echoer):
        arrivals = Arrivals(from_, to)
        sample = frames.message("from", "user", [parts.text(TEXT)], server_seq=10_000)
        frame = msgspec.json.encode(sample).decode()  # what the echo says is what our nodes say
        used: list[list[float]] = [[], [], [], []]  # what each process computed for a message: ours, and the echo's

        async def ours(in_flight: int, count: int) -> float:
            before = time_of(to.id)
            done = await from_.say(Send(count, in_flight, TEXT), Done)
            await arrivals.check(count)
            used[0].append(done.computed / count * 1e6)
            used[1].append((time_of(to.id) - before) / count * 1e6)
            return count / done.seconds

        async def theirs(in_flight: int, count: int, *, compressed: bool) -> float:
            before = time_of(echoer)
            done = await echo(EchoJob(port, frame, count, in_flight, compressed))
            if not compressed:
                return count / done.seconds
            used[2].append(done.computed / count * 1e6)
            used[3].append((time_of(echoer) - before) / count * 1e6)
            return count / done.seconds

        await ours(ASKED, 100 if quick else 5000)
        for in_flight in (1, 64, ASKED):
            count = max(100, in_flight) if quick else {1: 500}.get(in_flight, 10_000)
            for noted in used:
                noted.clear()
            measured = await interleave(
                1 if quick else ROUNDS,
                lambda in_flight=in_flight, count=count: ours(in_flight, count),  # type: ignore[misc]
                lambda in_flight=in_flight, count=count: theirs(in_flight, 2 * count, compressed=True),  # type: ignore[misc]
                lambda in_flight=in_flight, count=count: theirs(in_flight, 2 * count, compressed=False),  # type: ignore[misc]
            )
            each = [statistics.median(values) for values in used]
            what = f"from node to node over WebSocket, {in_flight:,} under way"
            note = (
                f"durable at both ends and confirmed; all came, each once; the nodes computed {each[0]:.0f} µs and "
                f"{each[1]:.0f} µs for each, the echo's ends {each[2]:.0f} µs and {each[3]:.0f} µs"
            )
            asked = 0.4 if in_flight == ASKED else None
            line = Line("peer", what, "messages/s", beside="an echo with websockets", asked=asked, note=note)
            lines.append(measured.line(0, 1, line))
            line = Line("peer", what, "messages/s", beside="the same without compression, as ours")
            lines.append(measured.line(0, 2, line))
    return lines


# -- events to those who listen -------------------------------------------------------------------------------


async def _pushed(folder: Path, quick: bool) -> list[Line]:
    lines = []
    async with pair(folder) as (from_, to):
        arrivals = Arrivals(from_, to)
        for readers in (1, 20, 50) if quick else (1, 100, 1000):
            count, pause = (10, 0.01) if quick else (100, 0.1)
            middle, high, computed = list[float](), list[float](), list[float]()
            for _ in range(1 if quick else 3):
                await arrivals.check(0)  # forgets when earlier events were committed
                async with listening(to.up.port, readers) as listeners:
                    before = time_of(to.id)
                    await from_.say(Send(count, 1, TEXT, pause), Done)
                    computed.append((time_of(to.id) - before) / count / readers * 1e6)
                    committed = (await arrivals.check(count)).committed
                    heard = await listeners.heard(sorted(committed))
                delays = sorted((at - committed[seq]) / 1e6 for one in heard for seq, at in one)
                if len(delays) != count * readers:
                    raise RuntimeError(f"{len(delays)} of {count * readers} events came")
                middle.append(percentile(delays, 0.5))
                high.append(percentile(delays, 0.99))
            what = f"an event to {readers:,} reader{'s' * (readers > 1)} of /stream"
            note = f"from its commit until it is read; all {count * readers:,} came"
            effort = f"the node computed {statistics.median(computed):.0f} µs for each and reader"
            lines.append(Line("peer", f"{what}, p50", "ms", statistics.median(middle), note=note))
            lines.append(Line("peer", f"{what}, p99", "ms", statistics.median(high), note=effort))
    return lines
