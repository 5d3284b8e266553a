"""Runs, with or without a thread: made, waited for, streamed, resumed, cancelled, deleted."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...engine.ids import new_id
from ...model.card import AgentCard
from ...model.errors import (
    AgentNotFound,
    AlreadyFinished,
    Conflict,
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    RunNotFound,
    ThreadNotFound,
)
from ...model.run import Callback, Caller, Run, RunRequest
from ...model.status import Status
from ...security import scopes
from ...store.base import RunFilter
from ...transports.http import header, json_response
from ...transports.sse import KEEP_ALIVE
from . import reading, translate, wire
from .agents import Agents
from .stream import Place, follow
from .threads import Threads


class Runs(Agents, Threads):
    _watchers: dict[str, int]  # connections that a run with on_disconnect=cancel still has

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
            found = await self.engine.store.thread(thread)
            if found is not None and scopes.sees(caller, found.caller):
                await self.engine.check_state(found, card)
            elif found is None and body.if_not_exists == "create":
                reading.check_uuid(thread, "thread_id")
            else:
                raise ThreadNotFound(f"there is no thread {thread}")
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
            reading.check_url(url, "webhook" if body.webhook is not None else "callback")
        keep = thread is None and body.on_completion == "keep"
        key = header(request, b"idempotency-key")
        kept = None
        if keep:
            kept = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{caller.id} {key}")) if key else new_id()
        made = await self.engine.submit(
            RunRequest(
                card.name,
                card.version,
                reading.agent_input(body.input, card),
                config,
                metadata=body.metadata or {},
                caller=caller,
                thread=thread or kept,
                create_thread=keep or (thread is not None and body.if_not_exists == "create"),
                when_busy=body.multitask_strategy,
                delay=float(body.after_seconds or 0),
                key=key,
                trace=reading.trace(request),
                callback=Callback(url, "connect") if url is not None and able["callbacks"] else None,
                extra={
                    "connect": translate.creation(body),
                    "watched": watched and body.on_disconnect == "cancel",
                    "stateless": thread is None,
                },
            )
        )
        return made, body

    async def _agent_to_run(self, body: wire.RunCreate, caller: Caller) -> tuple[AgentCard, Any]:
        """The agent, and its configuration: the run's own, else that of a configured instance."""
        config = body.config.configurable if body.config is not None else None
        if body.agent_id == "":
            raise InvalidRequest("agent_id is empty; leave it out to run the default agent", path="/agent_id")
        try:
            return self._runnable(body.agent_id, caller), config
        except AgentNotFound:
            if body.agent_id is None:
                raise
            found = await self.engine.store.instance(body.agent_id)
            if found is None or not scopes.sees(caller, found.caller):
                raise
            agent = self.engine.agents.find(found.agent, found.version)
            if agent is None:  # its card may still be known, but a run of it here would wait for ever
                raise AgentNotFound(
                    f"configured instance {found.id} is of agent {found.agent}@{found.version}, which is not served "
                    "here any more"
                ) from None
            return agent.card, config if config is not None else found.config

    def _runnable(self, wanted: str | None, caller: Caller) -> AgentCard:
        """An agent that a caller may neither see nor run is not there; one that it may see and not run is denied."""
        try:
            return self._card(wanted, caller, "run")
        except AgentNotFound:
            return self._card(wanted, caller)

    async def create_run(self, request: Request, caller: Caller) -> Response:
        made, _ = await self._submit(request, caller)
        told = self._told(made)
        if "idempotency-key" not in request.headers:
            # A new run is pending, by the document, however quick its agent is; what it came to is asked for later.
            told |= {"status": "pending", "updated_at": told["created_at"]}
        return json_response(told)

    async def create_and_wait(self, request: Request, caller: Caller) -> Response:
        made, body = await self._submit(request, caller, watched=True)
        if made.status.final:
            return self._wait_response(made)
        return await self._wait_for(request, made.id, cancels=body.on_disconnect == "cancel")

    async def create_and_stream(self, request: Request, caller: Caller) -> Response:
        made, body = await self._submit(request, caller, streams=True, watched=True)
        cancels = body.on_disconnect == "cancel"
        return self._streaming(made.id, after=(0, 1), modes=reading.modes(body.stream_mode), cancels=cancels)

    # -- runs ---------------------------------------------------------------------------------------------

    async def _run(self, request: Request, caller: Caller) -> Run:
        run = await self.engine.run(request.path_params["run_id"])
        thread = request.path_params.get("thread_id")
        if not scopes.sees(caller, run.caller) or (thread is not None and run.thread != thread):
            raise RunNotFound(f"there is no run {run.id}" + (f" on thread {thread}" if thread else ""))
        return run

    def _told(self, run: Run) -> dict[str, Any]:
        return translate.run(run, translate.agent_id_of(run.agent, run.version))

    def callback_body(self, run: Run) -> dict[str, Any]:
        """What is POSTed to a run's webhook."""
        return self._told(run)

    def _card_of(self, run: Run) -> AgentCard | None:
        agent = self.engine.agents.find(run.agent, run.version)
        return agent.card if agent is not None else None

    async def get_run(self, request: Request, caller: Caller) -> Response:
        return json_response(self._told(await self._run(request, caller)))

    async def search_runs(self, request: Request, caller: Caller) -> Response:
        wanted = await self._read(request, wire.RunSearchRequest, optional=True)
        where = RunFilter(
            metadata=wanted.metadata,
            limit=wanted.limit,
            offset=wanted.offset,
            marked="stateless",
            **reading.own(caller),
        )
        if wanted.agent_id is not None:
            card = self._known().get(wanted.agent_id)
            if card is None:
                return json_response([])
            where.agent, where.version = card.name, card.version
        if wanted.status is not None:
            where.status = translate.STATUSES[wanted.status]
        return json_response([self._told(await self.engine.run(run.id)) for run in await self.engine.runs(where)])

    async def thread_runs(self, request: Request, caller: Caller) -> Response:
        thread = await self._thread(request.path_params["thread_id"], caller)
        where = RunFilter(
            thread=thread.id,
            limit=reading.number(request, "limit", 10, 1, 1000),
            offset=reading.number(request, "offset", 0),
        )
        return json_response([self._told(await self.engine.run(run.id)) for run in await self.engine.runs(where)])

    async def resume(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller)
        scopes.require(caller, "answer", f"{run.agent}@{run.version}")
        payload = await self._read(request, Any)
        if run.status is not Status.WAITING or not run.questions:
            raise Conflict(f"run {run.id} is {translate.STATUS[run.status]}; only an interrupted run can be resumed")
        question = run.questions[0]
        try:
            await self.engine.answer(question.id, payload, by=caller)
        except InvalidAnswer:
            # The earlier document wraps the answer: taken where it has exactly those members and fits inside.
            if not (isinstance(payload, dict) and set(payload) == {"interrupt_type", "resume_payload"}):
                raise
            if payload["interrupt_type"] != question.type:
                raise Conflict(f"run {run.id} waits for {question.type}, not for {payload['interrupt_type']}") from None
            await self.engine.answer(question.id, payload["resume_payload"], by=caller)
        return json_response(self._told(await self.engine.run(run.id)))

    async def delete_run(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller)
        scopes.require(caller, "delete", f"{run.agent}@{run.version}")
        if not run.status.final:
            with contextlib.suppress(AlreadyFinished):
                await self.engine.cancel(run.id, by=caller, reason="it is being deleted")
            await self.engine.wait(run.id)
        await self.engine.delete(run.id)
        return Response(status_code=204)

    async def wait(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller)
        return await self._wait_for(request, run.id, cancels=reading.cancels(run))

    async def _wait_for(self, request: Request, run: str, *, cancels: bool) -> Response:
        timeout = reading.seconds(request, "timeout")
        waiting = asyncio.ensure_future(self.engine.wait(run, timeout=timeout, settled=True))
        gone = asyncio.ensure_future(reading.disconnected(request))
        with self._watching(run, cancels):
            try:
                await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    return Response(status_code=499)
                return self._wait_response(waiting.result())
            except TimeoutError:
                return Response(status_code=204)
            finally:
                waiting.cancel()
                gone.cancel()

    def _wait_response(self, run: Run) -> Response:
        told: dict[str, Any] = {"run": self._told(run)}
        output = translate.output(run, self._card_of(run))
        if output is not None:
            told |= {"output": output}
        return json_response(told)

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
        return self._streaming(run.id, after=after, modes=modes, cancels=reading.cancels(run))

    def _streaming(self, run: str, *, after: Place | None, modes: list[str], cancels: bool) -> Response:
        async def body() -> AsyncIterator[bytes]:
            with self._watching(run, cancels):
                async for chunk in follow(self.engine, run, after, modes, self.settings, KEEP_ALIVE):
                    yield chunk

        return StreamingResponse(body(), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def cancel(self, request: Request, caller: Caller) -> Response:
        run = await self._run(request, caller)
        scopes.require(caller, "cancel", f"{run.agent}@{run.version}")
        action = request.query_params.get("action", "interrupt")
        if action not in ("interrupt", "rollback"):
            raise InvalidRequest(f"action is {action!r}; it is interrupt or rollback", path="/action")
        wait = reading.flag(request, "wait")
        rollback = action == "rollback"
        if not run.status.final:
            with contextlib.suppress(AlreadyFinished):
                await self.engine.cancel(run.id, by=caller, rollback=rollback)
        if rollback:
            # The cancel may come too late for the run to see it; then it ends as it would have, and is deleted here.
            gone = self.engine.worker.spawn(self._gone(run.id))
            if wait or run.status.final:
                await asyncio.shield(gone)
        elif wait:
            with contextlib.suppress(RunNotFound):
                await self.engine.wait(run.id)
        return Response(status_code=204)

    async def _gone(self, run: str) -> None:
        with contextlib.suppress(RunNotFound):
            await self.engine.wait(run)
            await self.engine.delete(run)

    @contextlib.contextmanager
    def _watching(self, run: str, cancels: bool) -> Any:
        """Count who watches a run that shall not outlive its watchers."""
        if not cancels:
            yield
            return
        self._watchers[run] = self._watchers.get(run, 0) + 1
        try:
            yield
        finally:
            self._watchers[run] -= 1
            if not self._watchers[run]:
                del self._watchers[run]
                log = self.engine.worker.log_of(run) if self.engine.running else None
                if log is None or log.finished is None:
                    loop = asyncio.get_running_loop()
                    loop.call_later(self.settings.disconnect_grace, self._unwatched, run)

    def _unwatched(self, run: str) -> None:
        if run in self._watchers or not self.engine.running:
            return  # taken up again; or it is the server that left, and the run is handed on
        log = self.engine.worker.log_of(run)
        if log is None or log.finished is None:
            self.engine.worker.spawn(self._cancel_unwatched(run))

    async def _cancel_unwatched(self, run: str) -> None:
        with contextlib.suppress(NotFound, Conflict):
            view = await self.engine.run(run)
            if view.status is not Status.WAITING and not view.status.final:  # at an interrupt a stream ends by itself
                await self.engine.cancel(run, reason="its client disconnected")
