"""One run of a mounted agent: one request (`agents/run`, `tools/call`, `prompts/get`), and all that comes of it.

The begin is recorded before the request is sent. Over pipes, and at foreign servers, the request is sent once: a run
that is resumed, or whose server died, fails as transient, because it cannot know how far the agent came. Two kinds of
runs go on. An Interlingua server behind an address keeps the run: the same request with the same key finds it again. A
tool that only reads or is idempotent, and a prompt, are called again.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun, MountedRun
from ....model.content import Part
from ....model.errors import (
    InterlinguaError,
    Invalid,
    InvalidOutput,
    RunCancelled,
    RunError,
    RunLost,
    RunTimedOut,
    StepFailed,
    Unavailable,
)
from ....model.schemas import Validator
from ....model.trace_context import Carrier
from ....mounts.errors import RemoteError, our_failure
from ....transports.jsonrpc.connection import ConnectionLost, RpcError
from .. import translate, wire
from .connection import Host
from .entries import Entry, Key
from .questions import Asking
from .remote_output import STEP, Mirror
from .rpc_client import NotBegun, Peer

_THREADS = uuid.UUID("2c9f6d0e-3a55-5c0f-8a5f-6f3d0f6f9b1a")  # names remote threads after local ones
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds before a request that is only wanted again is sent again
_CANCEL_WITHIN = 5.0
_CALLS = 3  # at most, of an entry that may be called again, in one process
_BEGUN = 1.0  # seconds for a run to be found again before it is cancelled


class Handle(msgspec.Struct):
    """The record that is written before the request is sent."""

    kept: bool  # the server keeps the run, which is found again there
    repeatable: bool = False  # the call may be sent again


class Attachment:
    def __init__(
        self, host: Host, key: Key, schema: Validator, ctx: Context[Any, Any], existing: str | None = None
    ) -> None:
        """`existing` is a run at an Interlingua server, to go on with instead of beginning one."""
        self._existing = existing
        self._host = host
        self._key = key  # of the entry
        self._schema = schema  # of its output, as the server tells it
        self._ctx = ctx
        self._mounted = MountedRun(ctx)
        self._mirror = Mirror(self._mounted)
        self._asking = Asking(self._mounted, host.settings.answer_within)
        self._peer: Peer | None = None
        self._handle = Handle(False)
        self._token = ""
        self._trace: Carrier = {}
        self._request: asyncio.Future[Any] | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = False  # the server said something since it was last lost
        self._over = False

    async def run(self, input_: dict[str, Any]) -> dict[str, Any]:
        with self._host.using():
            try:
                async with self._mounted.telling_unused():
                    return await self._run(input_)
            except StepFailed as failure:
                error = failure.error
                raise RemoteError(
                    error.message, code=error.code, transient=error.transient, details=error.details
                ) from failure
            except asyncio.CancelledError:
                self._left()
                raise
            finally:
                await self._leave()

    async def _run(self, input_: dict[str, Any]) -> dict[str, Any]:
        self._trace = self._mounted.onward()
        entered_again = self._mounted.recorded("start")
        self._handle = await self._ctx.step("start", self._start, key="start")
        await self._mounted.committed()
        if entered_again:
            await self._mirror.begin_again()
            if not (self._handle.kept or self._handle.repeatable):
                raise RunLost(f"this process ended in the middle of a run at {self._host.source.name}")
        output, parts = await self._result(input_)
        for late in self._mounted.unused(STEP):
            await self._mounted.show(late)
        await self._mirror.compare(output)
        await self._mirror.given(parts)
        try:
            self._schema.check(output, InvalidOutput)
        except Invalid as error:
            await self._mirror.warn(f"the output does not fit the schema that the server tells: {error.message}")
        for message, details in self._host.notes():
            await self._mirror.warn(message, details)
        return output

    async def _start(self) -> Handle:
        """Returns the handle. Nothing has been sent yet that would have to be found again."""
        peer, entry = await self._entry()
        return Handle(peer.finds_again, entry.repeatable)

    async def _entry(self) -> tuple[Peer, Entry]:
        peer = await self._host.peer()
        entries = peer.entries or {}
        if (entry := entries.get(self._key)) is None:
            kind, name = self._key
            others = ", ".join(name for _, name in entries) or "none"
            raise RemoteError(
                f"{self._host.source.name} no longer has {_a(kind)} {name!r}; it has: {others}",
                code="agent_not_found",
            )
        return peer, entry

    # -- the request --------------------------------------------------------------------------------------

    async def _result(self, input_: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
        """Returns the output in the answer to the request, over any number of connections."""
        loop = asyncio.get_running_loop()
        lost_at: float | None = None
        pause = 0.05
        calls = 0
        while True:
            try:
                peer, entry = await self._entry()
                async with named(peer, entry, self._ctx.config) as name:
                    try:
                        return entry.read(await self._attempt(peer, entry, name, input_))
                    except asyncio.CancelledError:
                        self._left()  # before the agent goes that was made for it
                        raise
            except (ConnectionLost, Unavailable) as error:
                if isinstance(error, ConnectionLost):
                    lost_at = None if self._heard else lost_at  # it was there again in between
                    self._heard = False
                    calls += not isinstance(error, NotBegun)
                if isinstance(error, Unavailable) and not (self._handle.kept and error.transient):
                    raise
                if calls and not self._handle.kept and not (self._handle.repeatable and calls < _CALLS):
                    raise RunLost(f"the server died in the middle of a run: {await self._host.why()}") from error
                lost_at = loop.time() if lost_at is None else lost_at
                if loop.time() - lost_at > self._host.settings.patience:
                    raise RunLost(f"the server is gone, in the middle of a run: {error}") from error
            self._answer = None
            self._mirror.met_again()
            self._asking.met_again()
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def _attempt(self, peer: Peer, entry: Entry, name: str, input_: dict[str, Any]) -> dict[str, Any]:
        self._peer = peer
        self._asking.server_is_gone = lambda: peer.rpc.lost
        more: dict[str, Any] = {}
        pauses = iter(_PAUSES)
        while True:
            params = self._params(peer, {**entry.params(name, input_), **more}, input_)
            told = await self._ask(peer, entry.method, params)
            self._found(told)
            if told.get("resultType") != "input_required":
                return told
            more = await self._answers(told)
            if more["inputResponses"]:
                pauses = iter(_PAUSES)
            elif (pause := next(pauses, None)) is not None:  # it only wants to be asked again, which is allowed
                await asyncio.sleep(pause)
            else:
                raise RemoteError(f"{self._host.source.name} wants input again and again, and does not say which")
            self._mirror.met_again()  # a request of its own, whose deltas make the whole output

    async def _ask(self, peer: Peer, method: str, params: dict[str, Any]) -> dict[str, Any]:
        token = self._token
        peer.listeners[token] = self
        try:
            told = await self._answered(peer.request(method, params, opened=self._opened))
        finally:
            peer.listeners.pop(token, None)
        return told if isinstance(told, dict) else {}

    def _params(self, peer: Peer, params: dict[str, Any], input_: dict[str, Any]) -> dict[str, Any]:
        self._token = f"il-{uuid.uuid4().hex}"  # a new one each time: messages for an old one are too late
        meta: dict[str, Any] = {"progressToken": self._token, **self._trace}
        if self._existing is not None:
            meta[wire.META_RUN] = self._existing
        elif peer.ours:
            meta[wire.META_KEY] = self._ctx.run_id
        if self._ctx.thread_id is not None:
            meta[wire.META_THREAD] = str(uuid.uuid5(_THREADS, self._ctx.thread_id))
        if self._ctx.metadata:
            meta[wire.META_METADATA] = self._ctx.metadata
        beside = self._mounted.beside(input_)
        if beside:
            meta[wire.META_PARTS] = [msgspec.to_builtins(part) for part in beside]
        return {**params, "_meta": meta}

    async def _answered(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Returns the answer to a request, unless an earlier message breaks the run."""
        self._request = asyncio.ensure_future(answer)
        self._request.add_done_callback(_noticed)
        either: set[asyncio.Future[Any]] = {self._request, self._broken}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._take_back()
            self._broken.result()
        try:
            return self._request.result()
        except RpcError as error:
            raise failure(error) from error

    def _opened(self, answer: asyncio.Future[Any]) -> None:
        self._answer = answer

    async def _answers(self, told: dict[str, Any]) -> dict[str, Any]:
        """Returns the answers for the revision in which the server sends no requests: they go into the repeated
        request."""
        requests = told.get("inputRequests")
        given: dict[str, Any] = {}
        for key, request in requests.items() if isinstance(requests, dict) else ():
            params = request.get("params") if isinstance(request, dict) else None
            if not isinstance(params, dict) or request.get("method") != "elicitation/create":
                raise RemoteError(f"the server wants {request!r}, which cannot be asked here")
            told_of = params.get("_meta")
            about = {wire.META_QUESTION: key, **(told_of if isinstance(told_of, dict) else {})}
            given[key] = await self._asking.elicit({**params, "_meta": about})
        more: dict[str, Any] = {"inputResponses": given}
        if told.get("requestState") is not None:
            more["requestState"] = told["requestState"]
        return more

    # -- the end ------------------------------------------------------------------------------------------

    def _left(self) -> None:
        """Cancels the remote run with the local one, or leaves it where the local run is only parked and can find it
        again later."""
        self._asking.silent = self._handle.kept and not self._mounted.leaving_for_good
        if not self._asking.silent:
            self._asking.taken_back = True
            self._take_back()

    def _take_back(self) -> None:
        """Cancels the request at the server. An answer that comes nevertheless is ignored."""
        if self._request is not None and not self._request.done():
            self._request.cancel()

    async def _leave(self) -> None:
        self._over = True
        peer = self._peer
        if peer is not None:
            peer.listeners.pop(self._token, None)
            if self._asking.silent:
                peer.keep_session()
        await self._asking.settle()

    # -- messages of the server ---------------------------------------------------------------------------

    async def told(self, delta: Any) -> None:
        await self._shown(self._mirror.take, delta)

    async def warned(self, message: str) -> None:
        await self._shown(self._mirror.warned, message)

    async def progressed(self, params: dict[str, Any]) -> None:
        if line := translate.progress_line(params):
            await self._shown(self._mirror.progress, line)

    async def _shown(self, show: Callable[[Any], Awaitable[None]], news: Any) -> None:
        if self._over or self._answer is None or self._answer.done():
            return
        self._heard = True
        try:
            await show(news)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            # The run is being left, and takes no more; the connection goes on.
        except InterlinguaError as error:
            if not self._broken.done():
                self._broken.set_exception(error)

    def _found(self, told: dict[str, Any]) -> None:
        """Reports the id of the run at the server, where the server tells it."""
        about = told.get("_meta")
        if isinstance(about, dict) and isinstance(about.get(wire.META_RUN), str):
            self._mounted.found_at_server(about[wire.META_RUN])

    async def asked(self, params: dict[str, Any]) -> dict[str, Any]:
        self._heard = True
        self._found(params)
        return await self._asking.elicit(params)

    async def not_asked(self) -> None:
        if not self._over:
            with contextlib.suppress(asyncio.CancelledError, InterlinguaError):
                await self._mirror.warn("the server asked something, and did not say for which of several runs")


