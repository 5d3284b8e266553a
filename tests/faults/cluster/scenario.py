"""How a scenario goes: a cluster and its clients, something that breaks, the end of all runs, and the proof."""

from __future__ import annotations

import contextlib
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ..history import History, distribution, takeovers
from ..history_check import defects
from .clients import Crowd, resolve
from .cluster import Cluster, broken

SEED = "INTERLINGUA_FAULTS_SEED"


def seed() -> int:
    """Another one each time, unless somebody wants the same again."""
    return int(os.environ.get(SEED) or random.SystemRandom().randrange(1_000_000))


@contextlib.asynccontextmanager
async def scenario(
    name: str, *, clients: int = 6, prepare: Callable[[Cluster], Awaitable[None]] | None = None, **settings: Any
) -> AsyncIterator[tuple[Cluster, Crowd]]:
    """While it is open, clients are at work and something may be broken. Then everything is held against the log."""
    number = seed()
    print(f"\n{name}: {SEED}={number}", flush=True)
    async with broken(**settings) as cluster:
        if prepare is not None:
            await prepare(cluster)
        crowd = Crowd(cluster.addresses, cluster.history, number)
        try:
            crowd.start(clients)
            yield cluster, crowd
            await crowd.finish()
            await cluster.settled()
        finally:
            await crowd.close()
        history = cluster.history
        resolve(history)
        report(name, cluster, crowd)
        found = defects(history)
        for run in dict.fromkeys(defect.run for defect in found):
            print(story(history, run))
        assert not found, "\n".join(["", *map(str, found)])
        assert len(history.rows) >= clients  # there was load worth the name


def story(history: History, run: str) -> str:
    """What happened to a run, for whoever has to find out why."""
    began = min((event.time for event in history.logs.get(run, [])), default=0) / 1e6
    told = [(fault.time, f"--- {fault.what}") for fault in history.faults]
    told += [(event.time / 1e6, f"{event.seq} {event.kind}") for event in history.logs.get(run, [])]
    told += [
        (seen.time, f"seen: epoch {seen.epoch} of {seen.worker}, {seen.next_seq - 1} events")
        for seen in history.sightings if seen.run == run
    ]  # fmt: skip
    told += [
        (piece.time, f"read by {reader.name}: {piece.kind} {piece.place} {piece.value}")
        for reader in history.readers if reader.run == run for piece in reader.pieces
    ]  # fmt: skip
    return "\n".join([f"run {run}", *(f"  {time - began:8.3f} {what}" for time, what in sorted(told))])


def report(name: str, cluster: Cluster, crowd: Crowd) -> None:
    history = cluster.history
    print(f"  runs: {len(history.rows)}, by door and agent: {dict(sorted(crowd.ended.items()))}")
    print(
        f"  acknowledged: {len(history.accepted)} runs, {len(history.answered)} answers, {len(history.stopped)} cancels"
    )
    again = sum(reader.connections > 1 for reader in history.readers)
    print(f"  readers: {len(history.readers)}, of which {again} came back; errors met: {dict(crowd.errors)}")
    times: dict[str, list[float]] = defaultdict(list)
    for fault, _, seconds in takeovers(history):
        if seconds is not None:
            times[fault.what].append(seconds)
    for what in dict.fromkeys(fault.what for fault in history.faults):
        print(f"  {what}: taken up again {distribution(times[what])}")
    lags = [
        piece.time - history.logs[reader.run][piece.place[0] - 1].time / 1e6
        for reader in history.readers
        for piece in reader.pieces
        if piece.place is not None and piece.kind == "delta" and reader.connections == 1
    ]
    print(f"  from the log to a reader who was not cut off: {distribution(lags)}", flush=True)
