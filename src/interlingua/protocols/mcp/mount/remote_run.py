"""One run of a mounted agent: one request (`agents/run`, `tools/call`, `prompts/get`), and all that comes of it.

Over pipes, and at foreign servers, the request is sent once: a run that is resumed, or whose server died, fails as
transient, because it cannot know how far the agent came. Two kinds of runs go on. An Interlingua server behind an
address keeps the run: the same request with the same key finds it again. A tool that only reads or is idempotent, and a
prompt, are called again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....model.content import Artifact
from ....model.delta import ABSENT, DeltaError, require_object
from ....model.errors import InterlinguaError, RunCancelled, RunError, RunLost, RunTimedOut, Unavailable
from ....model.events import ArtifactAdded, Thought
from ....mounts import caller_parts
from ....mounts.errors import RemoteError, our_failure
from ....mounts.remote_run import ENDED, Disconnected, Patience, RemoteRun, Stretch
from ....transports.jsonrpc.connection import ConnectionLost, RpcError
from .. import translate, wire
from .connection import McpKeeper
from .entries import Entry, Key
from .questions import SERVER_DECIDES_WITHIN, McpQuestions
from .rpc_client import NotBegun, Peer

_THREADS = uuid.UUID("2c9f6d0e-3a55-5c0f-8a5f-6f3d0f6f9b1a")  # names remote threads after local ones
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds before a request that is only wanted again is sent again
_CANCEL_WITHIN = 5.0
_CALLS = 3  # at most, of an entry that may be called again, in one process
_BEGUN = 1.0  # seconds for a run to be found again before it is cancelled
_DOES_NOT_JOIN = "the deltas do not join to the result; the result is what counts"


class Handle(msgspec.Struct):
    """The record that is written before the request is sent."""

    kept: bool  # the server keeps the run, which is found again there
    repeatable: bool = False  # the call may be sent again


class McpRun(RemoteRun):
    step = "run"
    server_decides_within = SERVER_DECIDES_WITHIN

    def __init__(
        self, keeper: McpKeeper, key: Key, ctx: Context[Any, Any], input_: dict[str, Any], existing: str | None = None
    ) -> None:
        """`existing` is a run at an Interlingua server, to go on with instead of beginning one."""
        settings, where = keeper.settings, keeper.source.name
        super().__init__(ctx, input_, where, patience=settings.patience, answer_within=settings.answer_within)
        self.patience = Patience("the server is gone, in the middle of a run:", settings.patience, RunLost)
        self._keeper = keeper
        self._key = key  # of the entry
        self._existing = existing
        self._asking = McpQuestions(self.questions, self.server_decides_within)
        self._handle = Handle(False)
        self._entry: Entry | None = None
        self._peer: Peer | None = None
        self._token = ""
        self._request: asyncio.Future[Any] | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls = 0  # whose fate is unknown
        self._over = False

    # -- the handle ---------------------------------------------------------------------------------------

    async def enter(self) -> None:
        self.resources.enter_context(self._keeper.using())

    async def open(self) -> Handle:
        """Returns the handle. Nothing has been sent yet that would have to be found again."""
        self.mounted.onward()  # raises where the call must not go there
        peer, entry = await self._found_entry()
        return Handle(peer.finds_again, entry.repeatable)

    def opened(self, handle: Handle, shown: list[Any]) -> None:
        self._handle = handle

    def lost(self) -> str | None:
        if self._handle.kept or self._handle.repeatable:
            return None
        return f"this process ended in the middle of a run at {self.where}"

    async def _found_entry(self) -> tuple[Peer, Entry]:
        peer = await self._keeper.connection()
        entries = peer.entries or {}
        if (entry := entries.get(self._key)) is None:
            kind, name = self._key
            others = ", ".join(name for _, name in entries) or "none"
            raise RemoteError(
                f"{self.where} no longer has {_a(kind)} {name!r}; it has: {others}", code="agent_not_found"
            )
        return peer, entry

    # -- the request --------------------------------------------------------------------------------------

    async def follow(self) -> Stretch:
        if self._entry is not None:
            self.output.reconnected(repeats=True)
        self._answer = None
        try:
            peer, self._entry = await self._found_entry()
            async with named(peer, self._entry, self.ctx.config) as name:
                try:
                    return Stretch(ENDED, await self._result(peer, self._entry, name))
                except asyncio.CancelledError:
                    self._leave_request()  # before the agent goes that was made for it
                    raise
        except NotBegun as error:
            raise Disconnected(str(error)) from error
        except ConnectionLost as error:
            self._calls += 1
            if not self._handle.kept and not (self._handle.repeatable and self._calls < _CALLS):
                raise RunLost(f"the server died in the middle of a run: {await self._keeper.why()}") from error
            raise Disconnected(str(error)) from error
        except Unavailable as error:
            if not (self._handle.kept and error.transient):
                raise
            raise Disconnected(str(error)) from error

    async def _result(self, peer: Peer, entry: Entry, name: str) -> dict[str, Any]:
        """Returns the result of the request, which is repeated with answers where the server wants input."""
        self._peer = peer
        self.questions.is_gone = lambda: peer.rpc.lost
        more: dict[str, Any] = {}
        pauses = iter(_PAUSES)
        number = 0
        while True:
            number += 1
            params = self._params(peer, {**entry.params(name, self.input), **more})
            result = await self._sent(peer, entry.method, params)
            self._found(result)
            if result.get("resultType") != "input_required":
                return result
            more = await self._answers(result, number)
            if more["inputResponses"]:
                pauses = iter(_PAUSES)
            elif (pause := next(pauses, None)) is not None:  # it only wants to be asked again, which is allowed
                await asyncio.sleep(pause)
            else:
                raise RemoteError(f"{self.where} wants input again and again, and does not say which")
            self.output.reconnected(repeats=True)  # a request of its own, whose deltas make the whole output

    async def _sent(self, peer: Peer, method: str, params: dict[str, Any]) -> dict[str, Any]:
        token = self._token
        peer.listeners[token] = self
        try:
            result = await self._answered(peer.request(method, params, opened=self._opened))
        finally:
            peer.listeners.pop(token, None)
        return result if isinstance(result, dict) else {}

    def _params(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        self._token = f"il-{uuid.uuid4().hex}"  # a new one each time: messages for an old one are too late
        meta: dict[str, Any] = {"progressToken": self._token, **self.trace}
        if self._existing is not None:
            meta[wire.META_RUN] = self._existing
        elif peer.ours:
            meta[wire.META_KEY] = self.ctx.run_id
        if self.ctx.thread_id is not None:
            meta[wire.META_THREAD] = str(uuid.uuid5(_THREADS, self.ctx.thread_id))
        if self.ctx.metadata:
            meta[wire.META_METADATA] = self.ctx.metadata
        beside = caller_parts.beside(self.ctx, self.input)
        if beside:
            meta[wire.META_PARTS] = [msgspec.to_builtins(part) for part in beside]
        return {**params, "_meta": meta}

    async def _answered(self, answer: Awaitable[Any]) -> Any:
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

    async def _answers(self, result: dict[str, Any], number: int) -> dict[str, Any]:
        """Returns the answers for the revision in which the server sends no requests: they go into the repeated
        request."""
        requests = result.get("inputRequests")
        responses: dict[str, Any] = {}
        for key, request in requests.items() if isinstance(requests, dict) else ():
            params = request.get("params") if isinstance(request, dict) else None
            if not isinstance(params, dict) or request.get("method") != "elicitation/create":
                raise RemoteError(f"the server wants {request!r}, which cannot be asked here")
            meta = params.get("_meta")
            about = {wire.META_QUESTION: key, **(meta if isinstance(meta, dict) else {})}
            responses[key] = await self._asking.elicit({**params, "_meta": about}, number)
        more: dict[str, Any] = {"inputResponses": responses}
        if result.get("requestState") is not None:
            more["requestState"] = result["requestState"]
        return more

    # -- the end ------------------------------------------------------------------------------------------

    async def finish(self, data: dict[str, Any]) -> dict[str, Any]:
        assert self._entry is not None
        output, parts = self._entry.read(data)
        joined = self.output.joined
        if joined is not ABSENT and not _same(joined, output):
            await self.output.warn_once(_DOES_NOT_JOIN)
        if parts:
            await self.output.emit(ArtifactAdded(Artifact("beside", parts)))
        return output

    def notes(self) -> list[tuple[str, Any]]:
        return self._keeper.notes()

    def _leave_request(self) -> None:
        """Cancels the remote run with the local one, or leaves it where the local run is only parked and can find it
        again later."""
        if not self._handle.kept or self.mounted.leaving_for_good:
            self._asking.taken_back = True
            self._take_back()

    def _take_back(self) -> None:
        """Cancels the request at the server. An answer that comes nevertheless is ignored."""
        if self._request is not None and not self._request.done():
            self._request.cancel()

    async def leave(self) -> None:
        self._over = True
        if self._peer is not None:
            self._peer.listeners.pop(self._token, None)
            if self.questions.silent:
                self._peer.keep_session()

    # -- messages of the server ---------------------------------------------------------------------------

    async def told(self, delta: Any) -> None:
        await self._shown(self._delta, delta)

    async def warned(self, message: str) -> None:
        await self._shown(self.output.warn_once, message)

    async def progressed(self, params: dict[str, Any]) -> None:
        if line := translate.progress_line(params):
            await self._shown(self.output.emit, Thought(line))

    async def _delta(self, delta: Any) -> None:
        try:
            problem = await self.output.delta(require_object(delta))
        except DeltaError as error:
            self.output.gap()
            problem = error
        if problem is not None:
            await self.output.warn_once(
                f"a delta does not join what came before ({problem}); the result is what counts"
            )

    async def _shown(self, show: Callable[[Any], Awaitable[Any]], news: Any) -> None:
        if self._over or self._answer is None or self._answer.done():
            return
        self.patience.reset()
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

    def _found(self, result: dict[str, Any]) -> None:
        """Reports the id of the run at the server, where the server tells it."""
        about = result.get("_meta")
        if isinstance(about, dict) and isinstance(about.get(wire.META_RUN), str):
            self.mounted.found_at_server(about[wire.META_RUN])

    async def asked(self, params: dict[str, Any]) -> dict[str, Any]:
        self.patience.reset()
        self._found(params)
        return await self._asking.elicit(params)

    async def not_asked(self) -> None:
        if not self._over:
            with contextlib.suppress(asyncio.CancelledError, InterlinguaError):
                await self.output.warn("the server asked something, and did not say for which of several runs")


def _same(one: Any, other: Any) -> bool:
    """Tells if two values are the same. Null members count as absent: acp-sdk 0.0.6 writes out every default, and null
    in a delta adds nothing."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other)
    return bool(one == other)


async def cancel_left(keeper: McpKeeper, key: Key, left: LeftRun, existing: str | None = None) -> None:
    """Cancels the remote run of a run that was cancelled while its handler was not here, where it can be found
    again."""
    handle = left.recorded("start")
    if not isinstance(handle, dict) or not handle.get("kept"):
        return  # a process of ours ended with this one, and foreign servers cannot find the run
    try:
        async with asyncio.timeout(_CANCEL_WITHIN):
            with keeper.using():
                peer = await keeper.connection()
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
        raise Unavailable(f"{keeper.source.name} could not be told: {error}") from error


@contextlib.asynccontextmanager
async def named(peer: Peer, entry: Entry, config: Any) -> AsyncIterator[str]:
    """Yields the name to run an entry by: its own, or that of an agent that is made from a template for the time of
    this context."""
    if not config and not entry.is_made:
        yield entry.name
        return
    try:
        result = await peer.request("agents/create", {"templateName": entry.name, "config": config or {}})
    except RpcError as error:
        raise failure(error) from error
    agent = result.get("agent") if isinstance(result, dict) else None
    called = agent.get("name") if isinstance(agent, dict) else None
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
    data = error.data if isinstance(error.data, dict) else {}
    code, transient = data.get("code"), data.get("transient")
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
