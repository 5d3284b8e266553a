"""Workers that die or stand still while they work: their runs go on elsewhere, and nothing is said twice."""

from __future__ import annotations

import asyncio
import signal

import pytest

from .cluster import LEASE
from .scenario import scenario

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


async def test_a_worker_that_is_killed_while_it_streams_is_replaced_without_a_gap() -> None:
    async with scenario("kill -9 of a worker") as (cluster, crowd):
        for worker in (cluster.workers[0], cluster.workers[1], cluster.workers[0]):
            for _ in range(4):
                crowd.run("connect", "count", "80 0.05")
            await crowd.until(lambda: crowd.reading() >= 4)
            while not await cluster.watcher.owned(worker.pid):
                crowd.run("connect", "count", "80 0.05")
                before = len(cluster.history.accepted)
                await crowd.until(lambda before=before: len(cluster.history.accepted) > before + 2)  # type: ignore[misc]
            await cluster.kill(worker)
            ended = crowd.finished
            await crowd.until(lambda ended=ended: crowd.finished >= ended + 4)  # type: ignore[misc]
            await cluster.revive(worker)
