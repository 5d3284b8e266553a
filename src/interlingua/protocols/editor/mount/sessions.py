"""Keeps an agent reachable: starts it when it is needed, for any number of runs, and ends it when it is idle for long.

An agent is a process of ours or has an address; both give the same kind of link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ....model.errors import Denied, InterlinguaError, Unavailable
from ....mounts.idle import Use
from ....mounts.links import AddressLink, Link, ProcessLink, Source
from ....mounts.settings import variable
from ....security.redaction import redact_text
from ....transports.jsonrpc.connection import ConnectionLost, RpcError, Trace
from ..config import MountSettings
from ..translate import AUTH_REQUIRED
from . import process
from .local_tools import LocalWork, Policies
from .process import environment, words_of
from .rpc_client import AuthenticationNeeded, Peer, Place, Session

log = logging.getLogger("interlingua.editor")


class ProcessSource:
    """editor:COMMAND"""

    def __init__(self, command: str, settings: MountSettings, env: Mapping[str, str] = {}) -> None:
        self._env = env
        self.name = redact_text(command)
        self.command = words_of(command, "editor")
        self._settings = settings

    async def open(self) -> Link:
        env = {**environment(os.environ), **self._env}
        return ProcessLink(await process.start(self.command, self._settings.root, env))


class AddressSource:
    """editor+http(s)://… and editor+ws(s)://…"""

    def __init__(self, address: str, settings: MountSettings, headers: Mapping[str, str] = {}) -> None:
        self._headers = headers
        self._address = address
        self.name = redact_text(address)
        self.command: list[str] = []
        self._settings = settings

    async def open(self) -> Link:
        from .http_channel import open_remote

        return AddressLink(await open_remote(self._address, self._sent()), self.name)

    async def reach(self) -> None:
        """Checks that the agent is there, and leaves nothing behind. Raises where it is not."""
        from .http_channel import reach

        try:
            await reach(self._address, self._sent())
        except ConnectionError as error:
            raise Unavailable(f"{self.name} cannot be reached: {error}") from error

    def _sent(self) -> dict[str, str]:
        key = self._settings.key
        return {**({"authorization": f"Bearer {key}"} if key else {}), **self._headers}


class Host:
    """The connection to one agent. It belongs to an event loop, and ends with it."""

    def __init__(self, source: Source, settings: MountSettings, trace: Callable[[], Trace] | None = None) -> None:
        self.source = source
        self.settings = settings
        self._trace = trace
        self.place = Place(settings.root)  # where runs work that come from no editor
        self._peer: Peer | None = None
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._use = Use(settings.idle_timeout, self._too_idle)
        # Both by the agent that its sessions are set to: None where there is nothing to choose.
        self._spares: dict[str | None, Session] = {}  # used by the next run that wants one like it
        self._preparing: dict[str | None, asyncio.Task[None]] = {}
        self._noise_told = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.starts = 0
        self.lost: Callable[[], None] = lambda: None  # called when it is gone, unless we let it go

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a job in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- being there --------------------------------------------------------------------------------------

    async def peer(self) -> Peer:
        """Returns the connection. Starts one if there is none."""
        async with self._opening:
            if self._peer is None or self._peer.rpc.lost:
                await self._start()
            assert self._peer is not None
            return self._peer

    async def _start(self) -> None:
        if self._keeper is not None:
            await asyncio.wait([self._keeper])  # the connection before it is ended first
        settings = self.settings
        try:
            link = await self.source.open()
        except ConnectionError as error:
            raise Unavailable(f"{self.source.name} cannot be reached: {error}") from error
        trace = self._trace() if self._trace is not None else None
        peer = Peer(link.channel, self._servant, trace=trace)
        keeper = self._keeper = asyncio.get_running_loop().create_task(_keep(peer, link))
        self._noise_told = False
        try:
            await peer.open(settings.version, settings.offers(), auth=settings.auth, timeout=settings.start_timeout)
        except BaseException as error:
            keeper.cancel()
            await asyncio.wait([keeper])
            if isinstance(error, ConnectionLost) and not self.source.command:
                raise Unavailable(f"{self.source.name} cannot be reached: {await link.why()}") from error
            if isinstance(error, ConnectionLost):
                raise Unavailable(f"{self.source.name} did not start: {await link.why()}", transient=False) from error
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"{self.source.name} did not answer within {settings.start_timeout:g} s: {await link.why()}"
                ) from error
            if isinstance(error, RpcError):
                raise self.refusal(error, peer, "initialize") from error
            raise
        self._peer, self._link = peer, link
        self._spares.clear()
        keeper.add_done_callback(self._ended)
        self.starts += 1
        self._use.rest()

    @property
    def policies(self) -> Policies:
        s = self.settings
        return Policies(read=s.read, write=s.write, terminal=s.terminal)

    def _servant(self, place: Place) -> LocalWork:
        return LocalWork(place, self.policies)

    async def why(self) -> str:
        """Returns the reason why the agent is gone."""
        return await self._link.why() if self._link is not None else "it was never there"

    def noise(self) -> tuple[int, str] | None:
        """Returns the number of lines that were no messages, and the first of them; only once."""
        if self._link is None or self._noise_told or not self._link.noise[0]:
            return None
        self._noise_told = True
        return self._link.noise

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled():
            self.lost()

    def using(self) -> contextlib.AbstractContextManager[None]:
        """Marks the agent as busy for the time of this context."""
        return self._use.counted()

    def _too_idle(self) -> None:
        if self._keeper is not None:
            log.info("%s is ended: nobody has used it for %g s", self.source.name, self.settings.idle_timeout)
            self._peer = None  # the next caller waits for its end, and starts it again
            self._keeper.cancel()

    async def close(self) -> None:
        self._use.stop()
        for preparing in self._preparing.values():
            preparing.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    # -- sessions -----------------------------------------------------------------------------------------

    async def first_session(self, place: Place) -> Session:
        """Opens a session in which the agent describes its options and commands."""
        return await self.new_session(await self.peer(), place)

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
        return self._peer.of_threads.get((kind, thread)) if self._peer is not None else None

    def open_session(self, id_: str, place: Place, agent: str | None) -> Session | None:
        """Returns an idle session of the present connection, if it fits the run."""
        peer = self._peer
        session = peer.sessions.get(id_) if peer is not None and not peer.rpc.lost else None
        if session is None or session.place != place or session.listener is not None:
            return None
        if session.prompting is not None and not session.prompting.done():
            return None
        return session if session.is_set_to(agent) else None

    def prepare(self, peer: Peer, place: Place, agent: str | None) -> None:
        """Prepares a session for the next run, only where sessions cost almost nothing. Only an Interlingua server
        reports that."""
        if not peer.ours or peer is not self._peer or agent in self._preparing:
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
                    given = [f"{key}={value}" for key, value in variables.items()]
                else:
                    given = [f"{v.get('name')}={v.get('value')}" for v in variables or [] if isinstance(v, dict)]
                ways.append(f"{name}: run `{' '.join([*given, *self.source.command, *args])}` in a terminal")
            else:
                ways.append(f"{name}: set {variable('editor', 'auth')}={id_}")
        return "Ways to log in: " + "; ".join(ways) if ways else "It names no way to log in."


async def _keep(peer: Peer, link: Link) -> None:
    """Reads messages of the agent until it is gone or no longer wanted; then always ends all parts that were started
    for it."""
    try:
        await peer.run()
    except Exception:
        log.exception("the connection to an agent failed")
    finally:
        ending = asyncio.ensure_future(link.end())
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):  # it takes a few seconds at most, and must be done
                await asyncio.shield(ending)
