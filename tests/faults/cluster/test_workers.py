"""Workers that die or stand still while they work: their runs go on elsewhere, and nothing is said twice."""

from __future__ import annotations

import asyncio
import signal

import pytest

from .clients import Crowd
from .cluster import Cluster, Process
from .scenario import scenario

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


async def busy(cluster: Cluster, crowd: Crowd, worker: Process) -> None:
    """Until a worker has something to lose."""
    for door in ("connect", "cap", "mcp", "connect"):
        crowd.run(door, "count", "80 0.05")
    await crowd.until(lambda: crowd.reading() >= 4)
    while not await cluster.watcher.owned(worker.pid):
        before = len(cluster.history.accepted)
        crowd.run("connect", "count", "80 0.05")
        await crowd.until(lambda before=before: len(cluster.history.accepted) > before)  # type: ignore[misc]


async def go_on(crowd: Crowd, runs: int = 4) -> None:
    """Until so many more runs have come to their end."""
    enough = crowd.finished + runs
    await crowd.until(lambda: crowd.finished >= enough)


async def test_a_worker_that_is_killed_while_it_streams_is_replaced_without_a_gap() -> None:
    async with scenario("kill -9 of a worker") as (cluster, crowd):
        for worker in (cluster.workers[0], cluster.workers[1], cluster.workers[0]):
            await busy(cluster, crowd, worker)
            await cluster.kill(worker)
            await go_on(crowd)
            await cluster.revive(worker)


async def test_questions_outlive_every_worker() -> None:
    async with scenario("questions are open when all workers are killed") as (cluster, crowd):
        crowd.may_answer.clear()
        for door in ("connect", "cap", "mcp", "connect"):
            crowd.run(door, "asker", "2")
        await crowd.until(lambda: crowd.asked >= 4)
        for worker in cluster.workers:
            await worker.end(signal.SIGKILL)
        crowd.may_answer.set()
        # They are taken while nobody works, and read when somebody does.
        await crowd.until(lambda: len(cluster.history.answered) >= 2)
        await asyncio.gather(*map(cluster.revive, cluster.workers))
        await go_on(crowd, 8)


async def test_a_worker_that_stood_still_cannot_write_any_more_and_goes_on_as_a_new_one() -> None:
    async with scenario("SIGSTOP of a worker past its lease") as (cluster, crowd):
        worker = cluster.workers[0]
        for _ in range(2):
            await busy(cluster, crowd, worker)
            assert await cluster.pause(worker)
            await cluster.go_on_as_new(worker, lambda: worker.send(signal.SIGCONT))
            await busy(cluster, crowd, worker)  # it takes new ones
            await go_on(crowd)
