"""Notes of a session in the store, for another replica to take over when its process dies: the client, and the runs
that its open streams wait for. The other replica goes on under the same session id.

Messages are left out: output of a run is in its log, and open questions are asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from ....engine.ports import SessionAffinity
from ....model.documents import Document, Drop, Put
from ....model.errors import Conflict, InterlinguaError, NotFound
from ....model.run import Caller
from ....transports.jsonrpc.core import Id
from .. import wire
from .http_streams import Exchange

if TYPE_CHECKING:
    from .http_clients import Session

STREAMS = "mcp.streams"


class Client(msgspec.Struct):
    """A session."""

    id: str
    caller: str
    scopes: list[str]
    params: Any  # of initialize
    level: str | None = None


class Waiting(msgspec.Struct):
    """A request that waits for a run."""

    id: Id
    method: str
    name: str
    run: str
    token: Any = None

    def again(self) -> tuple[Id, str, dict[str, Any]]:
        """Returns the request that joins the run."""
        meta: dict[str, Any] = {wire.META_RUN: self.run}
        if self.token is not None:
            meta["progressToken"] = self.token
        return self.id, self.method, {"name": self.name, "input": {}, "_meta": meta}


def read(note: Document) -> Client:
    return msgspec.json.decode(note.body, type=Client)


def is_of(note: Document, id_: str, caller: Caller) -> bool:
    client = read(note)
    return client.id == id_ and client.caller == caller.id and set(client.scopes) == set(caller.scopes)


class Notes:
    """The notes of one session."""

    def __init__(self, session: Session, placed: SessionAffinity, times: int) -> None:
        self._session = session
        self._placed = placed
        self._times = times
        self._key = placed.key(session.id)
        self._documents = session.mcp.engine.documents
        self._lost: dict[str, list[Waiting]] = {}  # streams of processes before this one, by name
        self._ours: dict[str, list[Waiting]] = {}  # of this process
        self._params: Any = None
        session.mcp.began = self._began
        session.mcp.changed = self._note
        session.channel.let_go = self._let_go

    async def begin(self, params: Any) -> None:
        self._params = params
        await self._note()

    async def restore(self, note: Document) -> None:
        """Takes over a session of another process."""
        client, mcp = read(note), self._session.mcp
        self._params = client.params
        mcp.met(client.params)
        mcp.level = client.level
        mcp.rpc.rpc.count_from(self._times * 1_000_000)
        # The client missed changes between the two processes, and it may come back without an event's id.
        self._session.channel.catch_up()
        for document in await self._documents.search(STREAMS, topic=self._key, limit=10_000):
            self._lost[document.state] = msgspec.json.decode(document.body, type=list[Waiting])

    async def _note(self) -> None:
        session = self._session
        scopes = list(session.caller.scopes)
        body = msgspec.json.encode(Client(session.id, session.caller.id, scopes, self._params, session.mcp.level))
        await self._placed.note(session.id, body, session.caller.id, self._times)

    # -- streams ------------------------------------------------------------------------------------------

    def _began(self, request: Id, run: str) -> None:
        """Takes the run of a request. Where the exchange is a stream already, the run is noted now."""
        exchange = self._session.channel.asking(request)
        if exchange is not None and exchange.asked:
            self.stream(exchange)

    def stream(self, exchange: Exchange) -> asyncio.Future[Any] | None:
        """Notes that the exchange is a stream, which another process may resume."""
        runs = self._session.mcp.runs
        waiting = []
        for message in exchange.asked:
            params, id_ = message.get("params"), message.get("id")
            if id_ in runs and isinstance(params, dict):
                token = (params.get("_meta") or {}).get("progressToken")
                waiting.append(Waiting(id_, message["method"], params["name"], runs[id_], token))
        if not waiting:
            return None
        exchange.noted = True
        self._ours[exchange.name] = waiting
        body = msgspec.json.encode(waiting)
        return self._keep(Put(STREAMS, self._place(exchange), body, state=exchange.name, topic=self._key))

    def _place(self, exchange: Exchange) -> str:
        return f"{self._key}/{exchange.name}"

    def _let_go(self, exchange: Exchange) -> None:
        if exchange.noted:
            self._lost.pop(exchange.name, None)
            self._ours.pop(exchange.name, None)
            self._keep(Drop(STREAMS, self._place(exchange)))

    def _keep(self, change: Put | Drop) -> asyncio.Future[Any] | None:
        """Writes the note. Where that fails, the request goes on: its stream just cannot be resumed at another
        process."""
        with contextlib.suppress(InterlinguaError):
            kept = self._documents.write([change])
            kept.add_done_callback(lambda done: done.cancelled() or done.exception())
            return kept
        return None

    def take_up(self, after: str) -> None:
        """Resumes a stream whose messages are not here: another process had it, or it was too long to be held. It goes
        on with the runs that it waited for."""
        name, _, told = after.partition("-")
        number, _, mark = told.partition(".")
        channel, mcp = self._session.channel, self._session.mcp
        waiting = self._ours.get(name) or self._lost.get(name)
        if waiting is None or channel.holds(name) or not number.isdecimal() or len(number) > 15:
            return
        channel.begin_again(name, [one.id for one in waiting], int(number))
        for call in mcp.rpc.reopen([one.again() for one in waiting]):
            seq = int(mark) if mark.isdecimal() and len(mark) < 16 else None if int(number) else 0
            mcp.again[call] = (int(number), seq)

    def whole(self, after: str) -> bool:
        """Tells if a stream is another process's stream for messages of no request: there is nothing to resume, and
        little was missed."""
        name = after.partition("-")[0]
        lost = bool(self._times) and not self._session.channel.knows(name) and name.rpartition(".")[2] == "0"
        if lost:
            self._session.channel.catch_up()
        return lost

    # -- runs of requests that another process had --------------------------------------------------------

    async def cancelled(self, request: Any) -> None:
        """Cancels the run of a request that this process does not know."""
        if self._session.channel.asking(request) is None:
            for waiting in self._lost.values():
                for one in waiting:
                    if one.id == request and type(one.id) is type(request):
                        await self._stop(one.run)

    async def stop_all(self) -> None:
        """Cancels all runs of a session that its client ends."""
        for waiting in self._lost.values():
            for one in waiting:
                await self._stop(one.run)

    async def _stop(self, run: str) -> None:
        with contextlib.suppress(Conflict, NotFound):
            await self._session.mcp.engine.runs.cancel(run, by=self._session.caller, reason="the request was cancelled")
