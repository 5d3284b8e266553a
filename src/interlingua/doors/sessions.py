"""Keeps the clients of a door over HTTP, by the session id that their requests carry.

A session belongs to its caller; for others it does not exist. A client that is silent for too long, or does not read
what it asked for, is forgotten: its session ends, and its runs go on. Where several processes serve one store, the id
names the process that opened the session, and a note in the store lets another process take the session over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from starlette.types import Scope

from ..engine.engine import Engine
from ..engine.ports import Replica
from ..model.documents import Document
from ..model.errors import InterlinguaError
from ..model.run import Caller
from ..runtime.job_group import JobGroup
from ..security.caller_share import has_share
from ..transports.jsonrpc.connection import Connection
from . import replica_notes
from .replica_notes import Note, same_rights
from .rpc_errors import Refused

log = logging.getLogger("interlingua.doors")

_IDS_OF_A_PROCESS = 1_000_000
"""Each process that holds a session numbers its own requests from another multiple of this, so that a late answer to a
request of the process before fits none of them."""


class ClientSession(ABC):
    """One client, for as long as its stream or socket is open."""

    silent_since: float | None = None
    """The time since when the client has nothing open; None while it has."""
    is_named = True
    """Tells if requests name the session. A socket carries all messages of its client."""

    def __init__(self, sessions: Sessions[Any], caller: Caller, id_: str) -> None:
        self.id = id_
        self.caller = caller
        self.ended = False
        self._sessions = sessions

    @property
    def is_silent(self) -> bool:
        """Tells if no request or stream of the client is open."""
        return False

    @abstractmethod
    async def end(self, *, deleted: bool) -> None:
        """Ends the connection. `deleted`: the client wants this, and does not just vanish."""

    def overflow(self) -> None:
        """Ends the session of a client that reads too slowly."""
        log.warning("session of %s: too many messages wait for it, it is closed", self.caller.id)
        self._sessions.forget(self)


class ResumableSession(ClientSession):
    """One client whose session lasts from request to request."""

    def __init__(self, sessions: Sessions[Any], caller: Caller, id_: str | None = None, times: int = 0) -> None:
        """`id_` is the id of a session that another process had; `times` counts the processes that had it before."""
        super().__init__(sessions, caller, id_ or sessions.new_id())
        self.times = times
        self.params: Any = None
        self.is_restoring = False
        self._open = 0  # requests and streams
        self._timer: asyncio.TimerHandle | None = None

    # -- hooks --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def rpc(self) -> Connection: ...

    @abstractmethod
    def note_extra(self) -> Any:
        """Returns what the note has beside the client and its first request."""

    @abstractmethod
    async def restore(self, note: Note) -> None:
        """Rebuilds the session of another process."""

    # -- notes --------------------------------------------------------------------------------------------

    async def opened(self, params: Any) -> None:
        """Notes a session that the client has opened with these params."""
        self.params = params
        await self.note()

    async def note(self) -> None:
        """Writes the note again, with what has changed."""
        if self.is_restoring:  # the note has what the process before wrote, and that is not all here yet
            return
        note = Note(self.id, self.caller.id, list(self.caller.scopes), self.params, self.note_extra())
        await self._sessions.affinity.note(self.id, msgspec.json.encode(note), self.caller.id, self.times)

    # -- silence ------------------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        return self.silent_since is not None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Holds the session open for a request."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        self._open += 1
        self.silent_since = None

    def leave(self) -> None:
        self._open -= 1
        if not self._open and not self.ended:
            loop = asyncio.get_running_loop()
            self.silent_since = loop.time()
            if self._timer is None:
                self._timer = loop.call_later(self._sessions.idle, self._rings)

    def _rings(self) -> None:
        """Forgets a session that was silent for too long. One timer serves many silences: it is set again only when it
        rings too early."""
        self._timer = None
        if self.silent_since is None:
            return  # the next client that leaves sets it again
        loop = asyncio.get_running_loop()
        left = self.silent_since + self._sessions.idle - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._rings)
        else:
            self._sessions.forget(self)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


S = TypeVar("S", bound=ResumableSession)
T = TypeVar("T", bound=ClientSession)


class Sessions(Generic[S]):
    """All sessions of a door. Finds the process that holds one, as `Bound` of the protocol's interface."""

    def __init__(
        self,
        engine: Engine,
        kind: str,
        *,
        limit: int,
        idle: float,
        open_: Callable[[Caller, str | None, int], S],
        id_in: Callable[[Scope], str | None],
        extra_space: str | None = None,
        displaces: bool = False,
    ) -> None:
        """`open_` makes a session, from its caller, the id that another process gave it, and the number of processes
        that had it. `id_in` reads the id from a request. `extra_space` is a space of documents with more about each
        session, dropped with it. `displaces`: where there is no room, a silent session gives way."""
        self.limit = limit
        self.idle = idle
        self.affinity = engine.cluster.sessions(kind, idle, self._given_up, extra_space)
        self.closing = False
        self._open = open_
        self._id_in = id_in
        self._displaces = displaces
        self._by_id: dict[str, ClientSession] = {}
        self._endings = JobGroup(f"sessions of {kind}")

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def new_id(self, secret: str | None = None) -> str:
        """Creates an id that tells all processes where the session is."""
        return self.affinity.id(secret or secrets.token_urlsafe(24))

    # -- opening ------------------------------------------------------------------------------------------

    def open(self, caller: Caller) -> S:
        """Opens a session for a client. Raises Refused where there is no room."""
        self.make_room(caller)
        session = self._open(caller, None, 0)
        self._by_id[session.id] = session
        return session

    def add(self, session: ClientSession) -> None:
        """Adds a session that lasts as long as its stream or socket. `make_room` comes before."""
        self._by_id[session.id] = session

    def make_room(self, caller: Caller) -> None:
        """Refuses a caller that has its share, and everybody where all places are taken.

        Where silent sessions give way, many clients never report that they go: the one that has been silent longest is
        forgotten, among those of the caller with the most sessions. So a caller that opens sessions again and again
        displaces no other caller, and never holds all of them.
        """
        if self.closing:
            raise Refused(503, "the server stops")
        count = Counter(session.caller.id for session in self._by_id.values())
        share_used = has_share(caller, count[caller.id], self.limit)
        full = len(self._by_id) >= self.limit
        if (share_used or full) and self._displace(caller, count, own_only=share_used):
            return
        if share_used:
            raise Refused(429, f"you have {count[caller.id]} sessions open already; end one")
        if full:
            raise Refused(503, f"{self.limit} sessions are open already; try again later")

    def _displace(self, caller: Caller, count: Counter[str], *, own_only: bool) -> bool:
        if not self._displaces:
            return False
        silent = [session for session in self._by_id.values() if session.is_silent]
        if own_only:
            silent = [session for session in silent if session.caller.id == caller.id]
        if not silent:
            return False
        count[caller.id] += 1  # the session that is wanted
        self.forget(min(silent, key=lambda session: (-count[session.caller.id], session.silent_since or 0.0)))
        return True

    def find(self, id_: str, caller: Caller, type_: type[T]) -> T | None:
        """Returns the session of a caller. The owner of a session stays secret: for others there is none."""
        session = self._by_id.get(id_)
        return session if isinstance(session, type_) and same_rights(session.caller, caller) else None

    # -- ending -------------------------------------------------------------------------------------------

    def forget(self, session: ClientSession, *, deleted: bool = False, keeps_note: bool = False) -> None:
        """Removes a session now, and ends it in the background."""
        if session.ended:
            return
        session.ended = True
        self._by_id.pop(session.id, None)
        drops = False
        if isinstance(session, ResumableSession):
            session.stop_timer()
            drops = not keeps_note and not self.closing
        self._endings.spawn(self._end(session, deleted=deleted, drops=drops))

    def discard(self, session: ClientSession) -> None:
        """Removes a session that has ended by itself."""
        session.ended = True
        self._by_id.pop(session.id, None)

    async def _end(self, session: ClientSession, *, deleted: bool, drops: bool) -> None:
        await session.end(deleted=deleted)
        if drops:
            with contextlib.suppress(InterlinguaError):  # the note is swept later
                await self.affinity.drop(session.id)

    async def delete(self, session: S) -> None:
        """Forgets a session that its client ends. No process rebuilds it."""
        self.forget(session, deleted=True)
        await self.affinity.drop(session.id)

    async def close(self) -> None:
        """Ends all sessions when the server stops, and keeps their notes."""
        self.closing = True
        for session in self:
            self.forget(session)
        await asyncio.gather(*self._endings, return_exceptions=True)

    def _given_up(self) -> None:
        """Forgets all sessions, because other processes take this one for dead. They rebuild a session when its client
        asks for it."""
        for session in self:
            if session.is_named:
                self.forget(session, keeps_note=True)

    # -- other processes ----------------------------------------------------------------------------------

    def elsewhere(self, scope: Scope) -> str | None:
        """Returns the id of the session that a request names, if another process may hold it."""
        id_ = self._id_in(scope) if scope["type"] == "http" else None
        return id_ if id_ is not None and id_ not in self._by_id and self.affinity.foreign(id_) else None

    async def locate(self, id_: str, caller: Caller | None) -> Replica | None:
        """Returns the process that holds a session. Takes over the session of a dead one."""
        if caller is None:
            return None

        async def take_over(document: Document, times: int) -> None:
            self.make_room(caller)
            session = self._open(caller, id_, times)
            note = replica_notes.read(document.body)
            session.params = note.params
            session.rpc.rpc.count_from(times * _IDS_OF_A_PROCESS)
            session.is_restoring = True
            try:
                with session.busy():
                    await session.restore(note)
            except BaseException:
                self.forget(session, keeps_note=True)
                raise
            session.is_restoring = False
            self._by_id[id_] = session

        return await self.affinity.locate(
            id_, lambda document: replica_notes.read(document.body).is_of(id_, caller), take_over
        )


async def wait_for_room(drained: Awaitable[None], seconds: float) -> None:
    """Waits while a client sends requests faster than it reads the answers."""
    try:
        async with asyncio.timeout(seconds):
            await drained
    except TimeoutError:
        raise Refused(429, "too many answers wait to be read; read the event streams") from None


__all__ = ["ClientSession", "ResumableSession", "Sessions", "wait_for_room"]
