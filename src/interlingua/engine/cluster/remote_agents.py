"""Remote agents: the agents that only other processes of the store have, and their availability.

Every process that executes agents for others registers them in the store, beside their cards. A process with doors
offers them like its own agents: it writes their runs, and a worker with the code claims them. A process is alive while
the store says so of its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Container, Iterable
from typing import Any, Protocol

import msgspec

from ...model.card import AgentCard
from ...model.documents import Drop, Put
from ...model.errors import InterlinguaError, Unavailable
from ...model.run_identity import is_mount, split_queue
from ...runtime.clock import sleep
from ...runtime.job_group import JobGroup
from ...store.ports import Store
from ..agents.agent import Agent
from ..agents.catalog import AgentCatalog
from ..agents.mount_path import MEMBER_OF
from ..agents.remote_agent import RemoteAgent as RemoteAgent
from ..runs.concurrency_limits import ConcurrencyLimits

log = logging.getLogger("interlingua.agents")

_SPACE = "offered"
_LOOK_EVERY = 2.0  # seconds between polls without a hint of a change
_REST = 0.2  # seconds between two reads, as others may write often
FORGET_AFTER = 3600.0  # seconds for which an agent without processes is still listed

_queues = msgspec.json.Decoder(list[str])


def unavailable(card: AgentCard) -> Unavailable:
    return Unavailable(
        f"agent {card.name} {card.version} is not available: no process that has it is there; try again later",
        details={"agent": card.key},
    )


class LocalWorker(Protocol):
    """The worker of this process."""

    @property
    def id(self) -> str: ...

    @property
    def limits(self) -> ConcurrencyLimits: ...


class RemoteAgents:
    """Registers the agents of this process for the others, and offers theirs here."""

    def __init__(self, store: Store, agents: AgentCatalog, executes: bool) -> None:
        """`executes`: this process executes runs."""
        self.worker: LocalWorker | None = None  # of this process, from the start of the engine on
        self.looks = False  # the agents of others are offered here
        self._store = store
        self._agents = agents
        self._executes = executes
        self._known: dict[str, RemoteAgent] = {}  # by name and version
        self._ambiguous: set[str] = set()  # of those: that were found with several origins, and said to be
        self._seen: object = None  # what was offered when it was looked at last
        self._news = asyncio.Event()
        self.jobs = JobGroup("agents elsewhere")

    @property
    def _worker(self) -> LocalWorker:
        assert self.worker is not None, "the engine has not been started"
        return self.worker

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self, *, looks: bool) -> None:
        """Registers the local agents for the others. With `looks`, also offers their agents here."""
        self.looks = looks
        await self._look()
        self.jobs.spawn(self._keep())

    async def stop(self) -> None:
        if not self.jobs:
            return
        await self.jobs.close()
        with contextlib.suppress(InterlinguaError):
            await self._store.documents.write([Drop(_SPACE, self._worker.id)])

    def hint(self) -> None:
        """Schedules an update after a possible change, here or elsewhere."""
        self._news.set()

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._look()
            except InterlinguaError as error:
                log.error("could not look for agents elsewhere: %s", error)
            await sleep(self._store.clock, _REST)

    # -- who has what -------------------------------------------------------------------------------------

    def _mine(self) -> list[str]:
        """The agents that this process also executes for others."""
        if not self._executes:
            return []
        agents, limits = self._agents, self._worker.limits
        return sorted(
            agents.queue(agent)
            for agent in agents.own()
            if (limit := limits.of_agent(agent)) is None or limit.limit > 0
        )

    async def _look(self) -> None:
        store, me = self._store, self._worker.id
        rows = await store.documents.search(_SPACE, limit=10_000)
        # Read afterwards: a worker enters before it registers anything.
        workers = {worker.id for worker in await store.claims.workers()}
        offered = {row.id: (row.version, _queues.decode(row.body)) for row in rows if row.id in workers}
        if dead := [row.id for row in rows if row.id not in workers]:
            await store.documents.write([Drop(_SPACE, id_) for id_ in dead])
        mine = self._mine()
        registered = offered.pop(me, None)
        if registered is None or registered[1] != mine:  # also where others took this process for dead meanwhile
            await self._agents.publish_cards()
            await store.documents.write([Put(_SPACE, me, msgspec.json.encode(mine))])
        if self.looks:
            await self._take(offered)

    async def _take(self, offered: dict[str, tuple[int, list[str]]]) -> None:
        """Lists the agents that other workers offer. `offered`: version and queues, by worker."""
        seen = {(worker, version) for worker, (version, _) in offered.items()}
        forgotten = self._store.clock.monotonic() - FORGET_AFTER
        stale = any(not agent.available and agent.gone_at < forgotten for agent in self._known.values())
        if seen == self._seen and not stale:
            return
        workers = Counter(queue for _, queues in offered.values() for queue in queues)
        listed = await self._available(workers)
        listed |= self._unavailable(listed, forgotten)
        before = {id(agent) for agent in self.agents()}
        self._known, self._seen = listed, seen
        self._announce(before)

    async def _available(self, workers: Counter[str]) -> dict[str, RemoteAgent]:
        """The agents of these queues, by name and version. `workers`: how many serve each queue."""
        cards = {card.queue: card for card in await self._store.cards.list()} if workers else {}
        available: dict[str, RemoteAgent] = {}
        for key, queue in self._chosen(workers).items():
            card, known = cards.get(queue), self._known.get(key)
            if known is not None and known.available and card == known.stored:
                known.workers = workers[queue]
                available[key] = known
            elif card is not None and self._fits(card.card):
                available[key] = RemoteAgent(card, workers[queue], self._store.clock)
        return available

    def _unavailable(self, available: Container[str], forgotten: float) -> dict[str, RemoteAgent]:
        """The known agents that no worker offers any more, but for those that are gone since before `forgotten`."""
        unavailable: dict[str, RemoteAgent] = {}
        for key, agent in self._known.items():
            if key in available:
                continue
            if agent.available:
                unavailable[key] = RemoteAgent(agent.stored, 0, self._store.clock)
            elif agent.gone_at >= forgotten:
                unavailable[key] = agent
        return unavailable

    def _announce(self, before: set[int]) -> None:
        """Lists the known agents, and logs the changes. `before`: ids of the objects that were listed."""
        new = [agent for agent in self.agents() if id(agent) not in before]
        # An agent that is also here is listed as before, so listeners are not called.
        self._agents.set_elsewhere(self._known, tell=bool(new) or len(before) != len(self.agents()))
        for agent in new:
            if agent.available:
                log.info("agent %s is there, elsewhere", agent.card.key)
            else:
                log.warning("agent %s is not available: no process that has it is there", agent.card.key)

    def _chosen(self, queues: Iterable[str]) -> dict[str, str]:
        """Picks one queue for each name and version: code of the project comes before mounts."""
        here = {agent.card.key: self._agents.queue(agent) for agent in self._agents.own()}
        chosen: dict[str, str] = {}
        for queue in sorted(queues, key=lambda queue: (is_mount(queue), queue)):
            key = split_queue(queue)[1]
            first = here.get(key, chosen.setdefault(key, queue))  # what is here is found as the one that is here
            if first != queue and key not in self._ambiguous:
                self._ambiguous.add(key)
                log.warning(
                    "agent %s has code of several origins, and calls of it here go to the first: %s; %s", key,
                    *(split_queue(name)[0].strip() for name in (first, queue)),
                )  # fmt: skip
        return chosen

    def _fits(self, card: AgentCard) -> bool:
        """True if doors may list an agent: members of teams are hidden, and doors have rules for cards."""
        if MEMBER_OF in card.metadata:
            return False
        problems = [problem for check in self._agents.checks for problem in check(card)]
        if problems:
            log.warning("agent %s is elsewhere, and left out here: %s", card.key, "; ".join(problems))
        return not problems

    def agents(self) -> list[RemoteAgent]:
        """The remote agents that are not also local."""
        own = {agent.card.key for agent in self._agents.own()}
        return [agent for key, agent in self._known.items() if key not in own]

    def check(self, card: AgentCard, agent: Agent[..., Any] | None) -> None:
        """Raises Unavailable if no living process executes the runs of this agent."""
        if self.looks and (agent is None or not agent.available):
            raise unavailable(card)


async def is_served(store: Store, queue: str, dead: Collection[str] = ()) -> bool:
    """Returns True if a living process executes the runs of a queue. `dead`: workers that do not live any more."""
    offered = {row.id: _queues.decode(row.body) for row in await store.documents.search(_SPACE, limit=10_000)}
    for worker in await store.claims.workers():
        if worker.id in dead:
            continue
        queues = offered.get(worker.id)  # None: a command, which offers nothing and takes what it has the code for
        if queues and queue in queues:
            return True
        # A worker that offers nothing has only doors. Members of teams are not offered, and are run all the same.
        if queues != [] and queue in worker.queues:
            return True
    return False
