"""The operations on runs, with or without a thread: create, wait, stream, resume, cancel, delete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ....engine.ids import new_id, now
from ....model.card import AgentCard
from ....model.content import Message
from ....model.errors import (
    AgentNotFound,
    AlreadyFinished,
    Conflict,
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    QuestionNotFound,
    RunCancelled,
    RunNotFound,
    ThreadNotFound,
    Unavailable,
)
from ....model.filters import QuestionFilter, RunFilter
from ....model.prompt_input import ContentCollector
from ....model.run import Callback, Caller, Run, RunRequest, Thread
from ....model.status import Status
from ....security import scopes
from ....transports.http.body import header, json_response, trace
from ....transports.http.event_stream import PiecesStream
from ....transports.http.sse import KEEP_ALIVE
from .. import translate, wire
from ..projection import Place, follow
from . import input as reading
from .operations_agents import Agents
from .operations_threads import Threads

_RESOLUTION = 0.01  # seconds by which a timer may ring early
_MANY = 100_000


class Watch:
    """A connection to a run with on_disconnect=cancel."""

    answered = False  # it got its answer: how the run stands, or that its time is over


class Runs(Agents, Threads):
    _watchers: dict[str, int]  # connections that a run with on_disconnect=cancel still has
    stopping: bool  # the server is about to cut off all that are still connected
    listeners: set[asyncio.Timeout]  # of callers that wait only for a question to close
    _left: dict[str, tuple[float, int]]  # runs whose last one dropped: until when it may come back, and since when

    # -- making runs --------------------------------------------------------------------------------------

    async def _submit(
        self, request: Request, caller: Caller, *, streams: bool = False, watched: bool = False
    ) -> tuple[Run, Any]:
        thread = request.path_params.get("thread_id")
        type_ = wire.RunCreateStateful if thread is not None else wire.RunCreateStateless
        body = await self._read(request, type_, optional=True)
        card, config = await self._agent_to_run(body, caller)
        scopes.require(caller, "run", card.key)
        able = translate.capabilities(card)
        if thread is not None:
            if not able["threads"]:
                raise InvalidRequest(f"agent {card.name} does not support threads", path="/agent_id")
            found = await self.engine.threads.find(thread)
            if found is not None and scopes.sees(caller, found.caller):
                await self.engine.threads.check_state(found, card)
            elif found is None and body.if_not_exists == "create":
                reading.check_uuid(thread, "thread_id")
            else:
                raise ThreadNotFound(f"there is no thread {thread}")
            await self._check_may_replace(found, body.multitask_strategy, card, caller)
        modes = reading.modes(body.stream_mode)
        if streams or body.stream_mode is not None:
            missing = [mode for mode in modes if not able["streaming"][mode]]
            if missing:
                raise InvalidRequest(
                    f"agent {card.name} does not stream {', '.join(missing)}; its descriptor says what it streams",
                    path="/stream_mode",
                )
        url = translate.webhook(body)
        if url is not None:
            name = "webhook" if body.webhook is not None else "callback"
            reading.check_url(url, name)
            self.engine.callbacks.check(url, f"/{name}")
        keep = thread is None and body.on_completion == "keep" and able["threads"]
        key = header(request, b"idempotency-key")
        kept = None
        if keep:
            # The same key finds the same thread, and no other caller can guess its id and create it first.
            kept = await self.engine.links.add("connect kept", f"{caller.id} {key}", new_id()) if key else new_id()
        asked = stated(body, card, config, caller, watched=watched)
        asked.thread = thread or kept
        asked.create_thread = keep or (thread is not None and body.if_not_exists == "create")
        asked.key = key
        asked.trace = trace(request)
        asked.callback = Callback(url, "connect") if url is not None and able["callbacks"] else None
        if thread is not None:
            asked.extra["mark"] = None
        made = await self.engine.runs.submit(asked, watch=watched)
        return made.run, body

    async def _check_may_replace(self, thread: Thread | None, strategy: str, card: AgentCard, caller: Caller) -> None:
        """Refuses to take a thread from another run, where the caller may not cancel runs, or not delete them (a
        rollback)."""
        if strategy not in ("interrupt", "rollback"):
            return
        active = await self.engine.runs.find_row(thread.active) if thread is not None and thread.active else None
        for agent in {card.key, f"{active.agent}@{active.version}" if active is not None else card.key}:
            scopes.require(caller, "cancel", agent)
            if strategy == "rollback":
                scopes.require(caller, "delete", agent)

    async def _agent_to_run(self, body: wire.RunCreate, caller: Caller) -> tuple[AgentCard, Any]:
        """Returns the agent and its configuration: the run's own, else that of a configured instance."""
        config = body.config.configurable if body.config is not None else None
        if body.agent_id == "":
            raise InvalidRequest("agent_id is empty; leave it out to run the default agent", path="/agent_id")
        try:
            return self.runnable(body.agent_id, caller), config
        except (AgentNotFound, Unavailable):
            if body.agent_id is None:
                raise
            found = await self.engine.instances.find(body.agent_id)
            if found is None or not scopes.sees(caller, found.caller):
                raise
            agent = self.engine.agents.find(found.agent, found.version)
            if agent is None:  # its card may still be known, but a run of it here would wait for ever
                raise AgentNotFound(
                    f"configured instance {found.id} is of agent {found.agent}@{found.version}, which is not served "
                    "here any more"
                ) from None
            return agent.card, config if config is not None else found.config

    def runnable(self, wanted: str | None, caller: Caller) -> AgentCard:
        """Checks that a caller may run an agent. An agent that it may neither see nor run counts as not found; an agent
        that it may see and not run is denied."""
        try:
            return self._card(wanted, caller, "run")
        except AgentNotFound:
            return self._card(wanted, caller)

    async def create_run(self, request: Request, caller: Caller) -> Response:
        made, _ = await self._submit(request, caller)
        told = self._told(made)
        if "idempotency-key" not in request.headers:
            # A new run is pending, by the document, however quick its agent is; its result is read later.
            told |= {"status": "pending", "updated_at": told["created_at"]}
        return json_response(told)

    async def create_and_wait(self, request: Request, caller: Caller) -> Response:
        timeout = reading.seconds(request, "timeout")
        made, _ = await self._submit(request, caller, watched=True)
        return await self._wait_for(request, made, caller, timeout, cancels=reading.cancels(made))

    async def create_and_stream(self, request: Request, caller: Caller) -> Response:
        made, body = await self._submit(request, caller, streams=True, watched=True)
        modes = reading.modes(body.stream_mode)
        cancels = body.on_disconnect == "cancel"
        streaming = self._streaming(made.id, caller, after=(0, 1), modes=modes, cancels=cancels)
        # Which run it is, before there is anything to tell of it.
        streaming.headers["content-location"] = request.url.path.removesuffix("stream") + made.id
        return streaming

    # -- runs ---------------------------------------------------------------------------------------------

    async def _run(self, request: Request, caller: Caller, action: scopes.Action = "read") -> Run:
        """Returns a run. A run of another caller, or of an agent that the caller may not reach, counts as not found."""
        run = await self.engine.runs.get(request.path_params["run_id"])
        thread = request.path_params.get("thread_id")
        found = scopes.sees(caller, run.caller) and (thread is None or run.thread == thread)
        if found:
            scopes.require(caller, action)
        if not found or not scopes.may(caller, action, f"{run.agent}@{run.version}"):
            raise RunNotFound(f"there is no run {run.id}" + (f" on thread {thread}" if thread else ""))
        return run

    def _told(self, run: Run) -> dict[str, Any]:
        return translate.run(run, translate.agent_id_of(run.agent, run.version))

    def callback_body(self, run: Run) -> dict[str, Any]:
        """Returns the body that is POSTed to a run's webhook."""
        return self._told(run)

    def _card_of(self, run: Run) -> AgentCard | None:
        agent = self.engine.agents.find(run.agent, run.version)
        return agent.card if agent is not None else None

    async def get_run(self, request: Request, caller: Caller) -> Response:
        return json_response(self._told(await self._run(request, caller)))

    async def search_runs(self, request: Request, caller: Caller) -> Response:
        scopes.require(caller, "read")
        wanted = await self._read(request, wire.RunSearchRequest, optional=True)
        where = RunFilter(
            metadata=wanted.metadata,
            limit=wanted.limit,
            offset=wanted.offset,
            agents=reading.reach(caller),
            tag="stateless",
            **reading.own(caller),
        )
        if wanted.agent_id is not None:
            # Runs outlive their agents: a name finds them, of every version, also where the code is gone.
            card = self._known().get(wanted.agent_id)
            where.agent, where.version = (wanted.agent_id, None) if card is None else (card.name, card.version)
        if wanted.status is not None:
            where.status = translate.STATUSES[wanted.status]
        return json_response(await self._listed(where))

    async def _listed(self, where: RunFilter) -> list[dict[str, Any]]:
        told = []
        for run in await self.engine.runs.search(where):
            with contextlib.suppress(RunNotFound):  # deleted meanwhile
                told.append(self._told(await self.engine.runs.get(run.id)))
        return told

    async def thread_runs(self, request: Request, caller: Caller) -> Response:
        thread = await self._thread(request.path_params["thread_id"], caller)
        scopes.require(caller, "read")
        where = RunFilter(
            thread=thread.id,
            limit=reading.number(request, "limit", 10, 1, 1000),
            offset=reading.number(request, "offset", 0),
            agents=reading.reach(caller),
            **reading.own(caller),
        )
        return json_response(await self._listed(where))

    async def resume(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller, "answer")
        payload = await self._read(request, Any)
        if run.status is not Status.WAITING or not run.questions:
            why = f"run {run.id} is {translate.STATUS[run.status]}; only an interrupted run can be resumed"
            raise Conflict(why + await self.engine.questions.last_answer_text(run.id))
        question = run.questions[0]
        try:
            await self.engine.questions.answer(question.id, payload, by=caller, door="connect")
        except InvalidAnswer:
            # The earlier document wraps the answer: taken where it has exactly those members and fits inside.
            if not (isinstance(payload, dict) and set(payload) == {"interrupt_type", "resume_payload"}):
                raise
            if payload["interrupt_type"] != question.type:
                raise Conflict(f"run {run.id} waits for {question.type}, not for {payload['interrupt_type']}") from None
            await self.engine.questions.answer(question.id, payload["resume_payload"], by=caller, door="connect")
        return json_response(self._told(await self.engine.runs.get(run.id)))

    async def delete_run(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller, "delete")
        if not run.status.final:
            with contextlib.suppress(AlreadyFinished):
                await self.engine.runs.cancel(run.id, by=caller, reason="it is being deleted")
            await self.engine.runs.wait(run.id)
        await self.engine.runs.delete(run.id)
        return Response(status_code=204)

    async def wait(self, request: Request, caller: Caller) -> Response:
        run, timeout = await self._run(request, caller), reading.seconds(request, "timeout")
        known = request.query_params.get("while")
        return await self._wait_for(request, run, caller, timeout, cancels=reading.cancels(run), known=known)

    async def _wait_for(
        self, request: Request, run: Run, caller: Caller, timeout: float | None, *, cancels: bool,
        known: str | None = None,
    ) -> Response:  # fmt: skip
        if known is None and timeout is None and not run.status.final:
            run = await self.engine.runs.wait_briefly(run)
        if run.status.final:
            return await self._wait_response(run, caller)
        if known is None:
            waiting = asyncio.ensure_future(self.engine.runs.wait(run.id, timeout=timeout, settled=True))
        else:
            waiting = asyncio.ensure_future(self._asked_no_more(run, known, timeout))
        leaving = asyncio.ensure_future(reading.disconnected(request))
        with self._watching(run.id, cancels) as watch:
            try:
                await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    return Response(status_code=499)
                watch.answered = True
                return await self._wait_response(waiting.result(), caller)
            except TimeoutError:
                return Response(status_code=204)
            except RunNotFound:  # it was there when the wait began
                error = RunCancelled(translate.GONE).info()
                gone = msgspec.structs.replace(run, status=Status.CANCELLED, error=error)
                return await self._wait_response(gone, caller)
            finally:
                waiting.cancel()
                leaving.cancel()

    async def _asked_no_more(self, run: Run, question: str, timeout: float | None) -> Run:
        """Waits until the run no longer asks the question that the waiting caller knows, and returns it; also where the
        run is just resuming."""
        if all(one.id != question for one in run.questions):
            return run
        reader, until = self.engine.runs.reader(run.id, run.seq), asyncio.timeout(timeout)
        try:
            async with until:
                self.listeners.add(until)
                with contextlib.suppress(QuestionNotFound):
                    while not reader.over and (await self.engine.questions.get(question)).state == "open":
                        await reader.read()
        finally:
            self.listeners.discard(until)
            reader.close()
        return await self.engine.runs.get(run.id)

    async def _wait_response(self, run: Run, caller: Caller) -> Response:
        given = await self._given(run.id) if run.status is Status.SUCCEEDED else []
        return json_response(self.waited(run, caller, given))

    def waited(self, run: Run, caller: Caller, given: list[Message]) -> dict[str, Any]:
        told: dict[str, Any] = {"run": self._told(run)}
        output = translate.output(run, self._card_of(run), caller.id, given)
        if output is not None:
            told |= {"output": output}
        return told

    async def _given(self, run: str) -> list[Message]:
        """Returns the messages that a run gave beside its output. Reads them from memory where the run has just
        ended."""
        given, events = ContentCollector(), self.engine.runs.committed_events(run)
        if events is None:
            with contextlib.suppress(RunNotFound):  # deleted meanwhile
                async for event in self.engine.runs.events(run, follow=False):
                    given.feed(event)
        for event in events or ():
            given.feed(event)
        return given.messages()

    async def stream(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller)
        modes = reading.modes(
            run.request.extra.get("connect", {}).get("stream_mode") if run.request is not None else None
        )
        last = request.headers.get("last-event-id")
        after = reading.place(last) if last else None
        if after is not None and after[0] > run.seq:
            raise InvalidRequest(
                f"run {run.id} has {run.seq} events, and {last} is beyond the end; read from the start"
            )
        return self._streaming(run.id, caller, after=after, modes=modes, cancels=reading.cancels(run))

    def _streaming(self, run: str, caller: Caller, *, after: Place | None, modes: list[str], cancels: bool) -> Response:
        updates = follow(self.engine, run, after, modes, self.settings, KEEP_ALIVE, caller.id)
        return WatchedStream(updates, self._watching(run, cancels))

    async def cancel(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller, "cancel")
        action = request.query_params.get("action", "interrupt")
        if action not in ("interrupt", "rollback"):
            raise InvalidRequest(f"action is {action!r}; it is interrupt or rollback", path="/action")
        wait = reading.flag(request, "wait")
        rollback = action == "rollback"
        if rollback:
            scopes.require(caller, "delete", f"{run.agent}@{run.version}")
        if not run.status.final:
            with contextlib.suppress(AlreadyFinished):
                await self.engine.runs.cancel(run.id, by=caller, rollback=rollback)
        if rollback:
            # The cancel may come too late for the run to see it; then it ends as it would have, and is deleted here.
            gone = self.engine.spawn(self._gone(run.id))
            if wait or run.status.final:
                await asyncio.shield(gone)
        elif wait:
            with contextlib.suppress(RunNotFound):
                await self.engine.runs.wait(run.id)
        return Response(status_code=204)

    async def _gone(self, run: str) -> None:
        with contextlib.suppress(RunNotFound):
            await self.engine.runs.wait(run)
            await self.engine.runs.delete(run, rollback=True)

    @contextlib.contextmanager
    def _watching(self, run: str, cancels: bool) -> Iterator[Watch]:
        """Counts the watchers of a run that ends with its last watcher. A watcher that got its answer did not drop."""
        watch = Watch()
        if not cancels:
            yield watch
            return
        self._watchers[run] = self._watchers.get(run, 0) + 1
        self._left.pop(run, None)
        try:
            yield watch
        finally:
            self._watchers[run] -= 1
            if not self._watchers[run]:
                del self._watchers[run]
                ended = self.engine.running and self.engine.runs.ended_here(run)
                if not watch.answered and not ended:
                    loop, grace = asyncio.get_running_loop(), self.settings.disconnect_grace
                    timer = loop.call_later(grace, self._unwatched, run)
                    self._left[run] = timer.when(), now()

    def _unwatched(self, run: str) -> None:
        until, since = self._left.get(run, (0.0, 0))
        if not since or until > asyncio.get_running_loop().time() + _RESOLUTION:
            return  # taken up again, and maybe dropped again: then there is another grace
        del self._left[run]
        if self.stopping or not self.engine.running:
            return  # it is the server that left, and the run is handed on
        if not self.engine.runs.ended_here(run):
            self.engine.spawn(self._cancel_unwatched(run, since))

    async def _cancel_unwatched(self, run: str, since: int) -> None:
        """Cancels a run without watchers. At an interrupt a stream ends by itself: a run that asks, or has asked since,
        needs no watcher."""
        with contextlib.suppress(NotFound, Conflict):
            view = await self.engine.runs.get(run)
            asked = await self.engine.questions.search(QuestionFilter(run=run, state=None, limit=_MANY))
            if (
                view.status is Status.WAITING
                or view.status.final
                or any(one.question.asked_at >= since for one in asked)
            ):
                return
            await self.engine.runs.cancel(run, reason="its client disconnected")


class WatchedStream(PiecesStream):
    """A stream that counts as a watcher from the first moment, and as answered once it was sent to its end."""

    def __init__(self, updates: AsyncIterator[bytes], watching: contextlib.AbstractContextManager[Watch]) -> None:
        super().__init__(updates)
        self._watching = watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watching as self._watch:
            await super().__call__(scope, receive, send)

    async def tell(self) -> bool:
        self._watch.answered = await super().tell()
        return self._watch.answered


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
