"""The door of the Agent Connect Protocol: every operation of its OpenAPI, and what the earlier document adds.

The routes are plain functions of (request, caller); `_endpoint` puts authentication and the error table around them.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from ...engine.engine import Engine
from ...engine.ids import new_id
from ...model.card import AgentCard
from ...model.errors import (
    AgentNotFound,
    AlreadyFinished,
    Conflict,
    InterlinguaError,
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    RunNotFound,
    ThreadNotFound,
)
from ...model.run import Callback, Caller, Instance, Run, RunRequest, Thread
from ...model.status import Status
from ...security import scopes
from ...security.auth import Authenticator
from ...store.base import RunFilter, ThreadFilter
from ...transports.http import HttpLimits, json_response, read_json
from ...transports.sse import KEEP_ALIVE
from . import translate, wire
from .stream import Place, follow, place_of

Handler = Callable[[Request, Caller], Awaitable[Response]]


class ConnectSettings(msgspec.Struct, kw_only=True, frozen=True):
    limits: HttpLimits = HttpLimits()
    disconnect_grace: float = 2.0
    """Seconds in which a dropped stream can be taken up again before `on_disconnect: cancel` takes effect."""
    keep_alive: float = 15.0
    values_per_second: float = 20.0
    """At most so many whole values per second and stream: one per token would be quadratic."""


class ConnectDoor:
    def __init__(self, engine: Engine, auth: Authenticator, settings: ConnectSettings | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings or ConnectSettings()
        self._watchers: dict[str, int] = {}  # connections that a run with on_disconnect=cancel still has
        self._cards: dict[str, AgentCard] = {}
        engine.agents.listeners.append(self._cards.clear)

    def routes(self) -> list[BaseRoute]:
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/agents/search", self.search_agents),
            ("GET", "/agents/agent/{agent_id}/descriptor", self.descriptor),
            ("GET", "/agents/{agent_id}", self.get_agent),
            ("GET", "/agents/{agent_id}/descriptor", self.descriptor),
            ("GET", "/agents/{agent_id}/capabilities", self.capabilities),
            ("GET", "/agents/{agent_id}/errors", self.agent_errors),
            ("GET", "/agents/{agent_id}/configurations", self.configurations),
            ("POST", "/agents/{agent_id}/configurations", self.configure),
            ("GET", "/configurations/{config_id}", self.get_configuration),
            ("DELETE", "/configurations/{config_id}", self.delete_configuration),
            ("GET", "/errors", self.errors),
            ("POST", "/threads", self.create_thread),
            ("POST", "/threads/search", self.search_threads),
            ("GET", "/threads/{thread_id}", self.get_thread),
            ("PATCH", "/threads/{thread_id}", self.patch_thread),
            ("DELETE", "/threads/{thread_id}", self.delete_thread),
            ("GET", "/threads/{thread_id}/history", self.history),
            ("POST", "/threads/{thread_id}/copy", self.copy_thread),
            ("GET", "/threads/{thread_id}/runs", self.thread_runs),
            ("POST", "/threads/{thread_id}/runs", self.create_run),
            ("POST", "/threads/{thread_id}/runs/stream", self.create_and_stream),
            ("POST", "/threads/{thread_id}/runs/wait", self.create_and_wait),
            ("POST", "/runs", self.create_run),
            ("POST", "/runs/search", self.search_runs),
            ("POST", "/runs/stream", self.create_and_stream),
            ("POST", "/runs/wait", self.create_and_wait),
        ]
        for base in ("/threads/{thread_id}/runs/{run_id}", "/runs/{run_id}"):
            table += [
                ("GET", base, self.get_run),
                ("POST", base, self.resume),
                ("DELETE", base, self.delete_run),
                ("GET", base + "/wait", self.wait),
                ("GET", base + "/stream", self.stream),
                ("POST", base + "/cancel", self.cancel),
            ]
        routes: list[BaseRoute] = [
            Route(path, self._endpoint(handler), methods=[method]) for method, path, handler in table
        ]
        routes.append(Route("/auth", self._open(self.auth_schemes), methods=["GET"]))
        return routes

    # -- around every operation ---------------------------------------------------------------------------

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                caller = await self.auth.authenticate(request.headers)
                return await handler(request, caller)
            except InterlinguaError as error:
                return _refusal(error)

        return endpoint

    def _open(self, handler: Callable[[], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return json_response(handler())

        return endpoint

    async def _read(self, request: Request, type_: type[Any], *, optional: bool = False) -> Any:
        return await read_json(request, type_, self.settings.limits, optional=optional)

    def auth_schemes(self) -> dict[str, Any]:
        """What a caller needs before it can call anything: needs no authentication itself."""
        return {"schemes": self.auth.schemes()}

    # -- agents -------------------------------------------------------------------------------------------

    def _known(self) -> dict[str, AgentCard]:
        if not self._cards:
            self._cards.update({translate.agent_id(agent.card): agent.card for agent in self.engine.agents})
        return self._cards

    def _card(self, wanted: str | None, caller: Caller) -> AgentCard:
        """By id or by name; without either, the first agent of this server."""
        known = self._known()
        if wanted is None:
            found = next(iter(known.values()), None)
        else:
            found = known.get(wanted) or next((c for c in known.values() if c.name == wanted), None)
        if found is None or not scopes.may(caller, "read", found.key).allowed:
            raise AgentNotFound(f"there is no agent {wanted}" if wanted else "this server has no agents")
        return found

    async def search_agents(self, request: Request, caller: Caller) -> Response:
        wanted = await self._read(request, wire.AgentSearchRequest, optional=True)
        found = [
            card
            for card in self._known().values()
            if wanted.name in (None, card.name)
            and wanted.version in (None, card.version)
            and scopes.may(caller, "read", card.key).allowed
        ]
        page = found[wanted.offset : wanted.offset + wanted.limit]
        return json_response([translate.agent(card) for card in page])

    async def get_agent(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.agent(self._card(request.path_params["agent_id"], caller)))

    async def descriptor(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.descriptor(self._card(request.path_params["agent_id"], caller)))

    async def capabilities(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.capabilities(self._card(request.path_params["agent_id"], caller)))

    async def agent_errors(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.own_error_definitions(self._card(request.path_params["agent_id"], caller)))

    async def errors(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.error_definitions())

    # -- configured instances -----------------------------------------------------------------------------

    async def configure(self, request: Request, caller: Caller) -> Response:
        card = self._card(request.path_params["agent_id"], caller)
        scopes.require(caller, "config", card.key)
        body = await self._read(request, wire.Configuration)
        made = await self.engine.configure(
            card.name, body.config, version=card.version, caller=caller, label=body.name, metadata=body.metadata
        )
        return json_response(translate.instance(made))

    async def configurations(self, request: Request, caller: Caller) -> Response:
        card = self._card(request.path_params["agent_id"], caller)
        found = await self.engine.store.instances(
            agent=card.name, version=card.version, limit=_number(request, "limit", 10, 1, 1000),
            offset=_number(request, "offset", 0), **_own(caller),
        )  # fmt: skip
        return json_response([translate.instance(instance) for instance in found])

    async def _instance(self, wanted: str, caller: Caller) -> Instance:
        found = await self.engine.store.instance(wanted)
        if found is None or not scopes.sees(caller, found.caller):
            raise NotFound(f"there is no configured instance {wanted}")
        return found

    async def get_configuration(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.instance(await self._instance(request.path_params["config_id"], caller)))

    async def delete_configuration(self, request: Request, caller: Caller) -> Response:
        found = await self._instance(request.path_params["config_id"], caller)
        scopes.require(caller, "config", f"{found.agent}@{found.version}")
        await self.engine.store.delete_instance(found.id)
        return Response(status_code=204)

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
            if found is not None and not scopes.sees(caller, found.caller):
                raise ThreadNotFound(f"there is no thread {thread}")
        modes = _modes(body.stream_mode)
        if streams or body.stream_mode is not None:
            missing = [mode for mode in modes if not able["streaming"][mode]]
            if missing:
                raise InvalidRequest(
                    f"agent {card.name} does not stream {', '.join(missing)}; its descriptor says what it streams",
                    path="/stream_mode",
                )
        keep = thread is None and body.on_completion == "keep"
        key = request.headers.get("idempotency-key")
        kept = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{caller.id} {key}")) if key else new_id()
        made = await self.engine.submit(
            RunRequest(
                card.name,
                card.version,
                _input(body.input, card),
                config,
                metadata=body.metadata or {},
                caller=caller,
                thread=thread or (kept if keep else None),
                create_thread=keep or (thread is not None and body.if_not_exists == "create"),
                when_busy=body.multitask_strategy,
                delay=float(body.after_seconds or 0),
                key=key,
                trace=_trace(request),
                callback=Callback(url, "connect") if (url := translate.webhook(body)) and able["callbacks"] else None,
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
        try:
            return self._card(body.agent_id, caller), config
        except AgentNotFound:
            if body.agent_id is None:
                raise
            found = await self.engine.store.instance(body.agent_id)
            if found is None or not scopes.sees(caller, found.caller):
                raise
            card = await self.engine.card(found.agent, found.version)
            return card, config if config is not None else found.config

    async def create_run(self, request: Request, caller: Caller) -> Response:
        made, _ = await self._submit(request, caller)
        return json_response(self._told(made))

    async def create_and_wait(self, request: Request, caller: Caller) -> Response:
        made, body = await self._submit(request, caller, watched=True)
        if made.status.final:
            return self._wait_response(made)
        return await self._wait_for(request, made.id, cancels=body.on_disconnect == "cancel")

    async def create_and_stream(self, request: Request, caller: Caller) -> Response:
        made, body = await self._submit(request, caller, streams=True, watched=True)
        cancels = body.on_disconnect == "cancel"
        return self._streaming(made.id, after=(0, 1), modes=_modes(body.stream_mode), cancels=cancels)

    # -- runs ---------------------------------------------------------------------------------------------

    async def _run(self, request: Request, caller: Caller) -> Run:
        run = await self.engine.run(request.path_params["run_id"])
        thread = request.path_params.get("thread_id")
        if not scopes.sees(caller, run.caller) or (thread is not None and run.thread != thread):
            raise RunNotFound(f"there is no run {run.id}" + (f" on thread {thread}" if thread else ""))
        return run

    def _told(self, run: Run) -> dict[str, Any]:
        return translate.run(run, translate.agent_id(AgentCard(run.agent, run.version)))

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
            metadata=wanted.metadata, limit=wanted.limit, offset=wanted.offset, marked="stateless", **_own(caller)
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
            thread=thread.id, limit=_number(request, "limit", 10, 1, 1000), offset=_number(request, "offset", 0)
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
        return await self._wait_for(request, run.id, cancels=_cancels(run))

    async def _wait_for(self, request: Request, run: str, *, cancels: bool) -> Response:
        timeout = _seconds(request, "timeout")
        waiting = asyncio.ensure_future(self.engine.wait(run, timeout=timeout, settled=True))
        gone = asyncio.ensure_future(_disconnected(request))
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
        modes = _modes(run.request.extra.get("connect", {}).get("stream_mode") if run.request is not None else None)
        last = request.headers.get("last-event-id")
        after = _place(last) if last else None
        if after is not None and after[0] > run.seq:
            raise InvalidRequest(
                f"run {run.id} has {run.seq} events, and {last} is beyond the end; read from the start"
            )
        return self._streaming(run.id, after=after, modes=modes, cancels=_cancels(run))

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
        wait = _flag(request, "wait")
        if not run.status.final:
            with contextlib.suppress(AlreadyFinished):
                await self.engine.cancel(run.id, by=caller, rollback=action == "rollback")
            if wait:
                with contextlib.suppress(RunNotFound):
                    await self.engine.wait(run.id)
        elif action == "rollback":
            await self.engine.delete(run.id)
        return Response(status_code=204)

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
                loop = asyncio.get_running_loop()
                loop.call_later(self.settings.disconnect_grace, self._unwatched, run)

    def _unwatched(self, run: str) -> None:
        log = self.engine.worker.log_of(run)
        over = log is not None and log.finished is not None
        if run not in self._watchers and not over:
            self.engine.worker.spawn(self._cancel_unwatched(run))

    async def _cancel_unwatched(self, run: str) -> None:
        with contextlib.suppress(NotFound, Conflict):
            view = await self.engine.run(run)
            if view.status is not Status.WAITING:  # an interrupt is where a stream ends by itself
                await self.engine.cancel(run, reason="its client disconnected")

    # -- threads ------------------------------------------------------------------------------------------

    async def _thread(self, thread: str, caller: Caller) -> Thread:
        found = await self.engine.thread(thread)
        if not scopes.sees(caller, found.caller):
            raise ThreadNotFound(f"there is no thread {thread}")
        return found

    async def _thread_response(self, thread: Thread) -> Response:
        return json_response(translate.thread(thread, await self.engine.messages(thread.id)))

    async def create_thread(self, request: Request, caller: Caller) -> Response:
        scopes.require(caller, "run")
        body = await self._read(request, wire.ThreadCreate, optional=True)
        thread = await self.engine.create_thread(
            body.thread_id, metadata=body.metadata, caller=caller,
            if_exists="keep" if body.if_exists == "do_nothing" else "raise",
        )  # fmt: skip
        if not scopes.sees(caller, thread.caller):
            raise Conflict(f"there is a thread {thread.id} already")
        return await self._thread_response(thread)

    async def search_threads(self, request: Request, caller: Caller) -> Response:
        body = await self._read(request, wire.ThreadSearchRequest, optional=True)
        where = ThreadFilter(
            status=body.status, metadata=body.metadata, values=body.values, limit=body.limit, offset=body.offset,
            **_own(caller),
        )  # fmt: skip
        return json_response([translate.thread(thread) for thread in await self.engine.threads(where)])

    async def get_thread(self, request: Request, caller: Caller) -> Response:
        return await self._thread_response(await self._thread(request.path_params["thread_id"], caller))

    async def patch_thread(self, request: Request, caller: Caller) -> Response:
        thread = await self._thread(request.path_params["thread_id"], caller)
        scopes.require(caller, "run")
        body = await self._read(request, wire.ThreadPatch)
        changes_state = body.values is not msgspec.UNSET or body.messages is not None
        return await self._thread_response(
            await self.engine.patch_thread(
                thread.id,
                values_=body.values,
                metadata=body.metadata,
                messages=None if body.messages is None else [translate.to_message(m) for m in body.messages],
                checkpoint=body.checkpoint.checkpoint_id
                if body.checkpoint is not None and (changes_state or body.metadata is None)
                else None,
            )
        )

    async def delete_thread(self, request: Request, caller: Caller) -> Response:
        thread = await self._thread(request.path_params["thread_id"], caller)
        scopes.require(caller, "delete")
        await self.engine.delete_thread(thread.id)
        return Response(status_code=204)

    async def history(self, request: Request, caller: Caller) -> Response:
        thread = await self._thread(request.path_params["thread_id"], caller)
        limit = _number(request, "limit", 10, 1, 1000)
        states = await self.engine.history(thread.id, before=request.query_params.get("before"), limit=limit)
        return json_response([translate.thread_state(state) for state in states])

    async def copy_thread(self, request: Request, caller: Caller) -> Response:
        thread = await self._thread(request.path_params["thread_id"], caller)
        scopes.require(caller, "run")
        return await self._thread_response(await self.engine.copy_thread(thread.id))


# -- small readers --------------------------------------------------------------------------------------------


def _refusal(error: InterlinguaError) -> Response:
    """The protocol's error is a bare JSON string; the code travels in a header for whoever wants it."""
    status = {"slow_body": 408, "wrong_content_type": 415}.get(error.code) or translate.http_status(error)
    headers = {"x-error-code": error.code, "x-error-transient": str(error.transient).lower()}
    challenge = getattr(error, "challenge", None)
    if challenge:
        headers["www-authenticate"] = challenge
    return json_response(error.message, status, headers)


