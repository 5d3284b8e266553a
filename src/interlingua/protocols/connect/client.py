"""The mount: agents of any Agent Connect server as local agents.

A remote run is started once and its handle recorded; entered again, the handler re-attaches. Each stretch between two
questions is one recorded step that holds how it ended and the cursor, so that nothing is read or shown twice.

Servers differ (workflow-srv 0.3.0 is the published one): what only ours does (replay by Last-Event-ID, fragments,
idempotency keys) is used where the descriptor shows that it is ours, and whole values are compared elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import ssl
import uuid
from collections.abc import AsyncGenerator, Callable
from functools import lru_cache
from typing import Any, Literal, Protocol

import httpx2
import msgspec

from ...engine import questions as engine_questions
from ...engine.agents import Agent, text_field
from ...engine.context import Context
from ...engine.questions import Question, QuestionCodec
from ...model.card import ANY_OBJECT, AgentCard, ErrorDefinition, QuestionType, Schema
from ...model.delta import ABSENT, DeltaError, Joiner, diff
from ...model.errors import (
    DefinitionError,
    Denied,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidRequest,
    RunCancelled,
    RunError,
    RunTimedOut,
    StepFailed,
    Unavailable,
)
from ...model.events import ArtifactAdded, MessageSent, OutputDelta, Plan, Thought, ToolCall, Warned
from ...model.schemas import Validator, check_refs_local
from ...transports.sse import read
from . import translate
from .stream import place_of

KEY_VARIABLE = "INTERLINGUA_CONNECT_KEY"
PATIENCE = 60.0
"""Seconds for which a server that cannot be reached is tried again before the run fails as transient."""
PAGE = 100
_SILENCE = 60.0  # seconds without a byte after which a connection counts as dead; ours sends one every 15
_TIMEOUT = httpx2.Timeout(_SILENCE, connect=10.0, write=30.0)
_THREADS = uuid.UUID("5f0b6c1e-4a0e-5b52-9a55-0d0c7b1f6f1d")  # names remote threads after local ones
_TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})
_ACTIVITY = MessageSent | Thought | Plan | ToolCall | ArtifactAdded | Warned


class Target(Protocol):
    """What the loader needs to know of a target of the command line."""

    @property
    def rest(self) -> str: ...
    @property
    def agent(self) -> str | None: ...


async def load(target: Target) -> list[Agent[..., Any]]:
    """The agents of connect+http(s)://HOST[/PREFIX][#AGENT]: all of them, or those that AGENT can mean."""
    return await Mount(target.rest.removeprefix("connect+")).agents(target.agent)


class RemoteError(RunError):
    """The remote agent failed. Its own code, number and details are kept."""

    code = "remote_failed"

    def __init__(
        self, message: str, *, code: str | None = None, transient: bool | None = None, details: Any = None
    ) -> None:
        super().__init__(message, transient=transient, details=details)
        self.remote_code = code or type(self).code

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.remote_code, self.message, self.transient, self.details)


class Refused(RemoteError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int, code: str | None, transient: bool) -> None:
        super().__init__(message, code=code, transient=transient, details={"status": status})
        self.status = status


# -- finding agents -------------------------------------------------------------------------------------------


