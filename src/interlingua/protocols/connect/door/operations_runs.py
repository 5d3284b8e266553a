"""The operations on runs, with or without a thread: create, wait, stream, resume, cancel, delete."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ....doors import query
from ....engine.ids import new_id
from ....model.card import AgentCard
from ....model.content import Message
from ....model.errors import (
    AgentNotFound,
    AlreadyFinished,
    Conflict,
    InvalidAnswer,
    InvalidRequest,
    QuestionNotFound,
    RunCancelled,
    RunNotFound,
    ThreadNotFound,
    Unavailable,
)
from ....model.filters import RunFilter
from ....model.prompt_input import ContentCollector
from ....model.run import Callback, Caller, Run, RunRequest, Thread
from ....model.status import Status
from ....security import scopes
from ....transports.http.body import header, json_response, trace
from .. import translate, wire
from ..projection import Place
from . import input as reading
from .api import ConnectDoor, run_body
from .http_streams import follow
from .operations_agents import find_card, known
from .operations_threads import find_thread
from .watchers import WatchedStream

# -- making runs --------------------------------------------------------------------------------------


async def _submit(
    door: ConnectDoor, request: Request, caller: Caller, *, streams: bool = False, watched: bool = False
) -> tuple[Run, Any]:
    thread = request.path_params.get("thread_id")
    type_ = wire.RunCreateStateful if thread is not None else wire.RunCreateStateless
    body = await door.read(request, type_, optional=True)
    card, config = await _agent_to_run(door, body, caller)
    scopes.require(caller, "run", card.key)
    abilities = translate.capabilities(card)
    if thread is not None:
        await _check_thread(door, thread, body, card, caller)
    if streams or body.stream_mode is not None:
        _check_modes(reading.modes(body.stream_mode), card)
    url = _callback_url(door, body)
    keeps_thread = thread is None and body.on_completion == "keep" and abilities["threads"]
    key = header(request, b"idempotency-key")
    kept_thread = None
    if keeps_thread:
        # The same key finds the same thread, and no other caller can guess its id and create it first.
        kept_thread = await door.engine.links.add("connect kept", f"{caller.id} {key}", new_id()) if key else new_id()
    run_request = stated(body, card, config, caller, watched=watched)
    run_request.thread = thread or kept_thread
    run_request.create_thread = keeps_thread or (thread is not None and body.if_not_exists == "create")
    run_request.key = key
    run_request.trace = trace(request)
    run_request.callback = Callback(url, "connect") if url is not None and abilities["callbacks"] else None
    if thread is not None:
        run_request.extra["mark"] = None
    handle = await door.engine.runs.submit(run_request, watch=watched)
    return handle.run, body


async def _check_thread(
    door: ConnectDoor, thread: str, body: wire.RunCreateStateful, card: AgentCard, caller: Caller
) -> None:
    """Refuses a run on a thread that does not exist, is another caller's, or does not fit the agent."""
    if not translate.capabilities(card)["threads"]:
        raise InvalidRequest(f"agent {card.name} does not support threads", path="/agent_id")
    record = await door.engine.threads.find(thread)
    if record is not None and scopes.sees(caller, record.caller):
        await door.engine.threads.check_state(record, card)
    elif record is None and body.if_not_exists == "create":
        reading.check_uuid(thread, "thread_id")
    else:
        raise ThreadNotFound(f"there is no thread {thread}")
    await _check_may_replace(door, record, body.multitask_strategy, card, caller)


def _check_modes(modes: list[str], card: AgentCard) -> None:
    """Refuses modes in which the agent does not stream."""
    abilities = translate.capabilities(card)
    missing = [mode for mode in modes if not abilities["streaming"][mode]]
    if missing:
        raise InvalidRequest(
            f"agent {card.name} does not stream {', '.join(missing)}; its descriptor says what it streams",
            path="/stream_mode",
        )


def _callback_url(door: ConnectDoor, body: wire.RunCreate) -> str | None:
    """Returns the address for callbacks of the run, if the body has one. Refuses an address that may not be called."""
    url = translate.webhook(body)
    if url is not None:
        name = "webhook" if body.webhook is not None else "callback"
        reading.check_url(url, name)
        door.engine.callbacks.check(url, f"/{name}")
    return url


