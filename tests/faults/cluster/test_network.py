"""Networks that break: a worker that cannot reach the store, and a bus on which nobody hears anybody."""

from __future__ import annotations

import asyncio

import pytest

from .cluster import LEASE, SLACK, Cluster
from .proxy import Mode, Proxy
from .scenario import scenario
from .test_workers import busy, go_on

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


async def cut_off(cluster: Cluster) -> tuple[Proxy, int]:
    """A worker whose way to the store is a proxy, and its place among the workers."""
    proxy = Proxy(cluster.postgres.port)
    await proxy.start()
    cluster.also(proxy.stop)
    await cluster.add_worker(len(cluster.workers), store=proxy.port)
    return proxy, len(cluster.workers) - 1


@pytest.mark.parametrize("mode", ["hold", "lose"])
async def test_a_worker_that_does_not_reach_the_store_is_replaced_and_writes_nothing_when_it_does_again(
    mode: Mode,
) -> None:
    async with scenario(f"a worker is cut off from the store ({mode})", workers=1) as (cluster, crowd):
        proxy, place = await cut_off(cluster)
        worker = cluster.workers[place]
        await busy(cluster, crowd, worker)
        runs = await cluster.watcher.owned(worker.pid)
        proxy.set(mode)
        cluster.note(f"a worker cut off ({mode})", runs, LEASE + SLACK)
        while any(owner == worker.pid for owner in await cluster.watcher.owners(runs)):
            await go_on(crowd, 1)
        await go_on(crowd)
        said = len(worker.said)
        proxy.set("pass")
        await worker.hear(r"gave no sign for too long, and lost its \d+ runs", after=said)
        await busy(cluster, crowd, worker)
        await go_on(crowd)


async def test_a_bus_on_which_nobody_hears_anybody_costs_only_time() -> None:
    """Each process has a prefix of its own: NATS is there, takes everything, and gives it to nobody."""
    async with scenario("a bus that loses everything", servers=0, workers=0) as (cluster, crowd):
        for number in range(2):
            await cluster.add_server(number, bus=f"{cluster.nats.url}/server{number}")
            await cluster.add_worker(number, bus=f"{cluster.nats.url}/worker{number}")
        await busy(cluster, crowd, cluster.workers[0])
        await cluster.kill(cluster.workers[0], "kill -9 of a worker, on a deaf bus")
        await go_on(crowd, 6)
        await cluster.revive(cluster.workers[0])
        await go_on(crowd, 6)


async def test_a_bus_that_falls_silent_and_comes_back_costs_only_time() -> None:
    async with scenario("NATS swallows everything for a while", servers=0, workers=0) as (cluster, crowd):
        proxy = Proxy(cluster.nats.port)
        await proxy.start()
        cluster.also(proxy.stop)
        for number in range(2):
            await cluster.add_server(number, bus=f"nats://127.0.0.1:{proxy.port}")
            await cluster.add_worker(number, bus=f"nats://127.0.0.1:{proxy.port}")
        await busy(cluster, crowd, cluster.workers[0])
        proxy.set("lose")
        cluster.note("NATS is silent")
        await busy(cluster, crowd, cluster.workers[0])
        await cluster.kill(cluster.workers[0], "kill -9 of a worker, while the bus is silent")
        await go_on(crowd, 10)
        await asyncio.gather(*(server.hear("cannot be reached") for server in cluster.servers))
        proxy.set("pass")
        await asyncio.gather(*(server.hear("is there again") for server in cluster.servers))
        await cluster.revive(cluster.workers[0])
        await go_on(crowd, 6)
