"""The operations on runs: start, find, read, follow, cancel, send, retry, move, delete; on one or on many."""

from __future__ import annotations

import contextlib

from starlette.responses import Response

from ..engine.ports import RunRow
from ..model.errors import AlreadyFinished, InterlinguaError, InvalidRequest, RunNotFound
from ..model.run import Caller, Run, RunRequest
from ..security import scopes
from ..transports.http.body import trace
from . import access, event_streams, search, timeline, wire
from .api import ControlApi
from .operation import Call, Operation, problem_of
from .views import event_view

_WAIT = 30.0  # seconds, where the caller names none
_MANY = 1000  # runs of one tree, or of one action


# -- starting and reading -----------------------------------------------------------------------------------


async def start(api: ControlApi, call: Call) -> wire.Run:
    body: wire.NewRun = call.body
    agent = api.engine.agents.find(body.agent, body.version)
    if agent is None or not scopes.may(call.caller, "read", agent.card.key):
        raise api.engine.agents.no_agent(body.agent, f"there is no agent {body.agent[:80]}")
    card = agent.card
    scopes.require(call.caller, "run", card.key)
    value = body.input
    if isinstance(value, str):
        if card.input_text is None:
            raise InvalidRequest(f"agent {card.name} takes no text; its input is a JSON object", path="/input")
        value = {card.input_text: value}
    if body.thread is not None:
        await _check_thread(api, body, card.key, call.caller)
    request = RunRequest(
        card.name, card.version, value, body.config, metadata=body.metadata, caller=call.caller, thread=body.thread,
        create_thread=body.create_thread, when_busy=body.when_busy, delay=body.delay, timeout=body.timeout,
        key=body.idempotency_key, trace=trace(call.request),
    )  # fmt: skip
    handle = await api.engine.runs.submit(request)
    return api.show(handle.run)


async def _check_thread(api: ControlApi, body: wire.NewRun, agent: str, caller: Caller) -> None:
    """Refuses a run on a thread that is another caller's, or that would push away a run which the caller may not
    end."""
    assert body.thread is not None
    thread = await api.engine.threads.find(body.thread)
    if thread is None:
        return  # the engine makes it, or says that there is none
    await access.find_thread(api.engine, body.thread, caller, "run")
    if body.when_busy in ("interrupt", "rollback"):
        scopes.require(caller, "cancel", agent)
        if body.when_busy == "rollback":
            scopes.require(caller, "delete", agent)


async def find(api: ControlApi, call: Call) -> wire.Runs:
    page = await search.find(api.engine, call.query, call.caller, api.card_of)
    return wire.Runs(
        runs=await _rows(api, page.rows), cursor=page.cursor, searched=page.searched, complete=page.complete
    )


async def _rows(api: ControlApi, rows: list[RunRow]) -> list[wire.Run]:
    """Shows rows with what the ends of their logs tell, which one read brings for all of them."""
    ends = await api.engine.runs.ends_of([row.id for row in rows])
    shown = []
    for row in rows:
        created, finished = ends.get(row.id, (None, None))
        view = api.engine.runs.view(row, created)
        if finished is not None:
            view.error, view.usage = finished.error, finished.usage
        shown.append(api.show(view))
    return shown


async def get(api: ControlApi, call: Call) -> wire.Run:
    return api.show(await access.find_run(api.engine, call.path("run"), call.caller))


async def wait(api: ControlApi, call: Call) -> wire.Run:
    """Returns the run as it is when it has ended, asks, or the time is up."""
    run = await access.find_run(api.engine, call.path("run"), call.caller)
    seconds = _WAIT if call.query.timeout is None else call.query.timeout
    with contextlib.suppress(TimeoutError):
        run = await api.engine.runs.wait(
            run.id, timeout=seconds, settled=call.query.settled, sealed=access.is_owner(call.caller)
        )
        return api.show(run)
    return api.show(await access.find_run(api.engine, run.id, call.caller))


