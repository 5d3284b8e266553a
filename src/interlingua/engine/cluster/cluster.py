"""The cluster: all processes of one store, as doors see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...store.ports import Store
from ...store.rows import WorkerRow
from .membership import Membership
from .remote_agents import RemoteAgents
from .session_affinity import SessionAffinity


class HasId(Protocol):
    @property
    def id(self) -> str: ...


class Cluster:
    """Tells which processes there are, what they serve, and which of them has a client's session."""

    def __init__(self, store: Store, membership: Membership, remote_agents: RemoteAgents) -> None:
        self.membership = membership
        self.remote_agents = remote_agents
        self.worker: HasId | None = None  # of this process, from the start of the engine on
        self._store = store

    @property
    def worker_id(self) -> str:
        """The id of this process's worker: it owns runs and documents."""
        assert self.worker is not None, "the engine has not been started"
        return self.worker.id

    async def workers(self) -> list[WorkerRow]:
        """Returns the workers that live, as the store knows them."""
        return await self._store.claims.workers()

    async def has_worker(self, worker: str) -> bool:
        return any(one.id == worker for one in await self.workers())

    def sessions(
        self, kind: str, keep: float, let_go: Callable[[], None], beside: str | None = None
    ) -> SessionAffinity:
        """Returns the affinity of client sessions of one kind. Parameters as of `SessionAffinity`."""
        return SessionAffinity(self._store.documents, self._store.clock, self.membership, kind, keep, let_go, beside)
