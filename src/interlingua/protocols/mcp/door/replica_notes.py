"""Notes of a session's open streams in the store: the runs that they wait for. When the process dies, another one takes
the session over, and goes on with the streams.

Messages are left out: output of a run is in its log, and open questions are asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from ....model.documents import Drop, Put
from ....model.errors import Conflict, InterlinguaError, NotFound
from ....transports.jsonrpc.core import Id
from .. import wire
from .http_streams import Exchange

if TYPE_CHECKING:
    from .http_clients import Session

STREAMS = "mcp.streams"


class Waiting(msgspec.Struct):
    """A request that waits for a run."""

    id: Id
    method: str
    name: str
    run: str
    token: Any = None

    def request(self) -> tuple[Id, str, dict[str, Any]]:
        """Returns the request that joins the run."""
        meta: dict[str, Any] = {wire.META_RUN: self.run}
        if self.token is not None:
            meta["progressToken"] = self.token
        return self.id, self.method, {"name": self.name, "input": {}, "_meta": meta}


class StreamNotes:
    """The notes of one session's streams."""

    def __init__(self, session: Session, key: str) -> None:
        """`key` is the topic of these notes."""
        self._session = session
        self._key = key
        self._documents = session.connection.engine.documents
        self._lost: dict[str, list[Waiting]] = {}  # streams of processes before this one, by name
        self._ours: dict[str, list[Waiting]] = {}  # of this process
        session.connection.run_began = self._began
        session.channel.dropped = self._dropped

    async def restore(self) -> None:
        """Reads the notes of the processes before this one."""
        for document in await self._documents.search(STREAMS, topic=self._key, limit=10_000):
            self._lost[document.state] = msgspec.json.decode(document.body, type=list[Waiting])

    def _began(self, request: Id, run: str) -> None:
        """Takes the run of a request. Where the exchange is a stream already, the run is noted now."""
        exchange = self._session.channel.asking(request)
        if exchange is not None and exchange.asked:
            self.note(exchange)

    def note(self, exchange: Exchange) -> asyncio.Future[Any] | None:
        """Notes that the exchange is a stream, which another process may resume."""
        runs = self._session.connection.runs
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

    def _dropped(self, exchange: Exchange) -> None:
        if exchange.noted:
            self._lost.pop(exchange.name, None)
            self._ours.pop(exchange.name, None)
            self._keep(Drop(STREAMS, self._place(exchange)))

    def _keep(self, change: Put | Drop) -> asyncio.Future[Any] | None:
        """Writes the note. Where that fails, the request goes on: its stream just cannot be resumed at another
        process."""
        with contextlib.suppress(InterlinguaError):
            written = self._documents.write([change])
            written.add_done_callback(lambda done: done.cancelled() or done.exception())
            return written
        return None

    def resume(self, after: str) -> None:
        """Begins a stream again whose messages are not here: another process had it, or it was too long to be held. It
        goes on with the runs that it waited for."""
        name, _, rest = after.partition("-")
        number, _, mark = rest.partition(".")
        channel, connection = self._session.channel, self._session.connection
        requests = self._ours.get(name) or self._lost.get(name)
        if requests is None or channel.holds(name) or not number.isdecimal() or len(number) > 15:
            return
        channel.begin_again(name, [waiting.id for waiting in requests], int(number))
        for call in connection.rpc.reopen([waiting.request() for waiting in requests]):
            seq = int(mark) if mark.isdecimal() and len(mark) < 16 else None if int(number) else 0
            connection.again[call] = (int(number), seq)

    def whole(self, after: str) -> bool:
        """Tells if a stream is another process's stream for messages of no request: there is nothing to resume, and
        little was missed."""
        name = after.partition("-")[0]
        lost = bool(self._session.times) and not self._session.channel.knows(name) and name.rpartition(".")[2] == "0"
        if lost:
            self._session.channel.catch_up()
        return lost

    # -- runs of requests that another process had --------------------------------------------------------

    async def cancelled(self, id_: Any) -> None:
        """Cancels the run of a request that this process does not know."""
        if self._session.channel.asking(id_) is None:
            for request in self._lost_requests():
                if request.id == id_ and type(request.id) is type(id_):
                    await self._cancel(request.run)

    async def cancel_all(self) -> None:
        """Cancels all runs of a session that its client ends."""
        for request in self._lost_requests():
            await self._cancel(request.run)

    def _lost_requests(self) -> list[Waiting]:
        return [request for waiting in self._lost.values() for request in waiting]

    async def _cancel(self, run: str) -> None:
        runs = self._session.connection.engine.runs
        with contextlib.suppress(Conflict, NotFound):
            await runs.cancel(run, by=self._session.caller, reason="the request was cancelled")