class Mount:
    """One server."""

    def __init__(self, base: str, key: str | None = None) -> None:
        try:
            url = httpx2.URL(base)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{base!r} is not an address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise InvalidRequest(f"{base!r} is not the address of a server; write connect+http://HOST[/PREFIX][#AGENT]")
        self.base = base.rstrip("/")
        self.key = key if key is not None else os.environ.get(KEY_VARIABLE)

    def open(self) -> httpx2.AsyncClient:
        """A client for one run: it belongs to the event loop, and is closed with the run."""
        headers = {"x-api-key": self.key} if self.key else {}
        return httpx2.AsyncClient(base_url=self.base, headers=headers, timeout=_TIMEOUT, verify=_tls())

    async def agents(self, wanted: str | None = None) -> list[Agent[..., Any]]:
        async with self.open() as http:
            try:
                found = await self._search(http)
                named = [entry for entry in found if wanted in _names(entry)]
                remotes = [await self._describe(http, entry) for entry in named or found]
            except httpx2.TransportError as error:
                raise Unavailable(f"{self.base} cannot be reached: {_words(error)}") from error
        made: dict[str, Agent[..., Any]] = {}
        for remote in remotes:
            if remote.card.key in made:  # two of one name and version: the id tells them apart
                remote.card.name += f"-{remote.id[:8]}"
            made[remote.card.key] = remote.agent()
        return list(made.values())

    async def _search(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        while True:
            page = _json(await http.post("/agents/search", json={"limit": PAGE, "offset": len(found)}))
            if not isinstance(page, list):
                raise RemoteError(f"{self.base} does not speak the Agent Connect Protocol: no list of agents")
            fresh = {i: e for e in page if isinstance(e, dict) and (i := _agent_id(e)) and i not in found}
            found |= fresh
            if len(page) < PAGE or not fresh:  # some servers do not know `offset`, and send the same again
                return list(found.values())

    async def _describe(self, http: httpx2.AsyncClient, entry: dict[str, Any]) -> Remote:
        identity = _agent_id(entry)
        described: Any = None
        for path in (f"/agents/{identity}/descriptor", f"/agents/agent/{identity}/descriptor"):
            response = await http.get(path)
            if response.is_success:
                described = _json(response)
                break
        described = described if isinstance(described, dict) else {}
        remote = Remote(self, identity, {**_dict(entry.get("metadata")), **_dict(described.get("metadata"))},
                        _dict(described.get("specs")))  # fmt: skip
        if remote.ours:
            with contextlib.suppress(Refused, msgspec.ValidationError):
                told = _json(await http.get(f"/agents/{identity}/errors"))
                remote.card.errors = msgspec.convert(told, list[ErrorDefinition])
        return remote


class Remote:
    """One agent of a server: its card, and what the wire can do for it."""

    def __init__(self, mount: Mount, identity: str, metadata: dict[str, Any], specs: dict[str, Any]) -> None:
        self.mount = mount
        self.id = identity
        able = _dict(specs.get("capabilities"))
        streaming = _dict(able.get("streaming"))
        update = _dict(_dict(specs.get("custom_streaming_update")).get("properties"))
        kinds = _dict(update.get("kind")).get("enum") or []
        self.ours = bool(streaming.get("custom")) and "delta" in kinds and "reset" in kinds
        self.mode: str | None = "custom" if self.ours else "values" if streaming.get("values") else None
        self.threads = bool(able.get("threads"))
        ref = _dict(metadata.get("ref"))
        input_, self.wraps_input = _object(specs.get("input"), "input")
        output, _ = _object(specs.get("output"), "output")
        config, _ = _object(specs.get("config"), "config")
        self.card = AgentCard(
            name=_plain(ref.get("name"), r"[^A-Za-z0-9._-]+") or identity,
            version=_plain(ref.get("version"), r"[^0-9A-Za-z.+-]+") or "0.0.0",
            description=str(metadata.get("description") or ""),
            input=input_,
            output=output,
            config=config if config.get("properties") or config.get("additionalProperties") else None,
            state=_valid(specs["thread_state"], "thread_state") if specs.get("thread_state") else None,
            input_text=text_field(input_),
            output_text=text_field(output),
            streams=self.mode is not None,
            questions=[
                QuestionType(
                    str(entry["interrupt_type"]),
                    _valid(entry.get("interrupt_payload"), "interrupt_payload"),
                    _valid(entry.get("resume_payload"), "resume_payload"),
                )
                for entry in specs.get("interrupts") or []
                if isinstance(entry, dict) and entry.get("interrupt_type")
            ],
            metadata={"mounted_from": mount.base, "protocol": "connect", "agent_id": identity},
        )

    def agent(self) -> Agent[..., Any]:
        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            async with self.mount.open() as http:
                return await Attachment(self, http, ctx, asks).run(input)

        handler.__name__ = self.id  # so that a target can name the agent by its id too
        handler.__doc__ = self.card.description
        # Not parkable: a run that is cancelled while parked ends without its handler, and the remote one would go on.
        made: Agent[..., Any] = Agent(
            self.card, handler, shape="async", ctx_param="ctx", retries=3, parkable=False,
            questions=[_codec(q.type, json.dumps(q.answer)) for q in self.card.questions],
        )  # fmt: skip
        made.check_state = None  # the state lives on the remote thread; the one here is a copy of it

        def asks(type_: str, payload: Any) -> Question[Any]:
            known = self.card.question(type_)  # one that the descriptor does not list can be asked all the same
            codec = _codec(type_, json.dumps(known.answer if known is not None else {}))
            made.questions.setdefault(codec.cls, codec)
            return codec.cls(payload)

        return made


# -- questions ------------------------------------------------------------------------------------------------


class RemoteQuestion(Question[Any]):
    """The remote agent asks."""

    payload: Any

    def __prompt__(self) -> str:
        if isinstance(self.payload, str):
            return self.payload
        for name in ("message", "prompt", "question", "text", "title"):
            if isinstance(self.payload, dict) and isinstance(self.payload.get(name), str):
                return str(self.payload[name])
        return engine_questions.question_codec(type(self)).type.replace("_", " ")


class _FreeForm:
    """Stands in for a Codec where JSON stays JSON."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def encode(self, value: Any) -> Any:
        return value.payload if isinstance(value, RemoteQuestion) else value

    def decode(self, value: Any, kind: type[Invalid]) -> Any:
        return value


class _RemoteCodec(QuestionCodec):
    def __init__(self, cls: type[Question[Any]], type_: str, answer: Schema) -> None:
        self.cls = cls
        self.type = type_
        self.payload = _FreeForm({})  # type: ignore[assignment]  # the remote side vouches for what it asks
        self.answer = _FreeForm(answer)  # type: ignore[assignment]


@lru_cache(maxsize=1024)
def _codec(type_: str, answer: str) -> QuestionCodec:
    cls: type[Question[Any]] = type("RemoteQuestion", (RemoteQuestion,), {"__module__": __name__})
    codec = _RemoteCodec(cls, type_, json.loads(answer))
    engine_questions._codecs[cls] = codec
    return codec


# -- one run --------------------------------------------------------------------------------------------------


class Stretch(msgspec.Struct):
    """How a stretch of a run ended: at its result, at an error or at a question. What is recorded."""

    kind: Literal["result", "error", "interrupt"]
    output: dict[str, Any]
    cursor: str | None = None  # the last update that was taken in
    shown: Any = None  # the output as it has been shown, where the run goes on from here


class Attachment:
    """A local run and the remote run that does its work."""

    def __init__(
        self,
        remote: Remote,
        http: httpx2.AsyncClient,
        ctx: Context[Any, Any],
        asks: Callable[[str, Any], Question[Any]],
    ) -> None:
        self.remote = remote
        self.http = http
        self.ctx = ctx
        self._asks = asks
        self._path = ""  # of the remote run
        self._starting: asyncio.Task[dict[str, Any]] | None = None
        self._streams = remote.mode is not None
        self._waits = True  # whether the server has a `wait` that works
        self._patience = _Patience(remote.mount.base)
        self._cursor: str | None = None
        self._answered: str | None = None  # id of the question that was answered last
        self._fresh = False  # the last stretch was read here and now, not out of the log
        self._value = Joiner()  # the output as the remote run has it
        self._shown = Joiner()  # the output as it stands in our log
        self._level = True  # both are the same
        self._last: Any = ABSENT  # the newest whole value
        self._known = 0  # activities that the stream will tell again

    async def run(self, input_: dict[str, Any]) -> Any:
        try:
            return await self._run(input_)
        except StepFailed as failure:
            error = failure.error
            raise RemoteError(
                error.message, code=error.code, transient=error.transient, details=error.details
            ) from failure
        except asyncio.CancelledError:
            # Leaving for good takes the remote run along; a run that is only handed back is found again by its handle.
            if self.ctx.cancelled or self.ctx._run.leaving == "timeout":
                await self._cancel()
            raise
        finally:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.gather(self._starting, return_exceptions=True)

    async def _run(self, input_: dict[str, Any]) -> Any:
        ctx = self.ctx
        handle = await ctx.step("start", self._start, input_)
        thread, run = handle.get("thread_id"), handle["run_id"]
        self._path = f"/threads/{thread}/runs/{run}" if thread else f"/runs/{run}"
        number = 1
        while True:
            self._fresh = False
            stretch = await ctx.step("follow", self._follow, f"follow-{number}", key=f"follow-{number}")
            if stretch.kind == "result":
                if thread is not None:
                    state = await ctx.step("state", self._state, thread)
                    if isinstance(state, dict):
                        ctx.state = state
                return stretch.output["values"]
            if stretch.kind == "error":
                raise _error(stretch.output)
            self._go_on_from(stretch)
            type_, payload = _interrupt(stretch.output, self.remote.card)
            answer = await ctx.ask(self._asks(type_, payload), key=f"interrupt-{number}")
            await ctx.step("resume", self._resume, stretch.output, answer, key=f"resume-{number}")
            self._answered = stretch.output.get("interrupt_id")
            number += 1

    def _go_on_from(self, stretch: Stretch) -> None:
        self._cursor = stretch.cursor
        if stretch.shown is not None:
            self._shown = Joiner(stretch.shown)
            if self._fresh:
                return
            # Fragments go on from what was shown; a value that was not shown is told whole by the end.
            self._value = Joiner(stretch.shown)

    # -- starting, answering, cancelling ------------------------------------------------------------------

    async def _start(self, input_: dict[str, Any]) -> dict[str, Any]:
        self._starting = asyncio.ensure_future(self._create(input_))
        return await asyncio.shield(self._starting)  # cancelled now, its answer still tells what to cancel

    async def _create(self, input_: dict[str, Any]) -> dict[str, Any]:
        ctx, remote = self.ctx, self.remote
        body: dict[str, Any] = {
            "agent_id": remote.id,
            "input": input_.get("value") if remote.wraps_input else input_,
            "on_disconnect": "continue",
        }
        if ctx.metadata:
            body["metadata"] = ctx.metadata
        if ctx.config:
            body["config"] = {"configurable": ctx.config}
        if remote.mode is not None:
            body["stream_mode"] = remote.mode
        thread, path = None, "/runs"
        if ctx.thread_id is not None and remote.threads:
            thread = str(uuid.uuid5(_THREADS, ctx.thread_id))
            path = f"/threads/{thread}/runs"
            body["if_not_exists"] = "create"
            with contextlib.suppress(Refused):  # where threads cannot be made ahead, the run makes it
                _json(await self._post("/threads", {"thread_id": thread, "if_exists": "do_nothing"}, again=True))
        # With the key, a server of ours gives back the run of an attempt whose answer was lost.
        made = _json(await self._post(path, body, again=remote.ours, key=ctx.run_id))
        run = made.get("run_id") or made.get("id") if isinstance(made, dict) else None
        if not isinstance(run, str) or not run:
            raise RemoteError(f"{remote.mount.base} made no run: it answered without a run_id")
        self._path = f"{path}/{run}"
        return {"run_id": run, "thread_id": thread}

    async def _post(self, path: str, body: Any, *, again: bool, key: str | None = None) -> httpx2.Response:
        """`again` says that posting it twice does no harm. What was never sent can always be sent again."""
        headers = {"idempotency-key": key} if key else {}
        while True:
            try:
                response = await self.http.post(path, json=body, headers=headers)
            except httpx2.TransportError as error:
                if not again and not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise Unavailable(f"{self.remote.mount.base} did not answer: {_words(error)}") from error
                await self._patience.spend(error)
                continue
            self._patience.reset()
            return response

    async def _resume(self, asked: dict[str, Any], answer: Any) -> None:
        """Answer the remote question, unless it has been answered already: here before a crash, or by somebody else."""
        while True:
            try:
                # A resume says nothing of what it answers: without a look, an answer that comes late would go to
                # whatever is asked by then.
                current = await self._settled()
                if current is None or current.kind != "interrupt" or not _same_interrupt(current.output, asked):
                    return
                response = await self.http.post(self._path, json=answer)
            except httpx2.TransportError as error:
                await self._patience.spend(error)
                continue
            if response.status_code != 409:  # the first answer wins, and another was first
                _json(response)
            return

    async def _state(self, thread: str) -> Any:
        """The remote thread's state, for whoever looks at ours."""
        try:
            return _dict(_json(await self.http.get(f"/threads/{thread}"))).get("values")
        except (httpx2.TransportError, Refused):
            return None

    async def _cancel(self) -> None:
        with contextlib.suppress(httpx2.HTTPError, InterlinguaError, TimeoutError):
            async with asyncio.timeout(10):
                if not self._path and self._starting is not None:
                    await self._starting
                if self._path:
                    await self.http.post(f"{self._path}/cancel")  # no options: workflow-srv answers 422 to them

    # -- following ----------------------------------------------------------------------------------------

    async def _follow(self, key: str) -> Stretch:
        """Read until the run ends or asks, over any number of connections, and show what comes."""
        self._patience.reset()
        place = f"step:{key}"  # what is shown belongs to this step, and is not shown again once it is recorded
        await self._show_again(place)
        while True:
            try:
                ended = await self._read(place) if self._streams else None
                ended = ended or await self._settled(blocking=not self._streams)
            except httpx2.ReadTimeout:
                continue
            except httpx2.TransportError as error:
                await self._patience.spend(error)
                continue
            if ended is not None:
                self._fresh = True
                ended.cursor = self._cursor
                if ended.kind == "interrupt" and self._shown.value is not ABSENT:
                    ended.shown = self._shown.value
                return ended
            await self._patience.pause()

    async def _show_again(self, place: str) -> None:
        """After a crash in this stretch: what the log holds of it stands, and the stream goes on behind it."""
        self._known = 0
        for _, body in list(self.ctx._run.replay._emissions):
            if body.step != place:
                continue
            if isinstance(body, OutputDelta):
                self._shown.add(body.delta)
                self._level = False  # the stream begins before it
            else:
                self._known += 1
            await self.ctx._run.show(body)

    async def _read(self, place: str) -> Stretch | None:
        """One connection. None where it ended before the run did."""
        headers = {"accept": "text/event-stream"}
        if self._cursor is not None:
            headers["last-event-id"] = self._cursor
        elif self.remote.ours:
            headers["last-event-id"] = "0"  # from the beginning; unknown to others, whose values are whole anyway
        async with self.http.stream("GET", f"{self._path}/stream", headers=headers) as response:
            kind = response.headers.get("content-type", "")
            if not response.is_success or "text/event-stream" not in kind:
                if response.status_code not in _TRANSIENT:
                    self._streams = False  # workflow-srv answers 500 or 501 to what it lacks
                return None
            async with contextlib.aclosing(_received(response)) as updates:
                async for id_, update in updates:
                    self._patience.reset()
                    ended = await self._take(id_, update, place)
                    if ended is not None:
                        return ended
        return None

    async def _take(self, id_: str | None, update: dict[str, Any], place: str) -> Stretch | None:
        kind = update.get("type")
        if kind == "interrupt":
            if update.get("interrupt_id") is not None and update["interrupt_id"] == self._answered:
                return None  # it has our answer, and has not come to it yet
            self._cursor = id_ or self._cursor
            return Stretch("interrupt", update)
        if self.remote.ours and id_ and self._cursor and _seen(id_, self._cursor):
            return None  # others number anew on every connection
        if kind == "values":
            await self._show_value(_whole(update.get("values", update.get("result"))), place)
        elif kind == "custom" and self.remote.ours:
            await self._show_custom(_dict(update.get("update")), place)
        self._cursor = id_ or self._cursor
        if kind == "error":
            return Stretch("error", update)
        if kind == "values" and update.get("status") == "success":
            # Only ours is known to say so at the end alone.
            return Stretch("result", {"values": self._last}) if self.remote.ours else await self._settled()
        return None

    async def _show_value(self, value: dict[str, Any], place: str) -> None:
        self._last = value
        self._value, self._level = Joiner(value), False
        await self._catch_up(place)

    async def _show_custom(self, update: dict[str, Any], place: str) -> None:
        kind, delta = update.get("kind"), update.get("delta")
        if kind == "reset" and isinstance(delta, dict):
            self._value, self._level = Joiner(delta), False
            await self._catch_up(place)
        elif kind == "delta" and isinstance(delta, dict):
            try:
                self._value.add(delta)
            except DeltaError:  # begun in the middle; the result will tell
                self._level = False
                return
            if self._level:
                self._shown.add(delta)
                await self.ctx._run.show(OutputDelta(delta, place))
            else:
                await self._catch_up(place)
        else:
            with contextlib.suppress(msgspec.ValidationError):
                body = msgspec.convert({**update, "step": place}, _ACTIVITY)
                if self._known:
                    self._known -= 1
                else:
                    await self.ctx._run.show(body)

    async def _catch_up(self, place: str) -> None:
        """Show what leads from what we showed to what there is; where no delta does, the result will tell."""
        try:
            delta: Any = diff(self._shown.value, self._value.value)
        except DeltaError:
            return
        self._level = True
        if delta is not ABSENT and delta:
            self._shown.add(delta)
            await self.ctx._run.show(OutputDelta(delta, place))

    async def _settled(self, *, blocking: bool = False) -> Stretch | None:
        """How the run stands when it has ended or asks, by its status and `wait`; None while it goes on."""
        response = await self.http.get(self._path)
        if response.is_success:
            self._patience.reset()
            status = _dict(_json(response)).get("status")
            if status == "pending" and not (blocking and self._waits):
                return None
        elif response.status_code == 404:
            _json(response)  # raises: the run is gone
        else:
            status = None
        response = await self.http.get(f"{self._path}/wait") if self._waits else response
        if response.status_code in _TRANSIENT or response.status_code == 204:
            return None
        if not response.is_success:
            self._waits = False
        told = _dict(_json(response)) if response.is_success else {}
        output = _dict(told.get("output"))
        status = _dict(told.get("run")).get("status", status)  # workflow-srv leaves `run` out
        kind = output.get("type")
        if kind == "interrupt":
            fresh = output.get("interrupt_id") is None or output["interrupt_id"] != self._answered
            return Stretch("interrupt", output) if fresh else None
        if kind == "error" or status in ("error", "timeout"):
            return Stretch("error", {"description": f"the run ended with status {status}", **output, "status": status})
        if kind == "result":
            return Stretch("result", {"values": _whole(output.get("values", output.get("result")))})
        if status == "success":
            if self._last is ABSENT:
                _json(response)
                raise RemoteError(f"{self.remote.mount.base} says that the run succeeded, but not with what")
            return Stretch("result", {"values": self._last})
        return None


class _Patience:
    """How long to go on trying, and how long to wait in between."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._since: float | None = None
        self._tries = 0

    def reset(self) -> None:
        self._since, self._tries = None, 0

    async def spend(self, error: Exception) -> None:
        time = asyncio.get_running_loop().time()
        self._since = time if self._since is None else self._since
        if time - self._since > PATIENCE:
            raise Unavailable(f"{self._base} cannot be reached: {_words(error)}") from error
        await self.pause()

    async def pause(self) -> None:
        self._tries += 1
        await asyncio.sleep(min(0.02 * 2 ** min(self._tries, 8), 5.0))


async def _received(response: httpx2.Response) -> AsyncGenerator[tuple[str | None, dict[str, Any]], None]:
    async with contextlib.aclosing(read(response.aiter_bytes())) as events:  # type: ignore[type-var]
        async for event in events:
            with contextlib.suppress(ValueError):
                update = json.loads(event.data)
                if isinstance(update, dict):
                    yield event.id, update


# -- small readers --------------------------------------------------------------------------------------------


def _json(response: httpx2.Response) -> Any:
    """The body, or the refusal that it is: a bare string, FastAPI's {"detail": …}, or whatever a proxy says."""
    try:
        body = response.json()
    except ValueError:
        body = None
        if response.is_success and response.content:
            raise RemoteError(f"{response.request.url} answered with something that is not JSON") from None
    if response.is_success:
        return body
    status = response.status_code
    told = body.get("detail", body) if isinstance(body, dict) else body
    text = told if isinstance(told, str) else json.dumps(told) if told else response.reason_phrase or "no reason given"
    if status in (401, 403):
        raise Denied(f"{response.request.url.host} refused: {text}; put the API key into {KEY_VARIABLE}")
    transient = response.headers.get("x-error-transient")
    raise Refused(
        f"{response.request.url.host} answered {status}: {text}",
        status,
        response.headers.get("x-error-code"),
        status in _TRANSIENT if transient is None else transient == "true",
    )


def _error(told: dict[str, Any]) -> RunError:
    """errcode is 0 or 1 for everything on workflow-srv; ours says code and transient beside it."""
    message = str(told.get("description") or "the remote run failed")
    code = told.get("code") if isinstance(told.get("code"), str) else None
    errcode = told.get("errcode")
    if code == "cancelled" or (code is None and errcode == translate.ERRCODES["cancelled"]):
        return RunCancelled(f"the remote run was cancelled: {message}")
    if told.get("status") == "timeout" or code == "timed_out":
        return RunTimedOut(message)
    details = {"errcode": errcode, **({"details": told["details"]} if told.get("details") is not None else {})}
    return RemoteError(message, code=code, transient=bool(told.get("transient")), details=details)


def _interrupt(told: dict[str, Any], card: AgentCard) -> tuple[str, Any]:
    """By convention `interrupt` is {type: payload}, the type first; the earlier document has two members instead."""
    interrupt = told.get("interrupt")
    if isinstance(interrupt, dict) and interrupt:
        type_ = next((key for key in interrupt if card.question(key) is not None), next(iter(interrupt)))
        return type_, interrupt[type_]
    if isinstance(told.get("interrupt_type"), str):
        return told["interrupt_type"], told.get("interrupt_payload")
    return "interrupt", interrupt


def _same_interrupt(one: dict[str, Any], other: dict[str, Any]) -> bool:
    name = "interrupt_id" if one.get("interrupt_id") and other.get("interrupt_id") else "interrupt"
    return bool(one.get(name) == other.get(name))


def _seen(id_: str, cursor: str) -> bool:
    here, last = place_of(id_), place_of(cursor)
    return here is not None and last is not None and here <= last


def _whole(value: Any) -> dict[str, Any]:
    """An output is an object at the root; the protocol also allows scalars and arrays."""
    return value if isinstance(value, dict) else {} if value is None else {"value": value}


def _object(schema: Any, what: str) -> tuple[Schema, bool]:
    """A schema with an object at its root, and whether the value had to be put under `value` for that."""
    given = _valid(schema, what)
    type_ = given.get("type")
    if type_ is None or type_ == "object":
        return {"type": "object", **given}, False
    inner = dict(given)
    definitions = inner.pop("$defs", None)
    wrapped = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    return ({**wrapped, "$defs": definitions} if definitions else wrapped), True


def _valid(schema: Any, what: str) -> Schema:
    """A schema that cannot be used is no reason to lose the agent: the server checks by itself."""
    if not isinstance(schema, dict):
        return {}
    try:
        check_refs_local(schema, what)
        Validator(schema, what=what)
    except DefinitionError:
        return dict(ANY_OBJECT) if schema.get("type") == "object" else {}
    return schema


def _names(entry: dict[str, Any]) -> set[str | None]:
    ref = _dict(_dict(entry.get("metadata")).get("ref"))
    name = _plain(ref.get("name"), r"[^A-Za-z0-9._-]+")
    return {_agent_id(entry), ref.get("name"), name, f"{name}@{ref.get('version')}"}


def _agent_id(entry: dict[str, Any]) -> str:
    return str(entry.get("agent_id") or entry.get("id") or "")


def _plain(name: Any, unwanted: str) -> str:
    return re.sub(unwanted, "-", name).strip("-._+") if isinstance(name, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # once: reading the certificates takes longer than a request
