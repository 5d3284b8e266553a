"""Keeps an agent reachable, and sessions of it at hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ....model.errors import Denied, InterlinguaError, Unavailable
from ....mounts.connection import AddressSource, Keeper, Link, ProcessSource, Source
from ....mounts.settings import ORDINARY, Access, variable
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import ConnectionLost, RpcError, Trace
from ..config import MountSettings
from ..translate import AUTH_REQUIRED
from .local_tools import LocalWork, Policies
from .rpc_client import AuthenticationNeeded, Peer, Place, Session

log = logging.getLogger("interlingua.editor")
_said = logging.getLogger("interlingua.editor.agent")


class EditorAddress(AddressSource):
    """editor+http(s)://… and editor+ws(s)://…"""

    async def connect(self) -> Channel:
        from .http_channel import open_remote

        return await open_remote(self.address, self.headers)

    async def reach(self) -> None:
        """Checks that the agent is there, and leaves nothing behind. Raises where it is not."""
        from .http_channel import reach

        try:
            await reach(self.address, self.headers)
        except ConnectionError as error:
            raise Unavailable(f"{self.name} cannot be reached: {error}") from error


def source_of(kind: str, rest: str, settings: MountSettings, access: Access = ORDINARY) -> Source:
    """Returns the source of a target."""
    if kind == "editor":
        return ProcessSource(rest, "editor", directory=settings.root, env=access.env, log=_said)
    return EditorAddress(rest.removeprefix("editor+"), key=settings.key, headers=access.headers)


class EditorKeeper(Keeper[Peer]):
    """The connection to one agent, and the sessions that were opened ahead."""

    def __init__(self, source: Source, settings: MountSettings, trace: Callable[[], Trace] | None = None) -> None:
        super().__init__(source, start_timeout=settings.start_timeout, idle_timeout=settings.idle_timeout)
        self.settings = settings
        self._trace = trace
        self.place = Place(settings.root)  # where runs work that come from no editor
        # Both by the agent that its sessions are set to: None where there is nothing to choose.
        self._spares: dict[str | None, Session] = {}  # used by the next run that wants one like it
        self._preparing: dict[str | None, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a job in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def client(self, link: Link) -> Peer:
        self._spares.clear()
        return Peer(link.channel, self._servant, trace=self._trace() if self._trace is not None else None)

    async def agree(self, client: Peer) -> None:
        settings = self.settings
        try:
            await client.open(settings.version, settings.offers(), auth=settings.auth, timeout=self.start_timeout)
        except RpcError as error:
            raise self.refusal(error, client, "initialize") from error

    @property
    def policies(self) -> Policies:
        s = self.settings
        return Policies(read=s.read, write=s.write, terminal=s.terminal)

    def _servant(self, place: Place) -> LocalWork:
        return LocalWork(place, self.policies)

    async def close(self) -> None:
        for preparing in self._preparing.values():
            preparing.cancel()
        await super().close()

    # -- sessions -----------------------------------------------------------------------------------------

    async def first_session(self, place: Place) -> Session:
        """Opens a session in which the agent describes its options and commands."""
        return await self.new_session(await self.connection(), place)

    def spare(self, session: Session, agent: str | None) -> None:
        """Keeps an unused session for the next run that wants one like it."""
        before = self._spares.get(agent)
        self._spares[agent] = session
        if before is not None and before is not session and before.peer is session.peer:
            self.spawn(before.close())

    async def ready(self, place: Place, agent: str | None) -> Session | None:
        """Returns a session that was prepared ahead, and is set to this agent."""
        if agent in self._preparing:
            await asyncio.wait({self._preparing[agent]})
        spare = self._spares.get(agent)
        if spare is None or self.open_session(spare.id, place, agent) is not spare:
            return None
        return self._spares.pop(agent)

    def session_of(self, kind: str, thread: str) -> str | None:
        """Returns the session of a local thread, where this connection has had it."""
        return self.current.of_threads.get((kind, thread)) if self.current is not None else None

    def open_session(self, id_: str, place: Place, agent: str | None) -> Session | None:
        """Returns an idle session of the present connection, if it fits the run."""
        peer = self.current
        session = peer.sessions.get(id_) if peer is not None and not peer.rpc.lost else None
        if session is None or session.place != place or session.listener is not None:
            return None
        if session.prompting is not None and not session.prompting.done():
            return None
        return session if session.is_set_to(agent) else None

    def prepare(self, peer: Peer, place: Place, agent: str | None) -> None:
        """Prepares a session for the next run, only where sessions cost almost nothing. Only an Interlingua server
        reports that."""
        if not peer.ours or peer is not self.current or agent in self._preparing:
            return
        spare = self._spares.get(agent)
        if spare is None or spare.peer is not peer or spare.place != place:
            self._preparing[agent] = asyncio.get_running_loop().create_task(self._prepare(peer, place, agent))

    async def _prepare(self, peer: Peer, place: Place, agent: str | None) -> None:
        try:
            session = await peer.new(place, agent=agent, timeout=self.settings.start_timeout)
            if agent is not None:
                await session.set_option("agent", agent)
            self.spare(session, agent)
        except (RpcError, TimeoutError, ConnectionLost, InterlinguaError) as error:
            log.info("%s made no session ahead: %s", self.source.name, error)  # the next run tries again
        finally:
            self._preparing.pop(agent, None)

    async def new_session(self, peer: Peer, place: Place, agent: str | None = None) -> Session:
        if agent in self._preparing:
            await asyncio.wait({self._preparing[agent]})
        spare = self._spares.get(agent)
        if spare is not None and spare.peer is peer and spare.place == place:
            return self._spares.pop(agent)
        try:
            return await peer.new(place, agent=agent, timeout=self.settings.start_timeout)
        except RpcError as error:
            raise self.refusal(error, peer, "session/new") from error
        except TimeoutError as error:
            raise Unavailable(f"{self.source.name} made no session within {self.settings.start_timeout:g} s") from error
        except ConnectionLost as error:
            raise Unavailable(f"{self.source.name} is gone: {await self.why()}") from error

    def refusal(self, error: RpcError, peer: Peer, what: str) -> Exception:
        if error.code == AUTH_REQUIRED:
            return AuthenticationNeeded(
                f"{self.source.name} wants you to log in: {error.full_message}. {self._how_to_log_in(peer)}"
            )
        if error.code in (-32001, -32003) or (isinstance(error.data, dict) and error.data.get("code") == "denied"):
            return Denied(f"{self.source.name} refused {what}: {error.full_message}")
        return Unavailable(f"{self.source.name} answered {what} with {error}", transient=False)

    def _how_to_log_in(self, peer: Peer) -> str:
        ways = []
        for method in peer.auth_methods:
            id_ = str(method.get("methodId", method.get("id")))
            name = str(method.get("name") or id_)
            if method.get("type") == "terminal":
                args = [str(arg) for arg in method.get("args") or []]
                variables = method.get("env")
                if isinstance(variables, dict):
                    settings = [f"{key}={value}" for key, value in variables.items()]
                else:
                    settings = [f"{v.get('name')}={v.get('value')}" for v in variables or [] if isinstance(v, dict)]
                ways.append(f"{name}: run `{' '.join([*settings, *self.source.command, *args])}` in a terminal")
            else:
                ways.append(f"{name}: set {variable('editor', 'auth')}={id_}")
        return "Ways to log in: " + "; ".join(ways) if ways else "It names no way to log in."
