"""The operations that take a message in. `inbound_messages` decides what a message does."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ....doors.errors import about
from ....model.errors import InterlinguaError
from ....model.run import Caller
from ....security.caller_share import holder
from ....transports.http.body import header, json_response, read_json, trace
from .. import wire
from ..projection import START
from .api import CapDoor
from .operations_tasks import event_stream


async def post_message(door: CapDoor, request: Request, caller: Caller) -> Response:
    message: Any = await read_json(request, object, door.settings)
    try:
        taken = await door.desk.take(wire.read(message), caller, trace(request))
    except InterlinguaError as error:
        about(error, message, "task_id", "sender_id")
        raise
    place = f"{request.scope.get('root_path', '')}/tasks/{quote(taken.task_id, safe='')}"
    if "text/event-stream" in (header(request, b"accept") or "") and not door.streams.why_full(holder(caller)):
        # A client that follows the task need not ask twice.
        requested = await door.book.find(taken.task_id, caller)
        headers = {"location": place, "content-location": f"{place.rpartition('/')[0]}/{requested.run.id}"}
        return event_stream(door, requested, caller, START, headers)
    return json_response(msgspec.to_builtins(taken), 202, {"location": place})


async def cancel(door: CapDoor, request: Request, caller: Caller) -> Response:
    taken = await door.desk.cancel(request.path_params["task_id"], caller)
    return json_response(msgspec.to_builtins(taken), 202)