async def events(api: ControlApi, call: Call) -> wire.Events | Response:
    run = await access.find_run(api.engine, call.path("run"), call.caller)
    sealed = access.is_owner(call.caller)
    if event_streams.wants_stream(call.request):
        after = event_streams.cursor(call.request, call.query.after)
        _check_cursor(run, after)
        return api.stream(event_streams.events(api.engine, run.id, after, api.card_of, sealed=sealed))
    _check_cursor(run, call.query.after)
    reader = api.engine.runs.reader(run.id, call.query.after, sealed=sealed)
    try:
        batch = (await reader.read(follow=False))[: call.query.limit]
    finally:
        reader.close()
    last = batch[-1].seq if batch else call.query.after
    over = run.status.final and last >= run.seq
    return wire.Events(events=[event_view(event, api.card_of) for event in batch], over=over)


def _check_cursor(run: Run, after: int) -> None:
    if after > run.seq:
        raise InvalidRequest(
            f"run {run.id} has {run.seq} events, and {after} is beyond the end; read from the start", path="/after"
        )


async def children(api: ControlApi, call: Call) -> wire.Runs:
    run = await access.find_run(api.engine, call.path("run"), call.caller)
    where = wire.RunSearch(parent=run.id, limit=call.query.limit, cursor=call.query.cursor)
    page = await search.find(api.engine, where, call.caller, api.card_of)
    return wire.Runs(runs=await _rows(api, page.rows), cursor=page.cursor)


async def lineage(api: ControlApi, call: Call) -> wire.Lineage:
    """Returns the whole tree that a run belongs to, from its first ancestor on."""
    run = await access.find_run(api.engine, call.path("run"), call.caller)
    where = search.filter_of(wire.RunSearch(root=run.root or run.id, limit=_MANY), call.caller)
    rows = await api.engine.runs.rows(where)
    branches = {row.id: wire.Lineage(run=shown) for row, shown in zip(rows, await _rows(api, rows), strict=True)}
    top: wire.Lineage | None = None
    for row in reversed(rows):  # the oldest first: parents stand before their children
        parent = branches.get(row.parent or "")
        if parent is not None:
            parent.children.append(branches[row.id])
        elif top is None:
            top = branches[row.id]
    if top is None:
        raise RunNotFound(f"there is no run {run.id}")
    return top


async def steps(api: ControlApi, call: Call) -> wire.Steps:
    run = await access.find_run(api.engine, call.path("run"), call.caller)
    log = api.engine.runs.events(run.id, follow=False, sealed=access.is_owner(call.caller))
    return wire.Steps(steps=await timeline.steps(log))


# -- acting -------------------------------------------------------------------------------------------------


async def cancel(api: ControlApi, call: Call) -> wire.Run:
    run = await access.find_run(api.engine, call.path("run"), call.caller, "cancel")
    if call.body.rollback:
        scopes.require(call.caller, "delete", f"{run.agent}@{run.version}")
    await api.engine.runs.cancel(
        run.id, reason=call.body.reason, by=call.caller, rollback=call.body.rollback,
        sealed=access.is_owner(call.caller),
    )  # fmt: skip
    return await get(api, call)


async def send(api: ControlApi, call: Call) -> None:
    run = await access.find_run(api.engine, call.path("run"), call.caller, "run")
    await api.engine.runs.send(run.id, call.body.message)


async def retry(api: ControlApi, call: Call) -> wire.Run:
    run = await access.find_run(api.engine, call.path("run"), call.caller, "run")
    handle = await api.engine.runs.retry(run.id, by=call.caller)
    return api.show(handle.run)


async def move(api: ControlApi, call: Call) -> wire.Run:
    run = await access.find_run(api.engine, call.path("run"), call.caller, "admin")
    await api.engine.runs.move(run.id, call.body.origin, version=call.body.version, by=call.caller)
    return await get(api, call)


async def delete(api: ControlApi, call: Call) -> None:
    run = await access.find_run(api.engine, call.path("run"), call.caller, "delete")
    await _delete(api, run, call.caller)


async def _delete(api: ControlApi, run: Run, caller: Caller) -> None:
    sealed = access.is_owner(caller)
    if not run.status.final:
        with contextlib.suppress(AlreadyFinished):
            await api.engine.runs.cancel(run.id, by=caller, reason="it is being deleted", sealed=sealed)
        await api.engine.runs.wait(run.id, sealed=sealed)
    await api.engine.runs.delete(run.id, sealed=sealed)


