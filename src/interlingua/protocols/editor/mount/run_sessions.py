"""Finds the session for a run: one that is at hand, that of the thread, or a new one."""

from __future__ import annotations

from typing import Any

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import MountedRun
from ....model.errors import AgentNotFound, InvalidConfig, Unavailable
from ....mounts.errors import RemoteError
from ....transports.jsonrpc.connection import RpcError
from ....transports.jsonrpc.core import INVALID_PARAMS
from .rpc_client import Peer, Place, Session
from .sessions import EditorKeeper


class RunSessions:
    """The sessions that a run may have."""

    def __init__(
        self, keeper: EditorKeeper, ctx: Context[Any, Any], mounted: MountedRun, agent: str | None, place: Place
    ) -> None:
        """`agent` is the value of the option `agent`, where the remote side has several."""
        self.notes: list[str] = []  # warnings for the run
        self._keeper = keeper
        self._ctx = ctx
        self._mounted = mounted
        self._agent = agent
        self._place = place

    async def at_hand(self) -> Session | None:
        """Returns a session that can be prompted at once, without any request."""
        thread = self._ctx.thread_id
        if thread is None:
            return await self._keeper.ready(self._place, self._agent)
        known = self._keeper.session_of(self._kind, thread)  # saves a read of the store, as long as it is open
        if known is None:
            known = await self._mounted.engine.links.find(self._kind, thread)
        return self._keeper.open_session(known, self._place, self._agent) if known is not None else None

    @property
    def _kind(self) -> str:
        return f"editor:{self._mounted.agent}"  # by its name: its command may change, and its sessions stay

    async def opened(self, peer: Peer) -> Session:
        """Returns the session of this run's thread, or one of its own, with the options of the run."""
        session = await self._of_thread(peer)
        await self._configure(session)
        return session

    async def _of_thread(self, peer: Peer) -> Session:
        thread, links, kind = self._ctx.thread_id, self._mounted.engine.links, self._kind
        if thread is None:
            return await self._keeper.new_session(peer, self._place, self._agent)
        known = await links.find(kind, thread)
        if known is not None:
            try:
                session = await peer.take_up(known, self._place)
            except (RpcError, Unavailable) as error:
                self.notes.append(f"the agent does not remember this thread, and starts anew: {error}")
                peer.of_threads.pop((kind, thread), None)
                await links.remove(kind, thread)
            else:
                peer.of_threads[kind, thread] = known
                return session
        session = await self._keeper.new_session(peer, self._place, self._agent)
        await links.add(kind, thread, session.id)
        peer.of_threads[kind, thread] = session.id
        return session

    async def _configure(self, session: Session) -> None:
        fixed = {"agent": self._agent} if self._agent is not None else {}
        for name, value in {**fixed, **(self._ctx.config or {})}.items():
            try:
                await session.set_option(name, value)
            except RpcError as error:
                if error.code == INVALID_PARAMS and name == "agent" and value == self._agent:
                    raise self._no_agent() from error
                raise InvalidConfig(f"the agent did not take {name} = {value!r}: {error}") from error
        if not session.is_set_to(self._agent):
            raise self._no_agent()

    def _no_agent(self) -> RemoteError:
        said = f"{self._keeper.source.name} no longer has an agent {self._agent}"
        return RemoteError(said, code=AgentNotFound.code)
