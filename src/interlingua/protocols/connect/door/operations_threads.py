"""The operations on threads: state that lasts over several runs, its history, and changes to it from outside."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ....doors import query
from ....model.errors import Conflict, ThreadNotFound
from ....model.filters import ThreadFilter
from ....model.run import Caller, Thread
from ....security import scopes
from ....transports.http.body import json_response
from .. import translate, wire
from . import input as reading
from .api import ConnectDoor

_PAGE = 100  # threads that are looked at together


async def find_thread(door: ConnectDoor, thread: str, caller: Caller) -> Thread:
    record = await door.engine.threads.get(thread)
    if not scopes.sees(caller, record.caller):
        raise ThreadNotFound(f"there is no thread {thread}")
    return record


async def _shown(door: ConnectDoor, thread: Thread) -> Thread:
    """Returns a thread as callers see it. State whose format no descriptor defines is left out."""
    return thread if await door.engine.threads.is_described(thread) else msgspec.structs.replace(thread, values=None)


async def _thread_response(door: ConnectDoor, thread: Thread, caller: Caller) -> Response:
    """Returns the response to a change. A caller that may change threads, but not read them, gets no values or
    messages."""
    if not scopes.may(caller, "read"):
        return json_response(translate.thread(msgspec.structs.replace(thread, values=None)))
    return json_response(translate.thread(await _shown(door, thread), await door.engine.threads.messages(thread.id)))


async def create_thread(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    body = await door.read(request, wire.ThreadCreate, optional=True)
    if body.thread_id is not None:
        reading.check_uuid(body.thread_id, "thread_id")
    thread = await door.engine.threads.create(
        body.thread_id, metadata=body.metadata, caller=caller,
        if_exists="keep" if body.if_exists == "do_nothing" else "raise",
    )  # fmt: skip
    if not scopes.sees(caller, thread.caller):
        raise Conflict(f"there is a thread {thread.id} already")
    return await _thread_response(door, thread, caller)


async def search_threads(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    body = await door.read(request, wire.ThreadSearchRequest, optional=True)
    where = ThreadFilter(
        status=body.status, metadata=body.metadata, values=body.values, limit=body.limit, offset=body.offset,
        **reading.own(caller),
    )  # fmt: skip
    threads = await (_by_values(door, where) if where.values else door.engine.threads.search(where))
    return json_response([translate.thread(await _shown(door, thread)) for thread in threads])


async def _by_values(door: ConnectDoor, where: ThreadFilter) -> list[Thread]:
    """Searches threads by their values. Threads whose state is not shown are left out, so that a search cannot
    guess at it."""
    matching: list[Thread] = []
    page = msgspec.structs.replace(where, limit=_PAGE, offset=0)
    while len(matching) < where.offset + where.limit:
        threads = await door.engine.threads.search(page)
        matching += [thread for thread in threads if await door.engine.threads.is_described(thread)]
        if len(threads) < _PAGE:
            break
        page.offset += _PAGE
    return matching[where.offset : where.offset + where.limit]


async def get_thread(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    thread = await find_thread(door, request.path_params["thread_id"], caller)
    scopes.require(caller, "read")
    return await _thread_response(door, thread, caller)


async def patch_thread(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    thread = await find_thread(door, request.path_params["thread_id"], caller)
    scopes.require(caller, "run")
    body = await door.read(request, wire.ThreadPatch)
    changes_state = body.values is not None or body.messages is not None
    branch = body.checkpoint is not None and (changes_state or body.metadata is None)
    base = body.checkpoint.checkpoint_id if branch else None
    if body.values is not None:
        await door.engine.threads.check_values(thread.id, body.values, checkpoint=base)
    changed = await door.engine.threads.patch(
        thread.id,
        values_=msgspec.UNSET if body.values is None else body.values,
        metadata=body.metadata,
        messages=None if body.messages is None else [translate.to_message(m) for m in body.messages],
        checkpoint=base,
    )
    return await _thread_response(door, changed, caller)


async def delete_thread(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    thread = await find_thread(door, request.path_params["thread_id"], caller)
    scopes.require(caller, "delete")
    await door.engine.threads.delete(thread.id)
    return Response(status_code=204)


async def history(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    thread = await find_thread(door, request.path_params["thread_id"], caller)
    scopes.require(caller, "read")
    limit = query.number(request.query_params, "limit", 10, 1, 1000)
    states = await door.engine.threads.history(thread.id, before=request.query_params.get("before"), limit=limit)
    if not await door.engine.threads.is_described(thread):
        states = []
    return json_response([translate.thread_state(state) for state in states])


async def copy_thread(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    thread = await find_thread(door, request.path_params["thread_id"], caller)
    scopes.require(caller, "run")
    return await _thread_response(door, await door.engine.threads.copy(thread.id), caller)