_ACTIONS: dict[str, scopes.Action] = {
    "cancel": "cancel", "retry": "run", "delete": "delete", "move": "admin", "send": "run",
}  # fmt: skip


async def act(api: ControlApi, call: Call) -> wire.Results:
    """Does one thing to many runs. Each has a result of its own: one that is refused does not stop the others."""
    body: wire.Action = call.body
    if bool(body.runs) == (body.where is not None):
        raise InvalidRequest("name the runs, or a filter: either runs or where", path="/runs")
    if body.action == "move" and not body.origin:
        raise InvalidRequest("origin is needed to move runs", path="/origin")
    if body.action == "send" and not body.message:
        raise InvalidRequest("message is needed to send one", path="/message")
    scopes.require(call.caller, _ACTIONS[body.action])
    ids, cursor = body.runs, None
    if body.where is not None:
        page = await search.find(api.engine, body.where, call.caller, api.card_of)
        ids, cursor = [row.id for row in page.rows], page.cursor
    results = [await _one(api, run, body, call.caller) for run in dict.fromkeys(ids)]
    return wire.Results(results=results, cursor=cursor)


async def _one(api: ControlApi, id_: str, body: wire.Action, caller: Caller) -> wire.Result:
    runs, sealed = api.engine.runs, access.is_owner(caller)
    try:
        run = await access.find_run(api.engine, id_, caller, _ACTIONS[body.action])
        if body.action == "cancel":
            await runs.cancel(run.id, reason=body.reason, by=caller, sealed=sealed)
        elif body.action == "send":
            await runs.send(run.id, body.message, sealed=sealed)
        elif body.action == "move":
            await runs.move(run.id, body.origin, version=body.version, by=caller)
        elif body.action == "delete":
            await _delete(api, run, caller)
        else:
            handle = await runs.retry(run.id, by=caller)
            if handle.id != run.id:
                return wire.Result(run=run.id, continued_by=handle.id)
    except InterlinguaError as error:
        return wire.Result(run=id_, ok=False, error=problem_of(error))
    return wire.Result(run=id_)


OPERATIONS = [
    Operation(method="GET", path="/runs", handler=find, summary="Find runs, the newest first", action="read",
              query=wire.RunSearch, answer=wire.Runs),
    Operation(method="POST", path="/runs", handler=start, summary="Start a run", body=wire.NewRun, answer=wire.Run,
              status=201),
    Operation(method="POST", path="/runs/actions", handler=act, summary="Do one thing to many runs", body=wire.Action,
              answer=wire.Results),
    Operation(method="GET", path="/runs/{run}", handler=get, summary="Get a run", answer=wire.Run),
    Operation(method="DELETE", path="/runs/{run}", handler=delete, summary="Cancel and delete a run", status=204),
    Operation(method="GET", path="/runs/{run}/wait", handler=wait, query=wire.Wait, answer=wire.Run,
              summary="Wait until a run has ended or asks"),
    Operation(method="GET", path="/runs/{run}/events", handler=events, query=wire.After, answer=wire.Events,
              summary="Read the log of a run, as a page or as a stream", streams=True),
    Operation(method="GET", path="/runs/{run}/children", handler=children, query=wire.Page, answer=wire.Runs,
              summary="Find the runs that a run called"),
    Operation(method="GET", path="/runs/{run}/lineage", handler=lineage, answer=wire.Lineage,
              summary="Get the whole tree that a run belongs to"),
    Operation(method="GET", path="/runs/{run}/steps", handler=steps, answer=wire.Steps,
              summary="Get what a run did and waited for, with times"),
    Operation(method="POST", path="/runs/{run}/cancel", handler=cancel, body=wire.Cancel, optional=True,
              answer=wire.Run, summary="Ask a run to stop"),
    Operation(method="POST", path="/runs/{run}/send", handler=send, body=wire.Send, status=204,
              summary="Put a message into a run's mailbox"),
    Operation(method="POST", path="/runs/{run}/retry", handler=retry, answer=wire.Run,
              summary="Let a blocked run go on, or continue a failed one"),
    Operation(method="POST", path="/runs/{run}/move", handler=move, body=wire.Move, answer=wire.Run,
              summary="Give an unfinished run to the code of another origin"),
]  # fmt: skip
