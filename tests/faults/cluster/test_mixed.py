"""Everything at once: random faults, two at a time, of workers, servers, bus, database and network."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

import pytest

from .clients import Crowd
from .cluster import Cluster
from .proxy import Proxy
from .scenario import scenario
from .test_workers import go_on

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

ROUNDS = 4


class Chaos:
    """Each fault has a victim of its own, so that any two of them leave somebody who works."""

    def __init__(self, cluster: Cluster, crowd: Crowd, proxy: Proxy, dice: random.Random) -> None:
        self.cluster, self.crowd, self.proxy, self.dice = cluster, crowd, proxy, dice
        self.done: list[str] = []

    @property
    def faults(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.worker_dies, self.worker_stands_still, self.worker_is_cut_off, self.server_dies, self.bus_is_lost,
                self.database_restarts]  # fmt: skip

    async def round(self) -> None:
        chosen = self.dice.sample(self.faults, 2)
        self.done.append(" and ".join(fault.__name__.replace("_", " ") for fault in chosen))
        await asyncio.gather(*(fault() for fault in chosen))
        await go_on(self.crowd, 3)

    async def worker_dies(self) -> None:
        victim = self.cluster.workers[1]
        await self.cluster.kill(victim)
        await go_on(self.crowd, self.dice.randint(1, 3))
        await self.cluster.revive(victim)

    async def worker_stands_still(self) -> None:
        victim = self.cluster.workers[2]
        await self.cluster.pause(victim)
        await self.cluster.go_on_as_new(victim, lambda: victim.send(signal.SIGCONT))

    async def worker_is_cut_off(self) -> None:
        victim = self.cluster.workers[0]
        await self.cluster.cut(victim, self.proxy, "lose" if self.dice.random() < 0.5 else "hold")
        await self.cluster.go_on_as_new(victim, lambda: self.proxy.set("pass"))

    async def server_dies(self) -> None:
        victim = self.dice.choice(self.cluster.servers)
        await victim.end(signal.SIGKILL)
        self.cluster.note("kill -9 of a replica")
        await go_on(self.crowd, self.dice.randint(1, 3))
        await self.cluster.revive(victim)

    async def bus_is_lost(self) -> None:
        await self.cluster.lose_nats()
        self.cluster.note("NATS is gone")
        await go_on(self.crowd, self.dice.randint(1, 4))
        await asyncio.to_thread(self.cluster.nats.start)

    async def database_restarts(self) -> None:
        await self.cluster.restart_postgres(self.dice.uniform(0.0, 2.0))
        self.cluster.note("PostgreSQL has restarted")


async def test_whatever_breaks_nothing_is_lost_and_nothing_happens_twice() -> None:
    proxies: list[Proxy] = []

    async def prepare(cluster: Cluster) -> None:
        proxy = Proxy(cluster.postgres.port)
        proxies.append(proxy)
        await proxy.start()
        cluster.also(proxy.stop)
        cluster.within = 2 * cluster.within  # another fault may come between
        await cluster.add_worker(0, store=proxy.address)
        await asyncio.gather(cluster.add_worker(1), cluster.add_worker(2))

    async with scenario("random faults, two at a time", prepare=prepare, servers=3, workers=0) as (cluster, crowd):
        chaos = Chaos(cluster, crowd, proxies[0], random.Random(crowd.random.random()))
        await crowd.until(lambda: crowd.reading() >= 3)
        for _ in range(ROUNDS):
            await chaos.round()
        print(f"  {'; '.join(chaos.done)}")