def _trace(request: Request) -> dict[str, str] | None:
    """The W3C trace context of the caller, kept on the run."""
    found = {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}
    return found or None


def _input(given: Any, card: AgentCard) -> Any:
    if given is None:
        return {}
    if isinstance(given, str) and card.input_text is not None:
        return {card.input_text: given}
    return given


def _modes(given: Any) -> list[str]:
    if given is None:
        return ["values"]
    return [given] if isinstance(given, str) else list(dict.fromkeys(given)) or ["values"]


def _own(caller: Caller) -> dict[str, Any]:
    """Callers find their own, unless a scope says otherwise."""
    return {} if scopes.sees(caller, "*") else {"caller": caller.id}


def _cancels(run: Run) -> bool:
    return bool(run.request is not None and run.request.extra.get("watched"))


def _place(given: str) -> Place:
    found = place_of(given)
    if found is not None:
        return found
    raise InvalidRequest(f"Last-Event-ID {given!r} is none of ours; leave it out to read from now on")


def _number(request: Request, name: str, default: int, low: int = 0, high: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 9 or int(text) < low or (high is not None and int(text) > high):
        raise InvalidRequest(
            f"{name} is {text!r}; it is a whole number from {low}" + (f" to {high}" if high else ""), path=f"/{name}"
        )
    return int(text)


def _seconds(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise InvalidRequest(f"{name} is {text!r}; it is a number of seconds", path=f"/{name}")
    return seconds


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false").lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise InvalidRequest(f"{name} is {text!r}; it is true or false", path=f"/{name}")


async def _disconnected(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


__all__ = ["ConnectDoor", "ConnectSettings"]
