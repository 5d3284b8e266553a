"""The door over HTTP: clients post messages, read, follow and cancel tasks, and list agents.

`inbound_messages` decides what a message does, `task_ids` which tasks a caller has. Every failure is answered with an
`error_response`, whose code is also the status of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ....engine.engine import Engine
from ....engine.ids import now
from ....model.errors import InterlinguaError, Invalid, InvalidRequest, Overloaded, RunNotFound
from ....model.run import Caller, Run
from ....model.status import Status
from ....model.team.manifest import ORCHESTRATOR, USER, instance_of
from ....security import scopes
from ....security.auth import Authenticator
from ....security.caller_share import has_share
from ....transports import json_text
from ....transports.http.body import header, json_response, read_json, trace
from ....transports.http.event_stream import PiecesStream, in_pieces
from ....transports.http.sse import KEEP_ALIVE, encode
from ....transports.jsonrpc import params
from ....transports.jsonrpc.core import RpcError
from .. import agent_manifest, translate, wire
from ..config import DoorSettings
from ..projection import START, Place, Update, View, place_of
from .follow import follow, snapshot
from .inbound_messages import Desk
from .task_ids import Found, tree

Handler = Callable[[Request, Caller], Awaitable[Response]]

UNKNOWN = "unknown"  # the task of an error that came before one could be read
_STATUS = {"slow_body": 408, "wrong_content_type": 415}


class CapDoor:
    def __init__(self, engine: Engine, auth: Authenticator, settings: DoorSettings | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings or DoorSettings()
        self.desk = Desk(engine)
        self.book = self.desk.book
        self._streams: Counter[str] = Counter()  # by caller
        self._stopping: asyncio.Event | None = None
        self._stopped = False

    def routes(self) -> list[BaseRoute]:
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/messages", self.post),
            ("GET", "/agents", self.agents),
            ("GET", "/tasks", self.tasks),
            ("GET", "/tasks/{task_id}", self.task),
            ("GET", "/tasks/{task_id}/events", self.events),
            ("POST", "/tasks/{task_id}/cancel", self.cancel),
        ]
        return [Route(path, self._endpoint(handler), methods=[method]) for method, path, handler in table]

    async def close(self) -> None:
        """Ends all streams when the server stops; they would stay open as long as their tasks."""
        self._stopped = True
        if self._stopping is not None:
            self._stopping.set()

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request, await self.auth.authenticate(request.headers))
            except InterlinguaError as error:
                named = request.path_params.get("task_id")
                return refusal(error, named) if named else refusal(error, *addressed(unread(error)))

        return endpoint

    # -- messages -----------------------------------------------------------------------------------------

    async def post(self, request: Request, caller: Caller) -> Response:
        value: Any = await read_json(request, object, self.settings)
        try:
            taken = await self.desk.take(wire.read(value), caller, trace(request))
        except InterlinguaError as error:
            return refusal(error, *addressed(value))
        where = f"{request.scope.get('root_path', '')}/tasks/{quote(taken.task_id, safe='')}"
        if "text/event-stream" in (header(request, b"accept") or "") and not self._full(caller):
            # A client that follows the task need not ask twice.
            found = await self.book.find(taken.task_id, caller)
            told = {"location": where, "content-location": f"{where.rpartition('/')[0]}/{found.run.id}"}
            return self._streaming(found, caller, START, told)
        return json_response(msgspec.to_builtins(taken), 202, {"location": where})

    async def cancel(self, request: Request, caller: Caller) -> Response:
        taken = await self.desk.cancel(request.path_params["task_id"], caller)
        return json_response(msgspec.to_builtins(taken), 202)

    # -- tasks --------------------------------------------------------------------------------------------

    async def tasks(self, request: Request, caller: Caller) -> Response:
        limit = _number(request, "limit", 20, self.settings.page)
        cursor = request.query_params.get("cursor")
        try:
            start = params.offset(cursor) if cursor is not None else 0
        except RpcError:
            raise InvalidRequest(f"cursor {cursor!r} is none that was given out here", path="/cursor") from None
        runs, more = await self.book.page(caller, limit, start)
        told: dict[str, Any] = {"tasks": []}
        for row in runs:
            with contextlib.suppress(RunNotFound):  # deleted meanwhile
                told["tasks"].append(await self._summary(await self.engine.runs.get(row.id), caller))
        if more is not None:
            told["next_cursor"] = params.cursor(more)
        return json_response(told)

    async def _summary(self, run: Run, caller: Caller) -> dict[str, Any]:
        view = await self.book.view(run, await self.book.own_name(run, caller), caller)
        return translate.task_view(run, view.task, view.agent, view.label or None)

    async def task(self, request: Request, caller: Caller) -> Response:
        found = await self.book.find(request.path_params["task_id"], caller)
        updates = await snapshot(self.engine, found.run.id, found.view)
        said = [update.data for update in updates if update.kind == "message"]
        # Messages about a result are logged when the result is approved, with the time at which they were sent.
        said.sort(key=lambda message: str(message["timestamp"]))
        told = await self._part(found)
        told["subtasks"] = await tree(self.book, found)
        asked = await self.book.questions(found, caller)
        told["questions"] = [{"sender_id": asker, **translate.asked(question)} for asker, question in asked]
        if asked and told["status"] == Status.RUNNING:
            told["status"] = Status.WAITING.value  # a child has asked, and the runs above it have yet to hear so
        told["conversation"] = said
        return json_response(told)

    async def _part(self, found: Found) -> dict[str, Any]:
        view, part = found.view, found.part
        if not view.below or part is None:
            return translate.task_view(found.run, view.task, view.agent, view.label or None)
        try:
            run = await self.engine.runs.get(part.run)
        except RunNotFound:  # of an overseen agent: its work is hidden
            row = await self.engine.runs.find_row(part.run)
            if row is None:
                raise
            run = self.engine.runs.view(row, None)
        return translate.task_view(run, view.part, part.agent, part.label)

    # -- the stream ---------------------------------------------------------------------------------------

    async def events(self, request: Request, caller: Caller) -> Response:
        if request.method != "GET":  # starlette takes HEAD for one
            return Response(status_code=405, headers={"allow": "GET"})
        found = await self.book.find(request.path_params["task_id"], caller)
        last = header(request, b"last-event-id")
        after = place_of(last) if last else START
        if after is None:
            raise InvalidRequest(f"Last-Event-ID {last!r} is none of this stream's", path="/last-event-id")
        if after[0] > found.run.seq:
            raise InvalidRequest(
                f"the task has {found.run.seq} events, and {last} is beyond the end; read from the start"
            )
        if full := self._full(caller):
            raise Overloaded(f"{full}; try again later")
        return self._streaming(found, caller, after, {})

    def _full(self, caller: Caller) -> str:
        """Returns why a caller cannot open another stream; empty where it can."""
        total, held, limit = self._streams.total(), self._streams[caller.id], self.settings.max_streams
        if self._stopped or total >= limit:
            return f"{total} streams are open already"
        return f"you have {held} streams open already" if has_share(caller, held, limit) else ""

    def _streaming(self, found: Found, caller: Caller, after: Place, headers: dict[str, str]) -> Response:
        part = found.part.run if found.part is not None and found.view.below else None
        # Not all that was found: a task that has ended holds its output.
        return PiecesStream(self._stream(found.run.id, found.view, part, caller, after), headers=headers)

    async def _stream(
        self, run: str, view: View, part: str | None, caller: Caller, after: Place
    ) -> AsyncIterator[bytes]:
        self._stopping = self._stopping or asyncio.Event()
        self._streams[caller.id] += 1
        try:
            updates = follow(self.engine, run, view, after, keep_alive=self.settings.keep_alive, part=part)
            async with contextlib.aclosing(_until(updates, self._stopping)) as pieces:
                async for piece in pieces:
                    if not piece:
                        yield KEEP_ALIVE
                    for some in in_pieces(piece, _encoded):
                        yield some.pop()
        finally:
            self._streams -= Counter([caller.id])  # forgets a caller without streams

    # -- agents -------------------------------------------------------------------------------------------

    async def agents(self, request: Request, caller: Caller) -> Response:
        prompt = scopes.may(caller, "admin").allowed
        told = []
        for name, id_ in self.book.ids().items():
            agent = self.engine.agents.find(name)
            if agent is not None and scopes.may(caller, "run", agent.card.key):
                via, entry = self.engine.agents.mount_path(agent.card), self.book.entry(name)
                told.append(agent_manifest.manifest(agent.card, id_, entry, prompt=prompt, via=via))
        return json_response({"agents": told})


def _encoded(update: Update) -> bytes:
    return encode(update.data, id=update.id, event=update.kind)


async def _until(updates: AsyncIterator[list[Update]], stopping: asyncio.Event) -> AsyncGenerator[list[Update], None]:
    """Yields the updates until the server stops."""
    stop = asyncio.ensure_future(stopping.wait())
    reading: asyncio.Future[list[Update]] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(anext(updates))
            await asyncio.wait({reading, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return
            try:
                yield reading.result()
            except StopAsyncIteration:
                return
    finally:
        for task in (stop, reading):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
        if hasattr(updates, "aclose"):
            await updates.aclose()
        task = reading = None  # how it ended tells of this frame, which would keep all of it


def _number(request: Request, name: str, default: int, most: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= most:
        raise InvalidRequest(f"{name} is {given[:80]!r}; it is a number from 1 to {most}", path=f"/{name}")
    return int(given)


# -- errors ---------------------------------------------------------------------------------------------------


def unread(error: InterlinguaError) -> dict[str, Any]:
    """Returns the readable members of a message that could not be read as a whole."""
    return json_text.members(error.refused_message, "task_id", "sender_id") if isinstance(error, Invalid) else {}


def addressed(value: Any) -> tuple[str, str]:
    """Returns the task and the sender of a possible message, as far as they can be read."""
    told = value if isinstance(value, dict) else {}
    task, sender = told.get("task_id"), told.get("sender_id")
    with contextlib.suppress(InvalidRequest):
        instance_of(sender if isinstance(sender, str) and len(sender) <= wire.MAX_ID else "")
        return task if isinstance(task, str) and task else UNKNOWN, str(sender)
    return task if isinstance(task, str) and task else UNKNOWN, USER


def error_message(error: InterlinguaError, task: str, recipient: str = USER) -> wire.ErrorResponse:
    return translate.error_response(error.info(), task=task, sender=ORCHESTRATOR, recipient=recipient, time=now())


def refusal(error: InterlinguaError, task: str, recipient: str = USER) -> Response:
    told = error_message(error, task, recipient)
    told.error_code = _STATUS.get(error.code, told.error_code)
    headers = {}
    challenge = getattr(error, "challenge", None)
    if challenge:
        headers["www-authenticate"] = challenge
    return json_response(wire.write(told), told.error_code, headers)


__all__ = ["CapDoor"]
