"""One run of a mounted agent: a local run and the remote run that does its work.

The remote run is started once and its handle recorded; when the run is resumed, the handler finds it again. Each
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
from ....model.content import DataPart
from ....model.errors import RunError, Unavailable
from ....model.events import MessageSent
from ....model.trace_context import Carrier
from ....mounts import caller_parts
from ....mounts.errors import RemoteError, no_such_run
from ....mounts.http import HttpAddress, Refused, words_of
from ....mounts.remote_questions import Asked, TooLate
from ....mounts.remote_run import ASKED, FAILED, RemoteRun, Stretch
from ....transports.json_text import encode
from .agent_card import Remote
from .answers import (
    Silent,
    disconnected,
    error_of,
    has_expired,
    json_of,
    messages_in,
    object_or_empty,
    question_of,
    same_interrupt,
)
from .follow import Follower

_THREADS = uuid.UUID("5f0b6c1e-4a0e-5b52-9a55-0d0c7b1f6f1d")  # names remote threads after local ones
_JSON = {"content-type": "application/json"}
_RECORDED_WITHIN = 0.02  # seconds after which the handle of a silent run is recorded alone


class Handle(msgspec.Struct):
    """The recorded address of the remote run."""

    run_id: str
    thread_id: str | None = None

    @property
    def path(self) -> str:
        return f"/threads/{self.thread_id}/runs/{self.run_id}" if self.thread_id else f"/runs/{self.run_id}"


class ConnectRun(RemoteRun):
    """A local run and the remote run that does its work."""

    has_cursors = True
    http: httpx2.AsyncClient
    _follower: Follower

    def __init__(
        self, address: HttpAddress, remote: Remote, ctx: Context[Any, Any], input_: dict[str, Any],
        existing: Handle | None,
    ) -> None:  # fmt: skip
        """`existing` is a remote run to go on with, instead of beginning one."""
        super().__init__(ctx, input_, address.base, patience=address.patience)
        self.remote = remote
        self._address = address
        self._existing = existing
        self._handle: Handle | None = None
        self._starting: asyncio.Task[Handle] | None = None
        self._recording: asyncio.TimerHandle | None = None
        self._posted = False  # the run may exist, though the server has not confirmed it

    async def enter(self) -> None:
        self.http = await self.resources.enter_async_context(self._address.open())

    @property
    def begins_with_its_stream(self) -> bool:
        """Tells if the run begins with one request instead of two. An Interlingua server returns the same run when the
        request is repeated, so the handle need not be recorded before anything is read."""
        return self._existing is None and self.remote.ours and self.remote.mode is not None

    async def open(self) -> Handle:
        if self._existing is not None:
            await self._check_there(self._existing)
            return self._existing
        self._starting = asyncio.ensure_future(self._create())
        return await asyncio.shield(self._starting)  # cancelled now, its answer still names the run to cancel

    def opened(self, handle: Handle | None, shown: list[Any]) -> None:
        self._handle = handle
        if handle is not None:
            self.mounted.found_at_server(handle.run_id)
        begins = self if handle is None else handle.path
        self._follower = Follower(self.remote, self.http, begins, self.output, self.patience)

    async def follow(self) -> Stretch:
        return await self._follower.follow()

    def go_on_from(self, stretch: Stretch) -> None:
        self._follower.cursor = stretch.cursor

    async def finish(self, data: dict[str, Any]) -> dict[str, Any]:
        for message in [] if self.remote.ours else messages_in(data):  # ours has told them by now
            await self.mounted.show(MessageSent(message))
        if self._handle is not None and self._handle.thread_id is not None:
            state = data.get("thread_values")
            if state is None:
                state = await self._state(self._handle.thread_id)  # as it is now, whenever that is
            if isinstance(state, dict):
                self.ctx.state = state
        output: dict[str, Any] = data["values"]
        return output

    def failure(self, data: dict[str, Any]) -> RunError:
        return error_of(data)

    async def leave(self) -> None:
        vars(self).pop("_follower", None)  # it may know this run as its beginning: no circle for the collector
        if self._recording is not None:
            self._recording.cancel()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)

    # -- starting -----------------------------------------------------------------------------------------

    async def _check_there(self, handle: Handle) -> None:
        while True:
            try:
                response = await self.http.get(handle.path)
            except httpx2.TransportError as error:
                await self.patience.spend(disconnected(error))
                continue
            self.patience.reset()
            if response.status_code == 404:
                raise no_such_run(handle.run_id, self.where)
            json_of(response)
            return

    def asked(self) -> tuple[str, bytes, dict[str, str]]:
        self._posted = True
        headers = {**self.trace, "idempotency-key": self.ctx.run_id, **_JSON, "accept": "text/event-stream"}
        return f"{self._runs}/stream", encode(self._body()), headers

    def begun(self, run: str) -> str:
        self._handle = Handle(run, self._thread)
        self.mounted.found_at_server(run)
        if not self.resumed and self._recording is None:
            self._recording = asyncio.get_running_loop().call_later(_RECORDED_WITHIN, self.heard)
        return self._handle.path

    def heard(self) -> None:
        """Records the handle together with the first update: for a short run that saves a commit."""
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None
            with contextlib.suppress(asyncio.CancelledError):  # the run is being left
                self.mounted.record(self.handle_key, self._handle)

    def _body(self) -> dict[str, Any]:
        ctx, remote = self.ctx, self.remote
        body: dict[str, Any] = {"agent_id": remote.id, "input": self._input(), "on_disconnect": "continue"}
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

    async def _create(self) -> Handle:
        ctx, remote, thread = self.ctx, self.remote, self._thread
        trace, body = self.trace, self._body()
        if thread is not None and not remote.ours:
            with contextlib.suppress(Refused):  # where threads cannot be made ahead, the run makes it
                json_of(await self._post("/threads", {"thread_id": thread, "if_exists": "do_nothing"}, again=True))
        # With the key, an Interlingua server returns the run of an attempt whose answer was lost.
        made = json_of(await self._post(self._runs, body, again=remote.ours, key=ctx.run_id, trace=trace))
        run = made.get("run_id") or made.get("id") if isinstance(made, dict) else None
        if not isinstance(run, str) or not run:
            raise RemoteError(f"{self.where} made no run: it answered without a run_id")
        self._handle = Handle(run, thread)
        return self._handle

    def _input(self) -> Any:
        """Returns the input that the agent describes. An Interlingua server also takes the full messages, as blocks."""
        remote = self.remote
        if remote.wraps_input:
            return self.input.get("value")
        beside = caller_parts.beside(self.ctx, self.input) if remote.ours else []
        if not beside:
            return self.input
        parts = caller_parts.instead_of(self.ctx, remote.card, self.input) or [DataPart(self.input), *beside]
        return msgspec.to_builtins(parts)

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
                    raise Unavailable(f"{self.where} did not answer: {words_of(error)}") from error
                await self.patience.spend(disconnected(error))
                continue
            self.patience.reset()
            return response

    # -- answering, looking, cancelling -------------------------------------------------------------------

    async def act(self, stretch: Stretch, number: int) -> None:
        interrupt: dict[str, Any] = stretch.data
        asked = question_of(interrupt, self.remote.card, f"interrupt-{number}")
        again = asked.key in self.mounted.asked()
        await self.put_question(
            asked, number, moved_on=functools.partial(self._follower.moved_on, interrupt, at_once=again),
            send=functools.partial(self._send_answer, asked, interrupt),
        )  # fmt: skip
        self._follower.answered(interrupt)

    async def _send_answer(self, asked: Asked, interrupt: dict[str, Any], answer: Any) -> None:
        """Answers the remote question, unless it has been answered already: by this run before a crash, or by another
        client."""
        try:
            # A resume does not name its question: without a look, a late answer would go to the question that is open
            # by then.
            current = await self._follower.settled()
            if current is not None and current.kind == ASKED and same_interrupt(current.data, interrupt):
                await self.questions.passing_on(asked.place)
                body = encode(answer)  # encoded here, because a null given as JSON is left out
                response = await self.http.post(self._handle_path, content=body, headers=_JSON)
                if response.status_code != 409:
                    json_of(response)
                    return
        except (httpx2.TransportError, Silent) as error:
            raise disconnected(error) from error
        raise TooLate(answered=(current is None or current.kind != FAILED) and not has_expired(interrupt))

    @property
    def _handle_path(self) -> str:
        assert self._handle is not None
        return self._handle.path

    async def _state(self, thread: str) -> Any:
        """Returns the remote thread's state, for readers of the local thread."""
        try:
            return object_or_empty(json_of(await self.http.get(f"/threads/{thread}"))).get("values")
        except (httpx2.TransportError, Refused):
            return None

    async def cancel(self) -> None:
        if self._handle is None and self._starting is not None:
            await self._starting
        elif self._handle is None and self._posted:
            await self._create()  # the answer names the run, by its key
        if self._handle is not None:
            try:
                await _post_cancel(self.http, self._handle)
            except httpx2.HTTPError as error:
                raise disconnected(error) from error


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
