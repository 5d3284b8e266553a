"""The operations on threads: state that lasts over several runs, its history and messages."""

from __future__ import annotations

from ..doors import query as read
from ..model.errors import Conflict
from ..model.filters import ThreadFilter
from ..model.run import Caller, Thread
from ..security import scopes
from . import access, wire
from .api import ControlApi
from .operation import Call, Operation
from .views import checkpoint_view, thread_view


async def _show(api: ControlApi, thread: Thread, caller: Caller) -> wire.Thread:
    """Shows a thread. State that no card describes is for the owner alone."""
    may_read = bool(scopes.may(caller, "read"))
    shows = may_read and (access.is_owner(caller) or await api.engine.threads.is_described(thread))
    return thread_view(thread, shows_values=shows)


async def find(api: ControlApi, call: Call) -> wire.Threads:
    query: wire.ThreadSearch = call.query
    offset = read.offset_of(query.cursor)
    where = ThreadFilter(
        status=query.status, metadata=query.metadata or None, caller=access.own(call.caller), limit=query.limit,
        offset=offset,
    )  # fmt: skip
    threads = await api.engine.threads.search(where)
    cursor = read.cursor_of(offset + len(threads)) if len(threads) == query.limit else None
    return wire.Threads(threads=[await _show(api, thread, call.caller) for thread in threads], cursor=cursor)


async def create(api: ControlApi, call: Call) -> wire.Thread:
    thread = await api.engine.threads.create(call.body.id, metadata=call.body.metadata, caller=call.caller)
    if not scopes.sees(call.caller, thread.caller):
        raise Conflict(f"there is a thread {thread.id} already")
    return await _show(api, thread, call.caller)


async def get(api: ControlApi, call: Call) -> wire.Thread:
    return await _show(api, await access.find_thread(api.engine, call.path("thread"), call.caller), call.caller)


async def change(api: ControlApi, call: Call) -> wire.Thread:
    thread = await access.find_thread(api.engine, call.path("thread"), call.caller, "run")
    body: wire.ThreadChange = call.body
    if isinstance(body.values, dict):
        await api.engine.threads.check_values(thread.id, body.values, checkpoint=body.checkpoint)
    changed = await api.engine.threads.patch(
        thread.id, values_=body.values, metadata=body.metadata, checkpoint=body.checkpoint
    )
    return await _show(api, changed, call.caller)


async def copy(api: ControlApi, call: Call) -> wire.Thread:
    thread = await access.find_thread(api.engine, call.path("thread"), call.caller, "run")
    return await _show(api, await api.engine.threads.copy(thread.id), call.caller)


async def delete(api: ControlApi, call: Call) -> None:
    thread = await access.find_thread(api.engine, call.path("thread"), call.caller, "delete")
    await api.engine.threads.delete(thread.id)


async def history(api: ControlApi, call: Call) -> wire.History:
    thread = await access.find_thread(api.engine, call.path("thread"), call.caller)
    if not access.is_owner(call.caller) and not await api.engine.threads.is_described(thread):
        return wire.History(checkpoints=[])
    states = await api.engine.threads.history(thread.id, before=call.query.before, limit=call.query.limit)
    return wire.History(checkpoints=[checkpoint_view(state) for state in states])


async def messages(api: ControlApi, call: Call) -> wire.Messages:
    thread = await access.find_thread(api.engine, call.path("thread"), call.caller)
    return wire.Messages(messages=await api.engine.threads.messages(thread.id))


OPERATIONS = [
    Operation(method="GET", path="/threads", handler=find, query=wire.ThreadSearch, answer=wire.Threads,
              summary="Find threads, the newest first", action="read"),
    Operation(method="POST", path="/threads", handler=create, body=wire.NewThread, optional=True, answer=wire.Thread,
              summary="Make a thread", action="run", status=201),
    Operation(method="GET", path="/threads/{thread}", handler=get, answer=wire.Thread, summary="Get a thread"),
    Operation(method="PATCH", path="/threads/{thread}", handler=change, body=wire.ThreadChange, answer=wire.Thread,
              summary="Change the state or the metadata of a thread"),
    Operation(method="DELETE", path="/threads/{thread}", handler=delete, status=204, summary="Delete a thread"),
    Operation(method="POST", path="/threads/{thread}/copy", handler=copy, answer=wire.Thread, status=201,
              summary="Make a thread with the same state and history"),
    Operation(method="GET", path="/threads/{thread}/history", handler=history, query=wire.HistoryPage,
              answer=wire.History, summary="Get the checkpoints of a thread, the newest first"),
    Operation(method="GET", path="/threads/{thread}/messages", handler=messages, answer=wire.Messages,
              summary="Get the messages of a thread"),
]  # fmt: skip
