"""The operations on tasks: list, read, follow. `task_ids` decides which tasks a caller has."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....doors import query
from ....doors.streams import PiecesStream, in_pieces
from ....model.errors import InvalidRequest, Overloaded, RunNotFound
from ....model.run import Caller, Run
from ....model.status import Status
from ....security.caller_share import holder
from ....transports.http.body import header, json_response
from ....transports.http.sse import encode
from .. import translate
from ..projection import START, Place, Update, View, place_of
from .api import CapDoor
from .task_ids import RequestedTask, tree
from .task_updates import follow, snapshot


async def list_tasks(door: CapDoor, request: Request, caller: Caller) -> Response:
    limit = query.number(request.query_params, "limit", 20, 1, door.settings.page)
    runs, more = await door.book.page(caller, limit, query.cursor(request.query_params))
    page: dict[str, Any] = {"tasks": []}
    for row in runs:
        with contextlib.suppress(RunNotFound):  # deleted meanwhile
            page["tasks"].append(await _summary(door, await door.engine.runs.get(row.id), caller))
    if more is not None:
        page["next_cursor"] = query.cursor_of(more)
    return json_response(page)


async def _summary(door: CapDoor, run: Run, caller: Caller) -> dict[str, Any]:
    view = await door.book.view(run, await door.book.own_name(run, caller), caller)
    return translate.task_view(run, view.task, view.agent, view.label or None)


async def get_task(door: CapDoor, request: Request, caller: Caller) -> Response:
    requested = await door.book.find(request.path_params["task_id"], caller)
    updates = await snapshot(door.engine, requested.run.id, requested.view)
    messages = [update.data for update in updates if update.kind == "message"]
    # Messages about a result are logged when the result is approved, with the time at which they were sent.
    messages.sort(key=lambda message: str(message["timestamp"]))
    task = await _part(door, requested)
    task["subtasks"] = await tree(door.book, requested)
    asked = await door.book.questions(requested, caller)
    task["questions"] = [{"sender_id": asker, **translate.asked(question)} for asker, question in asked]
    if asked and task["status"] == Status.RUNNING:
        task["status"] = Status.WAITING.value  # a child has asked, and the runs above it have yet to hear so
    task["conversation"] = messages
    return json_response(task)


async def _part(door: CapDoor, requested: RequestedTask) -> dict[str, Any]:
    view, part = requested.view, requested.part
    if not view.below or part is None:
        return translate.task_view(requested.run, view.task, view.agent, view.label or None)
    try:
        run = await door.engine.runs.get(part.run)
    except RunNotFound:  # of an overseen agent: its work is hidden
        row = await door.engine.runs.find_row(part.run)
        if row is None:
            raise
        run = door.engine.runs.view(row, None)
    return translate.task_view(run, view.part, part.agent, part.label)


# -- the stream -----------------------------------------------------------------------------------------------


async def stream(door: CapDoor, request: Request, caller: Caller) -> Response:
    requested = await door.book.find(request.path_params["task_id"], caller)
    last = header(request, b"last-event-id")
    after = place_of(last) if last else START
    if after is None:
        raise InvalidRequest(f"Last-Event-ID {last!r} is none of this stream's", path="/last-event-id")
    if after[0] > requested.run.seq:
        raise InvalidRequest(
            f"the task has {requested.run.seq} events, and {last} is beyond the end; read from the start"
        )
    if why := door.streams.why_full(holder(caller)):
        raise Overloaded(f"{why}; try again later")
    return event_stream(door, requested, caller, after, {})


def event_stream(
    door: CapDoor, requested: RequestedTask, caller: Caller, after: Place, headers: dict[str, str]
) -> Response:
    part = requested.part.run if requested.part is not None and requested.view.below else None
    # Not all that was found: a task that has ended holds its output.
    pieces = _pieces(door, requested.run.id, requested.view, part, after)
    answer = PiecesStream(pieces, keep_alive=door.settings.keep_alive, headers=headers)
    answer.counted = door.streams.holding(answer, holder(caller))
    return answer


async def _pieces(door: CapDoor, run: str, view: View, part: str | None, after: Place) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(follow(door.engine, run, view, after, part=part)) as log:
        async for updates in log:
            for piece in in_pieces(updates, _encoded):
                yield piece.pop()


def _encoded(update: Update) -> bytes:
    return encode(update.data, id=update.id, event=update.kind)
