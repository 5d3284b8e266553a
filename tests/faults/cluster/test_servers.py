"""Servers that die under their readers, a bus that is gone or deaf, and a database that is stopped in the middle."""

from __future__ import annotations

import asyncio
import signal

import pytest

from .cluster import LEASE, SLACK
from .scenario import scenario
from .test_workers import busy, go_on

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


async def test_a_replica_that_is_killed_under_its_readers_is_replaced_by_any_other() -> None:
    async with scenario("kill -9 of a replica that holds streams", servers=3) as (cluster, crowd):
        for replica in cluster.servers:
            for door in ("connect", "cap", "mcp", "mcp", "mcp"):
                crowd.run(door, "count", "60 0.05")
            await crowd.until(lambda: crowd.reading() >= 5)
            before = sum(crowd.errors.values())
            await replica.end(signal.SIGKILL)
            cluster.note("kill -9 of a replica")
            await crowd.until(lambda before=before: sum(crowd.errors.values()) > before)  # type: ignore[misc]
            await go_on(crowd)
            await cluster.revive(replica)


async def test_without_nats_everything_goes_on_and_with_an_empty_one_too() -> None:
    async with scenario("kill of NATS, and a new one that knows nothing") as (cluster, crowd):
        await busy(cluster, crowd, cluster.workers[0])
        await cluster.lose_nats()
        cluster.note("NATS is gone")
        await go_on(crowd, 6)
        await busy(cluster, crowd, cluster.workers[0])
        await cluster.kill(cluster.workers[0], "kill -9 of a worker, without NATS")
        await go_on(crowd, 6)
        await asyncio.to_thread(cluster.nats.start)
        await asyncio.gather(*(server.hear("is there again") for server in cluster.servers))
        await go_on(crowd, 6)
        await cluster.revive(cluster.workers[0])
        await busy(cluster, crowd, cluster.workers[1])
        await cluster.kill(cluster.workers[1], "kill -9 of a worker, with NATS again")
        await go_on(crowd, 6)


async def test_a_database_that_is_stopped_in_the_middle_loses_nothing() -> None:
    async with scenario("pg_ctl stop -m immediate, and start") as (cluster, crowd):
        for away in (0.0, LEASE + 1.0):  # seconds
            await busy(cluster, crowd, cluster.workers[0])
            runs = [run for worker in cluster.workers for run in await cluster.watcher.owned(worker.pid)]
            await cluster.restart_postgres(away)
            cluster.note(f"PostgreSQL was away for {away:g} s", runs, SLACK)
            await go_on(crowd)


async def test_a_worker_that_dies_with_the_database_is_missed_when_that_is_back() -> None:
    async with scenario("PostgreSQL and a worker at once") as (cluster, crowd):
        worker = cluster.workers[0]
        await busy(cluster, crowd, worker)
        runs = await cluster.watcher.owned(worker.pid)
        await asyncio.to_thread(cluster.postgres.stop, at_once=True)
        await worker.end(signal.SIGKILL)
        await asyncio.to_thread(cluster.postgres.start)
        cluster.note("kill -9 of a worker while PostgreSQL was away", runs, LEASE + SLACK)
        await go_on(crowd)
        await cluster.revive(worker)
