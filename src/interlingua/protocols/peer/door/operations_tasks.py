"""Operations on tasks: create, list, read, change, cancel, continue, wait, follow."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from ....doors import query
from ....model.errors import InvalidRequest
from ....transports.http.body import header, json_response, trace
from ..node.outbound import LONGEST_WAIT
from ..node.task_record import Task
from ..node.tasks import Surface, TaskFilter
from ..translate import task_states
from .api import Api, filled, listing, moment, newest_first
from .http_streams import FeedStream, WholeStream, place

_PAGE, _PAGE_MAX = 20, 200
_SOON = 2.0  # seconds in which a change that was taken is also seen


async def create_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.body(request)
    streams = "text/event-stream" in (header(request, b"accept") or "")
    before = await api.streams.feed(surface).head() if streams else 0
    task, new = await api.node.tasking.create(body, surface, trace(request))
    if streams and task.kind == "run":
        # A client that follows the task need not ask twice, and gets its result at the end.
        return await api.streams.subscribe(WholeStream, surface, before if new else None, task)
    view = task.view()
    return json_response({"ok": True, "task": view, **view}, 201 if new else 200)


async def list_tasks(api: Api, request: Request, surface: Surface) -> ASGIApp:
    params = filled(request)
    states_text = params.get("status") or params.get("state")
    states = (
        None
        if not states_text
        else [task_states.check_state(state.strip()) for state in states_text.split(",") if state.strip()]
    )
    where = TaskFilter(
        states=list(states) if states is not None else None, context_id=params.get("context_id"),
        peer_id=params.get("peer_id"), created_after=moment(params, "created_after"),
        updated_after=moment(params, "updated_after"), newest=newest_first(params, False),
        after=params.get("after") or params.get("cursor"), offset=query.number(params, "offset", 0),
        limit=query.number(
            params, "page_size" if "page_size" in params else "limit", _PAGE, 1, _PAGE_MAX, lowers=True
        ),
    )  # fmt: skip
    if where.after is not None and where.offset:
        raise InvalidRequest("/offset: give a cursor or an offset, and not both", path="/offset")
    tasks, total, more = await api.node.tasking.page(where, surface)
    return listing(
        request, "tasks", [task.view() for task in tasks], count=len(tasks), total=total, has_more=more,
        next_cursor=tasks[-1].id if more else None, next_offset=where.offset + len(tasks) if more else None,
    )  # fmt: skip


async def _task(api: Api, request: Request, surface: Surface) -> Task:
    return await api.node.tasking.get(request.path_params["id"], surface)


async def get_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response((await _task(api, request, surface)).view())


async def update_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.body(request)
    changed = await api.node.tasking.update(await _task(api, request, surface), body)
    view = changed.view()
    return json_response({"ok": True, "task": view, **view})


async def cancel_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Begins the first of the two phases of a cancel. A task that has passed it is returned as it is."""
    await api.body(request)  # says nothing, but must not be a page's
    task = await _task(api, request, surface)
    changed = await api.node.tasking.cancel(task, surface.caller)
    if task.kind == "run" and task.status not in ("cancelling", "canceled"):
        shown = await _seen(api, task, lambda now: now.status in ("cancelling", *task_states.TERMINAL))
        changed = msgspec.structs.replace(shown, status="cancelling" if shown.status == "canceled" else shown.status)
        if changed.status not in ("completed", "failed"):  # which may have been quicker
            changed.status = "cancelling"
    view = changed.view()
    return json_response({"ok": True, "task_id": changed.id, "status": changed.status, "task": view})


async def continue_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.body(request)
    task = await _task(api, request, surface)
    changed = await api.node.tasking.continue_(task, body, surface.caller)
    if task.kind == "run":
        changed = await _seen(api, task, lambda now: now.version > task.version)
    view = changed.view()
    return json_response({"ok": True, "task_id": changed.id, "status": changed.status, "task": view})


async def _seen(api: Api, task: Task, test: Callable[[Task], bool]) -> Task:
    """Waits until the task shows the change to its run, so that a read after our answer finds it."""
    journal = api.node.journal
    feed = api.streams.feed(Surface(), task)
    head = await feed.head()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SOON):
            async with contextlib.aclosing(feed.follow(head, topic=task.id)) as news:  # type: ignore[type-var]
                while True:
                    task = await journal.task(task.scope, task.id) or task
                    if test(task):
                        break
                    await anext(news)
    return task


async def delete_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    task = await _task(api, request, surface)
    await api.node.tasking.delete(task)
    return json_response({"ok": True, "deleted": task.id, "task_id": task.id})


async def wait_task(api: Api, request: Request, surface: Surface) -> ASGIApp:
    timeout = query.seconds(filled(request), "timeout", 30.0, LONGEST_WAIT)
    began = time.monotonic()
    task, ended = await api.node.tasking.wait(await _task(api, request, surface), timeout)
    answer = {"ok": True, "task": task.view(), "waited": round(time.monotonic() - began, 3), "timeout": not ended}
    return json_response(answer, 200 if ended else 202)


async def subscribe(api: Api, request: Request, surface: Surface) -> ASGIApp:
    since = place(request)
    task = await _task(api, request, surface)
    return await api.streams.subscribe(FeedStream, surface, since, task)


# -- streams ----------------------------------------------------------------------------------------------


async def stream(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Streams all events of a surface as server-sent events."""
    return await api.streams.subscribe(FeedStream, surface, place(request))