async def _check_may_replace(
    door: ConnectDoor, thread: Thread | None, strategy: str, card: AgentCard, caller: Caller
) -> None:
    """Refuses to take a thread from another run, where the caller may not cancel runs, or not delete them (a
    rollback)."""
    if strategy not in ("interrupt", "rollback"):
        return
    active = await door.engine.runs.find_row(thread.active) if thread is not None and thread.active else None
    for agent in {card.key, f"{active.agent}@{active.version}" if active is not None else card.key}:
        scopes.require(caller, "cancel", agent)
        if strategy == "rollback":
            scopes.require(caller, "delete", agent)


async def _agent_to_run(door: ConnectDoor, body: wire.RunCreate, caller: Caller) -> tuple[AgentCard, Any]:
    """Returns the agent and its configuration: the run's own, else that of a configured instance."""
    config = body.config.configurable if body.config is not None else None
    if body.agent_id == "":
        raise InvalidRequest("agent_id is empty; leave it out to run the default agent", path="/agent_id")
    try:
        return runnable(door, body.agent_id, caller), config
    except (AgentNotFound, Unavailable):
        if body.agent_id is None:
            raise
        instance = await door.engine.instances.find(body.agent_id)
        if instance is None or not scopes.sees(caller, instance.caller):
            raise
        agent = door.engine.agents.find(instance.agent, instance.version)
        if agent is None:  # its card may still be known, but a run of it here would wait for ever
            raise AgentNotFound(
                f"configured instance {instance.id} is of agent {instance.agent}@{instance.version}, which is not "
                "served here any more"
            ) from None
        return agent.card, config if config is not None else instance.config


def runnable(door: ConnectDoor, agent_id: str | None, caller: Caller) -> AgentCard:
    """Checks that a caller may run an agent. An agent that it may neither see nor run counts as not found; an agent
    that it may see and not run is denied."""
    try:
        return find_card(door, agent_id, caller, "run")
    except AgentNotFound:
        return find_card(door, agent_id, caller)