async def cancel_left(host: Host, key: Key, left: LeftRun, existing: str | None = None) -> None:
    """Cancels the remote run of a run that was cancelled while its handler was not here, where it can be found
    again."""
    handle = left.recorded("start")
    if not isinstance(handle, dict) or not handle.get("kept"):
        return  # a process of ours ended with this one, and foreign servers cannot find the run
    try:
        async with asyncio.timeout(_CANCEL_WITHIN):
            with host.using():
                peer = await host.peer()
                entry = (peer.entries or {}).get(key)
                if entry is None:
                    return  # the server has ended it with its agent
                meta = {wire.META_KEY: left.id} if existing is None else {wire.META_RUN: existing}
                if left.thread is not None:
                    meta[wire.META_THREAD] = str(uuid.uuid5(_THREADS, left.thread))
                async with named(peer, entry, left.request.config) as name:
                    params = {**entry.params(name, left.request.input), "_meta": meta}
                    request = asyncio.ensure_future(peer.request(entry.method, params))
                    request.add_done_callback(_noticed)
                    await asyncio.wait({request}, timeout=_BEGUN)
                    request.cancel()
                    await asyncio.wait({request})
                    await peer.rpc.drain()
    except (ConnectionLost, RpcError) as error:
        raise Unavailable(f"{host.source.name} could not be told: {error}") from error


