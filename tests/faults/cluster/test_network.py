"""Networks that break: a worker that cannot reach the store, and a bus on which nobody hears anybody."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial

import pytest

from tests.kit.commands import COMMAND

from ..test_peer_network import Lab, lab
from .cluster import Cluster, Process
from .gateway import exit_at
from .proxy import Mode, Proxy
from .scenario import scenario
from .test_workers import busy, go_on

__all__ = ["lab"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.mark.parametrize("mode", ["hold", "lose"])
async def test_a_worker_that_does_not_reach_the_store_is_replaced_and_writes_nothing_when_it_does_again(
    mode: Mode,
) -> None:
    proxies: list[Proxy] = []

    async def prepare(cluster: Cluster) -> None:
        proxy = Proxy(cluster.postgres.port)
        proxies.append(proxy)
        await proxy.start()
        cluster.also(proxy.stop)
        await cluster.add_worker(0, store=proxy.address)

    async with scenario(f"a worker is cut off from the store ({mode})", prepare=prepare, workers=0) as (cluster, crowd):
        (proxy,), (worker,) = proxies, cluster.workers
        for _ in range(2):
            await busy(cluster, crowd, worker)
            if len(cluster.workers) == 1:
                await cluster.add_worker(1)
            assert await cluster.cut(worker, proxy, mode)
            await cluster.go_on_as_new(worker, lambda: proxy.set("pass"))
            await go_on(crowd)


async def test_a_bus_on_which_nobody_hears_anybody_costs_only_time() -> None:
    """Each process has a prefix of its own: NATS is there, takes everything, and gives it to nobody."""

    async def prepare(cluster: Cluster) -> None:
        for number in range(2):
            await cluster.add_server(number, bus=f"{cluster.nats.url}/server{number}")
            await cluster.add_worker(number, bus=f"{cluster.nats.url}/worker{number}")

    async with scenario("a bus that loses everything", prepare=prepare, servers=0, workers=0) as (cluster, crowd):
        await busy(cluster, crowd, cluster.workers[0])
        await cluster.kill(cluster.workers[0], "kill -9 of a worker, on a deaf bus")
        await go_on(crowd, 6)
        await cluster.revive(cluster.workers[0])
        await go_on(crowd, 6)


async def test_a_bus_that_falls_silent_and_comes_back_costs_only_time() -> None:
    proxies: list[Proxy] = []

    async def prepare(cluster: Cluster) -> None:
        proxy = Proxy(cluster.nats.port)
        proxies.append(proxy)
        await proxy.start()
        cluster.also(proxy.stop)
        for number in range(2):
            await cluster.add_server(number, bus=f"nats://{proxy.address}")
            await cluster.add_worker(number, bus=f"nats://{proxy.address}")

    async with scenario("NATS swallows everything", prepare=prepare, servers=0, workers=0) as (cluster, crowd):
        (proxy,) = proxies
        await busy(cluster, crowd, cluster.workers[0])
        proxy.set("lose")
        cluster.note("NATS is silent")
        await busy(cluster, crowd, cluster.workers[0])
        await cluster.kill(cluster.workers[0], "kill -9 of a worker, while the bus is silent")
        await asyncio.gather(*(server.hear("cannot be reached") for server in cluster.servers))
        await go_on(crowd, 6)
        proxy.set("pass")
        await asyncio.gather(*(server.hear("is there again") for server in cluster.servers))
        await cluster.revive(cluster.workers[0])
        await go_on(crowd, 6)


async def test_a_machine_whose_cable_is_cut_is_replaced_and_comes_back(lab: Lab) -> None:
    """Packets are lost without a word to either side, as it is between real machines."""
    net, gate, host = lab.network("n"), lab.host("g"), lab.host("w")
    net.plug(gate, "10.82.0.1")
    net.plug(host, "10.82.0.2")
    command = host.command(*COMMAND)

    async def prepare(cluster: Cluster) -> None:
        for name, port in (("store", cluster.postgres.port), ("bus", cluster.nats.port)):
            path = cluster.home / name
            server = await exit_at(path, port)
            cluster.also(partial(asyncio.to_thread, server.close))
            args = ["-m", "tests.faults.cluster.gateway", "10.82.0.1", str(port), str(path)]
            way = Process(f"way to the {name}", args, dict(os.environ), gate.command(sys.executable))
            await way.start("ready")
            cluster.also(way.end)
        store, bus = f"10.82.0.1:{cluster.postgres.port}", f"nats://10.82.0.1:{cluster.nats.port}"
        await cluster.add_worker(0, command=command, store=store, bus=bus)

    async with scenario("the cable of a worker's machine is cut", prepare=prepare, workers=0) as (cluster, crowd):
        (worker,) = cluster.workers
        for _ in range(2):
            await busy(cluster, crowd, worker)
            if len(cluster.workers) == 1:
                await cluster.add_worker(1)
            net.cut(host)
            at, runs = time.time(), await cluster.watcher.owned(worker.pid)
            assert runs
            cluster.note("a machine whose cable is cut", runs, cluster.within, at)
            await cluster.go_on_as_new(worker, lambda: net.mend(host))
            await go_on(crowd)
