"""One run of a mounted agent: a local run and the remote run that does its work.

The remote run is started once and its handle recorded; when the run is resumed, the handler re-attaches to it. Each
stretch between two questions is one recorded step that holds its end and the cursor, so that nothing is read or shown
twice.

Servers differ (workflow-srv 0.3.0 is the published one). The abilities of an Interlingua server (replay by
Last-Event-ID, fragments, idempotency keys) are used where its descriptor shows that it is one; elsewhere whole values
are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from typing import Any

import httpx2
import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import Gone, MountedRun
from ....model.content import DataPart
from ....model.errors import InterlinguaError, QuestionExpired, StepFailed, Unavailable
from ....model.events import MessageSent
from ....model.trace_context import Carrier
from ....mounts.errors import RemoteError, no_such_run
from ....transports.json_text import encode
from .agent_card import Remote
from .answers import (
    Patience,
    Refused,
    Silent,
    error_of,
    interrupt_of,
    json_of,
    messages_in,
    object_or_empty,
    same_interrupt,
    seconds_left,
    words_of,
)
from .follow import Follower, Stretch

_START = "start"  # the step that records the handle
_THREADS = uuid.UUID("5f0b6c1e-4a0e-5b52-9a55-0d0c7b1f6f1d")  # names remote threads after local ones
_JSON = {"content-type": "application/json"}
_CANCEL_WITHIN = 10.0  # seconds
_RECORDED_WITHIN = 0.02  # seconds after which the handle of a silent run is recorded alone


class Handle(msgspec.Struct):
    """The recorded address of the remote run."""

    run_id: str
    thread_id: str | None = None

    @property
    def path(self) -> str:
        return f"/threads/{self.thread_id}/runs/{self.run_id}" if self.thread_id else f"/runs/{self.run_id}"


class Attachment:
    """A local run and the remote run that does its work."""

    def __init__(
        self, remote: Remote, http: httpx2.AsyncClient, ctx: Context[Any, Any], existing: Handle | None = None
    ) -> None:
        """`existing` is a remote run to go on with, instead of beginning one."""
        self.remote = remote
        self.http = http
        self.ctx = ctx
        self._existing = existing
        self._mounted = MountedRun(ctx)
        self._handle: Handle | None = None
        self._starting: asyncio.Task[Handle] | None = None
        self._given: dict[str, Any] = {}
        self._recording: asyncio.TimerHandle | None = None
        self._posted = False  # the run may exist, though the server has not confirmed it
        self._patience = Patience(remote.base)

    async def run(self, input_: dict[str, Any]) -> Any:
        try:
            return await self._run(input_)
        except StepFailed as failure:
            error = failure.error
            raise RemoteError(
                error.message, code=error.code, transient=error.transient, details=error.details
            ) from failure
        except QuestionExpired:
            await self._cancel()  # there it would wait for ever
            raise
        except asyncio.CancelledError:
            # Leaving for good cancels the remote run; a run that is only parked finds it again by its handle.
            if self._mounted.leaving_for_good:
                await self._cancel()
            raise
        finally:
            if self._recording is not None:
                self._recording.cancel()
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.gather(self._starting, return_exceptions=True)

    async def _run(self, input_: dict[str, Any]) -> Any:
        ctx, card = self.ctx, self.remote.card
        self._given = input_
        begins: Attachment | str = self
        if self._mounted.recorded(_START) or not self._begins_with_its_stream:
            handle: Handle = await ctx.step("start", self._start, input_, key=_START)
            self._handle, begins = handle, handle.path
            self._mounted.found_at_server(handle.run_id)
        follower = Follower(self.remote, self.http, begins, self._mounted, self._patience)
        number = 1
        while True:
            stretch: Stretch = await ctx.step("follow", follower.follow, f"follow-{number}", key=f"follow-{number}")
            if stretch.kind == "result":
                for message in [] if self.remote.ours else messages_in(stretch.output):  # ours has told them by now
                    await self._mounted.show(MessageSent(message))
                if self._handle is not None and self._handle.thread_id is not None:
                    state = stretch.output.get("thread_values")
                    if state is None:
                        state = await self._state(self._handle.thread_id)  # as it is now, whenever that is
                    if isinstance(state, dict):
                        ctx.state = state
                return stretch.output["values"]
            if stretch.kind == "error":
                raise error_of(stretch.output)
            follower.go_on_from(stretch)
            asked = interrupt_of(stretch.output, card)
            key = _interrupt(number)
            again = key in self._mounted.asked()
            deadline = seconds_left(stretch.output)
            try:
                answer = await self._mounted.ask_while(
                    functools.partial(follower.moved_on, stretch.output, at_once=again),
                    asked.type, asked.payload, asked.answer_schema, key=key, prompt=asked.prompt, options=asked.options,
                    deadline=deadline,
                )  # fmt: skip
            except QuestionExpired as over:
                if deadline is None and not isinstance(over, Gone):
                    raise
                # Another client answered, or it expired there too: the run is followed on.
            else:
                await ctx.step("resume", self._resume, follower, stretch.output, answer, number, key=f"resume-{number}")
            follower.answered(stretch.output)
            number += 1

    # -- starting -----------------------------------------------------------------------------------------

    async def _start(self, input_: dict[str, Any]) -> Handle:
        if self._existing is not None:
            await self._check_there(self._existing)
            return self._existing
        self._starting = asyncio.ensure_future(self._create(input_))
        return await asyncio.shield(self._starting)  # cancelled now, its answer still names the run to cancel

    async def _check_there(self, handle: Handle) -> None:
        while True:
            try:
                response = await self.http.get(handle.path)
            except httpx2.TransportError as error:
                await self._patience.spend(error)
                continue
            self._patience.reset()
            if response.status_code == 404:
                raise no_such_run(handle.run_id, self.remote.base)
            json_of(response)
            return

    @property
    def _begins_with_its_stream(self) -> bool:
        """Tells if the run begins with one request instead of two. An Interlingua server returns the same run when the
        request is repeated, so the handle need not be recorded before anything is read."""
        return self._existing is None and self.remote.ours and self.remote.mode is not None

    def asked(self) -> tuple[str, bytes, dict[str, str]]:
        self._posted = True
        headers = {
            **self._mounted.onward(), "idempotency-key": self.ctx.run_id,
            **_JSON, "accept": "text/event-stream",
        }  # fmt: skip
        return f"{self._runs}/stream", encode(self._body(self._given)), headers

    def begun(self, run: str) -> str:
        self._handle = Handle(run, self._thread)
        self._mounted.found_at_server(run)
        if not self._mounted.recorded(_START) and self._recording is None:
            self._recording = asyncio.get_running_loop().call_later(_RECORDED_WITHIN, self.heard)
        return self._handle.path

    def heard(self) -> None:
        """Records the handle together with the first update: for a short run that saves a commit."""
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None
            with contextlib.suppress(asyncio.CancelledError):  # the run is being left
                self._mounted.record(_START, self._handle)

    def _body(self, input_: dict[str, Any]) -> dict[str, Any]:
        ctx, remote = self.ctx, self.remote
        body: dict[str, Any] = {
            "agent_id": remote.id,
            "input": self._input(input_),
            "on_disconnect": "continue",
        }
        if ctx.metadata:
            body["metadata"] = ctx.metadata
        if ctx.config:
            body["config"] = {"configurable": ctx.config}
        if remote.mode is not None:
            body["stream_mode"] = remote.mode
        if self._thread is not None:
            body["if_not_exists"] = "create"
        return body

    @property
    def _thread(self) -> str | None:
        """Returns the remote thread of the local thread, where there are both."""
        here = self.ctx.thread_id
        return None if here is None or not self.remote.threads else str(uuid.uuid5(_THREADS, here))

    @property
    def _runs(self) -> str:
        return "/runs" if self._thread is None else f"/threads/{self._thread}/runs"

    async def _create(self, input_: dict[str, Any]) -> Handle:
        ctx, remote, thread = self.ctx, self.remote, self._thread
        trace, body = self._mounted.onward(), self._body(input_)
        if thread is not None and not remote.ours:
            with contextlib.suppress(Refused):  # where threads cannot be made ahead, the run makes it
                json_of(await self._post("/threads", {"thread_id": thread, "if_exists": "do_nothing"}, again=True))
        # With the key, an Interlingua server returns the run of an attempt whose answer was lost.
        made = json_of(await self._post(self._runs, body, again=remote.ours, key=ctx.run_id, trace=trace))
        run = made.get("run_id") or made.get("id") if isinstance(made, dict) else None
        if not isinstance(run, str) or not run:
            raise RemoteError(f"{remote.base} made no run: it answered without a run_id")
        self._handle = Handle(run, thread)
        return self._handle

    def _input(self, input_: dict[str, Any]) -> Any:
        """Returns the input that the agent describes. An Interlingua server also takes the full messages, as blocks."""
        remote = self.remote
        if remote.wraps_input:
            return input_.get("value")
        beside = self._mounted.beside(input_) if remote.ours else []
        if not beside:
            return input_
        said = self._mounted.said_as(remote.card, input_) or [DataPart(input_), *beside]
        return msgspec.to_builtins(said)

    async def _post(
        self, path: str, body: Any, *, again: bool, key: str | None = None, trace: Carrier | None = None
    ) -> httpx2.Response:
        """Posts a request. `again` means that posting it twice does no harm. A request that was never sent can always
        be repeated."""
        headers = {**(trace or {}), **({"idempotency-key": key} if key else {})}
        while True:
            try:
                response = await self.http.post(path, json=body, headers=headers)
            except httpx2.TransportError as error:
                if not again and not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise Unavailable(f"{self.remote.base} did not answer: {words_of(error)}") from error
                await self._patience.spend(error)
                continue
            self._patience.reset()
            return response

    # -- answering, looking, cancelling -------------------------------------------------------------------

    async def _resume(self, follower: Follower, asked: dict[str, Any], answer: Any, number: int) -> None:
        """Answers the remote question, unless it has been answered already: by this run before a crash, or by another
        client. Then this answer has no effect, and the log says so."""
        assert self._handle is not None
        key, step = _interrupt(number), f"resume-{number}"
        if await self._mounted.shown_again(step):
            return
        while True:
            before = self._mounted.passed_on(key)
            try:
                # A resume does not name its question: without a look, a late answer would go to the question that is
                # open by then.
                current = await follower.settled()
                if current is None or current.kind != "interrupt" or not same_interrupt(current.output, asked):
                    break
                await self._mounted.passing_on(key)
                body = encode(answer)  # encoded here, because a null given as JSON is left out
                response = await self.http.post(self._handle.path, content=body, headers=_JSON)
            except (httpx2.TransportError, Silent) as error:
                await self._patience.spend(error)
                continue
            if response.status_code != 409:
                json_of(response)
                return
            break  # the first answer wins, and another was first
        if not before:
            answered = (current is None or current.kind != "error") and seconds_left(asked) != 0
            await self._mounted.show(self._mounted.too_late(key, step=step, answered=answered))

    async def _state(self, thread: str) -> Any:
        """Returns the remote thread's state, for readers of the local thread."""
        try:
            return object_or_empty(json_of(await self.http.get(f"/threads/{thread}"))).get("values")
        except (httpx2.TransportError, Refused):
            return None

    async def _cancel(self) -> None:
        with contextlib.suppress(httpx2.HTTPError, InterlinguaError, TimeoutError):
            async with asyncio.timeout(_CANCEL_WITHIN):
                if self._handle is None and self._starting is not None:
                    await self._starting
                elif self._handle is None and self._posted:
                    await self._create(self._given)  # the answer names the run, by its key
                if self._handle is not None:
                    await _post_cancel(self.http, self._handle)


def _interrupt(number: int) -> str:
    return f"interrupt-{number}"


async def cancel_left(http: httpx2.AsyncClient, handle: Handle) -> None:
    """Cancels a remote run whose local run is not in memory, as long as there is time for it."""
    pause = 0.02
    while True:
        try:
            response = await _post_cancel(http, handle)
        except httpx2.TransportError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            continue
        if response.status_code not in (404, 409):  # it is gone, or has ended by itself
            json_of(response)
        return


async def _post_cancel(http: httpx2.AsyncClient, handle: Handle) -> httpx2.Response:
    return await http.post(f"{handle.path}/cancel")  # no options: workflow-srv answers 422 to them