@contextlib.asynccontextmanager
async def named(peer: Peer, entry: Entry, config: Any) -> AsyncIterator[str]:
    """Yields the name to run an entry by: its own, or that of an agent that is made from a template for the time of
    this context."""
    if not config and not entry.is_made:
        yield entry.name
        return
    try:
        told = await peer.request("agents/create", {"templateName": entry.name, "config": config or {}})
    except RpcError as error:
        raise failure(error) from error
    made = told.get("agent") if isinstance(told, dict) else None
    called = made.get("name") if isinstance(made, dict) else None
    if not isinstance(called, str):
        raise RemoteError(f"{peer.name} answered agents/create without the name of an agent")
    try:
        yield called
    finally:
        destroying = asyncio.ensure_future(peer.request("agents/destroy", {"name": called}))
        destroying.add_done_callback(_noticed)  # a server that cannot destroy it keeps it
        await asyncio.wait({destroying}, timeout=_CANCEL_WITHIN)


def failure(error: RpcError) -> RunError:
    """Returns the error in a refusal. Its code means nothing: the published servers answer 0 to everything. An
    Interlingua server adds code, transient and details."""
    ours = our_failure(error.message, error.data)
    question = error.code in (translate.QUESTION_OPEN, wire.MISSING_CAPABILITY)  # its data has the question
    if ours is not None and not question:
        return ours
    told = error.data if isinstance(error.data, dict) else {}
    code, transient = told.get("code"), told.get("transient")
    if code == "cancelled":
        return RunCancelled(f"the remote run was cancelled: {error.full_message}")
    if code == "timed_out":
        return RunTimedOut(error.message)
    details = {"code": error.code, **({} if error.data is None else {"data": error.data})}
    return RemoteError(
        error.full_message or "the server answered with an error and no words",
        code=code if isinstance(code, str) else None,
        transient=transient is True,
        details=details,
    )


def _noticed(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # the run may be over by then


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "agent" else f"a {kind}"
