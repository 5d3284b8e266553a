"""Membership: the processes that serve one store, their addresses, and which of them are alive.

Each process registers in the store once. It is alive while the store says so of its worker, so runs and all other
records share one decision, and an idle cluster writes nothing. Other modules forward requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable

import msgspec

from ...model.documents import Drop, Put
from ...model.errors import InterlinguaError
from ...runtime.clock import sleep
from ...runtime.job_group import JobGroup
from ...store.ports import Store

log = logging.getLogger("interlingua.cluster")

_SPACE = "replicas"
_LOOK_EVERY = 2.0  # seconds
_PATIENCE = 5.0  # seconds beside what the store needs to miss a process: for the sweeps of all, and for a busy machine


class Replica(msgspec.Struct, frozen=True):
    id: str
    address: str  # at which the others reach it
    worker: str
    host: str = ""


class Membership:
    """The membership of this process. Until it enters, it is alone."""

    def __init__(self, store: Store, sweep_every: float) -> None:
        self.worker = ""  # the id of this process's worker, from the start of the engine on
        self.id = secrets.token_hex(4)
        self.passed_on = 0  # requests, to others
        self.taken_over = 0  # of what others had
        self.duties: list[Callable[[], Awaitable[None]]] = []  # done now and then
        self.given_up: list[Callable[[], None]] = []  # called when others took this process for dead
        self._me: Replica | None = None  # once it has entered
        self._store = store
        self._sweep_every = sweep_every
        self._known: dict[str, Replica] = {}
        self._looking: asyncio.Task[None] | None = None
        self.jobs = JobGroup("replicas")

    # -- life ---------------------------------------------------------------------------------------------

    async def enter(self, address: str) -> list[str]:
        """Registers this process at an address. Returns warnings for the owner."""
        store, host = self._store, socket.gethostname()
        me = Replica(self.id, address.rstrip("/"), self.worker, host)
        await self.look()
        others = self.others()
        # An earlier process with this address on this machine has died, and the sweep has not noticed yet.
        gone = [other for other in others if other.address == me.address and other.host == host]
        await store.documents.write([*(Drop(_SPACE, other.id) for other in gone), _note(me)])
        self._me = me
        self._known = {other.id: other for other in others if other not in gone} | {self.id: me}
        self.jobs.spawn(self._keep_looking())
        notes = []
        same = [other for other in self.others() if other.address == me.address]
        if same:
            notes.append(
                f"note: a replica on {same[0].host} says that it is at {me.address}, too: give each its own address "
                "with --advertise"
            )
        if others := self.others():
            shown = ", ".join(sorted(other.address for other in others))
            count = "another replica" if len(others) == 1 else f"{len(others)} other replicas"
            notes.append(f"{count} on this store: {shown}")
        return notes

    async def leave(self) -> None:
        """Deregisters this process, so that the others need not detect its end."""
        me, self._me = self._me, None
        await self.jobs.close()
        self._known.clear()
        if me is None:
            return
        with contextlib.suppress(InterlinguaError):
            await self._store.documents.write([Drop(_SPACE, self.id)])

    async def _keep_looking(self) -> None:
        while True:
            await sleep(self._store.clock, _LOOK_EVERY)
            for duty in (self.look, *self.duties):
                try:
                    await duty()
                except InterlinguaError as error:
                    log.error("could not look after other replicas: %s", error)

    # -- who is there -------------------------------------------------------------------------------------

    def others(self) -> list[Replica]:
        return [replica for replica in self._known.values() if replica.id != self.id]

    def living(self, id_: str) -> Replica | None:
        """The last known state, without a read of the store."""
        return self._known.get(id_)

    def of_worker(self, worker: str) -> Replica | None:
        return next((replica for replica in self._known.values() if replica.worker == worker), None)

    async def find(self, id_: str) -> Replica | None:
        """One that may have come just now."""
        if id_ not in self._known:
            await self.look()
        return self._known.get(id_)

    async def look(self) -> None:
        """Reads the current members. Concurrent callers share one read."""
        if self._looking is None or self._looking.done():
            self._looking = self.jobs.share(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        store = self._store
        rows = await store.documents.search(_SPACE, limit=1000)
        workers = {worker.id for worker in await store.claims.workers()}  # after: who is noted has entered before
        members: dict[str, Replica] = {}
        dead = []
        for row in rows:
            replica = msgspec.json.decode(row.body, type=Replica)
            if replica.worker in workers:
                members[row.id] = replica
            else:
                dead.append(row.id)
        if dead:
            log.info("replicas that are gone: %s", ", ".join(dead))
            await store.documents.write([Drop(_SPACE, id_) for id_ in dead])
        me = self._me
        if me is not None and me.id not in members:
            # What it had may be at others by now. Nothing of that is lost: it is in the store, and is found or made
            # anew like what a dead one had.
            log.error("other replicas took this one for dead; it goes on without what it had")
            for tell in self.given_up:
                tell()
            await store.documents.write([_note(me)])
            members[me.id] = me
        self._known = members

    async def gone(self, replica: Replica) -> bool:
        """Returns True if a replica that does not answer is dead: the sweep of any process finds the end of its worker.
        A replica that only cannot be reached goes on with its sessions, so nothing is taken from it."""
        store = self._store
        deadline = store.clock.monotonic() + store.claims.missed_after + 2 * self._sweep_every + _PATIENCE
        while store.clock.monotonic() < deadline:
            await self.look()
            if self._known.get(replica.id) != replica:
                return True
            await sleep(store.clock, 0.1)
        log.error(
            "replica %s is alive and does not answer at %s: is that how others reach it (--advertise)?",
            replica.id, replica.address,
        )  # fmt: skip
        return False


def _note(replica: Replica) -> Put:
    return Put(_SPACE, replica.id, msgspec.json.encode(replica))