async def create_run(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run, _ = await _submit(door, request, caller)
    body = run_body(run)
    if "idempotency-key" not in request.headers:
        # A new run is pending, by the document, however quick its agent is; its result is read later.
        body |= {"status": "pending", "updated_at": body["created_at"]}
    return json_response(body)


async def create_and_wait(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    timeout = query.seconds(request.query_params, "timeout", None)
    run, _ = await _submit(door, request, caller, watched=True)
    return await _wait_for(door, request, run, caller, timeout, cancels=reading.cancels(run))


async def create_and_stream(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run, body = await _submit(door, request, caller, streams=True, watched=True)
    modes = reading.modes(body.stream_mode)
    cancels = body.on_disconnect == "cancel"
    streaming = _streaming(door, run.id, caller, after=(0, 1), modes=modes, cancels=cancels)
    # The client knows the run before its first event.
    streaming.headers["content-location"] = request.url.path.removesuffix("stream") + run.id
    return streaming


# -- runs ---------------------------------------------------------------------------------------------


async def find_run(door: ConnectDoor, request: Request, caller: Caller, action: scopes.Action = "read") -> Run:
    """Returns a run. A run of another caller, or of an agent that the caller may not reach, counts as not found."""
    run = await door.engine.runs.get(request.path_params["run_id"])
    thread = request.path_params.get("thread_id")
    is_visible = scopes.sees(caller, run.caller) and (thread is None or run.thread == thread)
    if is_visible:
        scopes.require(caller, action)
    if not is_visible or not scopes.may(caller, action, f"{run.agent}@{run.version}"):
        raise RunNotFound(f"there is no run {run.id}" + (f" on thread {thread}" if thread else ""))
    return run


def _card_of(door: ConnectDoor, run: Run) -> AgentCard | None:
    agent = door.engine.agents.find(run.agent, run.version)
    return agent.card if agent is not None else None


async def get_run(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response(run_body(await find_run(door, request, caller)))


async def search_runs(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    search = await door.read(request, wire.RunSearchRequest, optional=True)
    where = RunFilter(
        metadata=search.metadata,
        limit=search.limit,
        offset=search.offset,
        agents=reading.reach(caller),
        tag="stateless",
        **reading.own(caller),
    )
    if search.agent_id is not None:
        # Runs outlive their agents: a name finds them, of every version, also where the code is gone.
        card = known(door).get(search.agent_id)
        where.agent, where.version = (search.agent_id, None) if card is None else (card.name, card.version)
    if search.status is not None:
        where.status = translate.STATUSES[search.status]
    return json_response(await _listed(door, where))


async def _listed(door: ConnectDoor, where: RunFilter) -> list[dict[str, Any]]:
    bodies = []
    for run in await door.engine.runs.search(where):
        with contextlib.suppress(RunNotFound):  # deleted meanwhile
            bodies.append(run_body(await door.engine.runs.get(run.id)))
    return bodies


async def thread_runs(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    thread = await find_thread(door, request.path_params["thread_id"], caller)
    scopes.require(caller, "read")
    where = RunFilter(
        thread=thread.id,
        limit=query.number(request.query_params, "limit", 10, 1, 1000),
        offset=query.number(request.query_params, "offset", 0),
        agents=reading.reach(caller),
        **reading.own(caller),
    )
    return json_response(await _listed(door, where))


async def resume(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run = await find_run(door, request, caller, "answer")
    payload = await door.read(request, Any)
    if run.status is not Status.WAITING or not run.questions:
        why = f"run {run.id} is {translate.STATUS[run.status]}; only an interrupted run can be resumed"
        raise Conflict(why + await door.engine.questions.last_answer_text(run.id))
    question = run.questions[0]
    try:
        await door.engine.questions.answer(question.id, payload, by=caller, door="connect")
    except InvalidAnswer:
        # The earlier document wraps the answer: taken where it has exactly those members and fits inside.
        if not (isinstance(payload, dict) and set(payload) == {"interrupt_type", "resume_payload"}):
            raise
        if payload["interrupt_type"] != question.type:
            raise Conflict(f"run {run.id} waits for {question.type}, not for {payload['interrupt_type']}") from None
        await door.engine.questions.answer(question.id, payload["resume_payload"], by=caller, door="connect")
    return json_response(run_body(await door.engine.runs.get(run.id)))


async def delete_run(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run = await find_run(door, request, caller, "delete")
    if not run.status.final:
        with contextlib.suppress(AlreadyFinished):
            await door.engine.runs.cancel(run.id, by=caller, reason="it is being deleted")
        await door.engine.runs.wait(run.id)
    await door.engine.runs.delete(run.id)
    return Response(status_code=204)


async def wait(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run, timeout = await find_run(door, request, caller), query.seconds(request.query_params, "timeout", None)
    known = request.query_params.get("while")
    return await _wait_for(door, request, run, caller, timeout, cancels=reading.cancels(run), known=known)


async def _wait_for(
    door: ConnectDoor, request: Request, run: Run, caller: Caller, timeout: float | None, *, cancels: bool,
    known: str | None = None,
) -> Response:  # fmt: skip
    if known is None and timeout is None and not run.status.final:
        run = await door.engine.runs.wait_briefly(run)
    if run.status.final:
        return await _wait_response(door, run, caller)
    if known is None:
        waiting = asyncio.ensure_future(door.engine.runs.wait(run.id, timeout=timeout, settled=True))
    else:
        waiting = asyncio.ensure_future(_asked_no_more(door, run, known, timeout))
    leaving = asyncio.ensure_future(reading.disconnected(request))
    with door.watchers.watch(run.id, cancels) as watch:
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return Response(status_code=499)
            watch.answered = True
            return await _wait_response(door, waiting.result(), caller)
        except TimeoutError:
            return Response(status_code=204)
        except RunNotFound:  # it was there when the wait began
            error = RunCancelled(translate.GONE).info()
            gone = msgspec.structs.replace(run, status=Status.CANCELLED, error=error)
            return await _wait_response(door, gone, caller)
        finally:
            waiting.cancel()
            leaving.cancel()


async def _asked_no_more(door: ConnectDoor, run: Run, question: str, timeout: float | None) -> Run:
    """Waits until the run no longer asks the question that the waiting caller knows, and returns it; also where the
    run is just resuming."""
    if all(one.id != question for one in run.questions):
        return run
    reader, until = door.engine.runs.reader(run.id, run.seq), asyncio.timeout(timeout)
    try:
        async with until:
            door.listeners.add(until)
            with contextlib.suppress(QuestionNotFound):
                while not reader.over and (await door.engine.questions.get(question)).state == "open":
                    await reader.read()
    finally:
        door.listeners.discard(until)
        reader.close()
    return await door.engine.runs.get(run.id)


async def _wait_response(door: ConnectDoor, run: Run, caller: Caller) -> Response:
    messages = await _messages_beside(door, run.id) if run.status is Status.SUCCEEDED else []
    return json_response(waited(door, run, caller, messages))


def waited(door: ConnectDoor, run: Run, caller: Caller, messages: list[Message]) -> dict[str, Any]:
    body: dict[str, Any] = {"run": run_body(run)}
    output = translate.output(run, _card_of(door, run), caller.id, messages)
    if output is not None:
        body |= {"output": output}
    return body


async def _messages_beside(door: ConnectDoor, run: str) -> list[Message]:
    """Returns the messages that a run gave beside its output. Reads them from memory where the run has just
    ended."""
    collector, events = ContentCollector(), door.engine.runs.committed_events(run)
    if events is None:
        with contextlib.suppress(RunNotFound):  # deleted meanwhile
            async for event in door.engine.runs.events(run, follow=False):
                collector.feed(event)
    for event in events or ():
        collector.feed(event)
    return collector.messages()


async def stream(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run = await find_run(door, request, caller)
    modes = reading.modes(run.request.extra.get("connect", {}).get("stream_mode") if run.request is not None else None)
    last = request.headers.get("last-event-id")
    after = reading.place(last) if last else None
    if after is not None and after[0] > run.seq:
        raise InvalidRequest(f"run {run.id} has {run.seq} events, and {last} is beyond the end; read from the start")
    return _streaming(door, run.id, caller, after=after, modes=modes, cancels=reading.cancels(run))


def _streaming(
    door: ConnectDoor, run: str, caller: Caller, *, after: Place | None, modes: list[str], cancels: bool
) -> Response:
    updates = follow(door.engine, run, after, modes, door.settings, caller.id)
    return WatchedStream(updates, door.watchers.watch(run, cancels), door.settings.keep_alive)


async def cancel(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    run = await find_run(door, request, caller, "cancel")
    rollback = query.choice(request.query_params, "action", ("interrupt", "rollback"), "interrupt") == "rollback"
    wait = query.flag(request.query_params, "wait")
    if rollback:
        scopes.require(caller, "delete", f"{run.agent}@{run.version}")
    if not run.status.final:
        with contextlib.suppress(AlreadyFinished):
            await door.engine.runs.cancel(run.id, by=caller, rollback=rollback)
    if rollback:
        # The cancel may come too late for the run to see it; then it ends as it would have, and is deleted here.
        gone = door.engine.spawn(_gone(door, run.id))
        if wait or run.status.final:
            await asyncio.shield(gone)
    elif wait:
        with contextlib.suppress(RunNotFound):
            await door.engine.runs.wait(run.id)
    return Response(status_code=204)


async def _gone(door: ConnectDoor, run: str) -> None:
    with contextlib.suppress(RunNotFound):
        await door.engine.runs.wait(run)
        await door.engine.runs.delete(run, rollback=True)


def stated(body: wire.RunCreate, card: AgentCard, config: Any, caller: Caller, *, watched: bool) -> RunRequest:
    """Returns the run request in the body of a request."""
    input_, messages = reading.agent_input(body.input, card)
    return RunRequest(
        card.name,
        card.version,
        input_,
        config,
        messages=messages,
        metadata=body.metadata or {},
        caller=caller,
        when_busy=body.multitask_strategy,
        delay=float(body.after_seconds or 0),
        extra={
            "connect": translate.creation(body),
            "watched": watched and body.on_disconnect == "cancel",
            "mark": "stateless",
        },
    )
