"""A task at a remote's HTTP API, followed by its stream of events and reported as the frames that a connection would
carry.

The reference (2.19) ends a task's stream when any task ends, leaves it open for ever, or never reports the end: there
the task itself is read, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx2

from ..translate import task_states
from ..wire import frames
from ..wire.frames import UNREADABLE
from .dial import Backoff
from .http_frames import data_of, message_of, task_path

if TYPE_CHECKING:
    from ....model.trace_context import Carrier
    from ....transports.http.sse import Received
    from .http import HttpChannel

_LOOK = 2.0  # seconds of silence after which a task is looked at
_LOOK_OURS = 60.0  # ours tell everything


class Following:
    def __init__(self, channel: HttpChannel, id_: str, message_id: str | None, *, again: bool = False) -> None:
        """`again` means that the caller has followed the task before, over another channel."""
        self.id = id_
        self.state = "submitted"
        self._channel = channel
        self._message_id = message_id
        self._again = again
        self._asks: Any = None  # the name of the last reported question, while input is required
        self._place: str | None = None
        self._seq = 0
        self._chunks = 0
        self._last: dict[str, Any] | None = None  # the newest reported state
        self._said_at = 0.0
        self._new: tuple[dict[str, Any], Carrier | None, asyncio.Future[int]] | None = None
        self._whole = False  # the stream ends with the whole task

    async def run(self) -> None:
        """Follows the task until it has ended, over any number of connections."""
        loop, channel = asyncio.get_running_loop(), self._channel
        backoff, since = Backoff(0.1, 2.0), loop.time()
        try:
            while not channel.gone:
                why = "its stream ended"
                before = self._said_at
                try:
                    if await self._read() or await self._look():
                        return
                except (httpx2.HTTPError, OSError, ValueError) as error:
                    why = str(error) or type(error).__name__
                if self._said_at != before:
                    backoff, since = Backoff(0.1, 2.0), loop.time()
                await channel.pause(since, backoff, why)
        finally:
            channel.following.pop(self.id, None)

    async def run_new(self, body: dict[str, Any], trace: Carrier | None, opened: asyncio.Future[int]) -> None:
        """Does the same as `run` for a task that does not exist yet. `opened` is called with the status of the request:
        200 where the task exists now."""
        self._new = body, trace, opened
        following, goes_on = self._channel.following, False
        try:
            try:
                ended = await self._read()
            except (httpx2.HTTPError, OSError, ValueError):
                ended = False
            goes_on = not ended and opened.done() and opened.result() == 200
        finally:
            self._new = None
            if not opened.done():
                opened.set_result(0)
            if not goes_on and following.get(self.id) is self:
                del following[self.id]
        if goes_on:
            await self.run()

    def told_again(self) -> None:
        """Reports the task once more to a caller that delegates it again, because it does not know how the task
        stands."""
        if self._last is not None:
            self._channel.take({**self._last, "message_id": frames.new_id()})

    async def _read(self) -> bool:
        """Reads one connection, and the task itself where nothing comes for long. Returns True if the task ended."""
        reading = asyncio.ensure_future(self._read_stream())
        every = _LOOK_OURS if self._channel.ours else _LOOK
        try:
            while True:
                before = self._said_at
                await asyncio.wait({reading}, timeout=every)
                if reading.done():
                    return reading.result()
                if self._said_at == before and await self._look():
                    return True
        finally:
            if not reading.done():
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await reading

    async def _read_stream(self) -> bool:
        if self._new is not None:
            body, trace, opened = self._new
            async with self._channel.events("/tasks", None, body, trace) as (status, received):
                opened.set_result(status)
                self._whole = status == 200
                return status == 200 and await self._read_all(received)
        async with self._channel.events(f"{self._path}:subscribe", self._place) as (status, received):
            self._said()
            return status == 200 and await self._read_all(received)

    async def _read_all(self, received: AsyncIterator[Received]) -> bool:
        async for event in received:
            if await self._event(event):
                return True
        self._whole = False  # the next one is asked for in the usual way
        return False

    @property
    def _path(self) -> str:
        return task_path(self.id)

    def _said(self) -> None:
        self._said_at = asyncio.get_running_loop().time()

    async def _event(self, event: Received) -> bool:
        told, channel = data_of(event), self._channel
        if told.get("type") == UNREADABLE:
            self._said()
            return await self._look()  # it may have been the last
        seq = told.get("seq")
        if told.get("type") == "ready" and type(seq) is int and seq < self._seq:
            self._seq = seq  # a power cut has taken the last events, and the count goes on before them
        if told.get("task_id") != self.id or (type(seq) is int and seq <= self._seq):
            return False
        self._said()
        if type(seq) is int:
            self._seq = seq
            self._place = event.id or str(seq)
        match told.get("type"):
            case "status":
                if await self._status(told.get("state", told.get("status")), told):
                    return True
            case "task" if isinstance(told.get("task"), dict):
                return self._stands(told["task"])
            case "artifact" if isinstance(told.get("artifact"), dict):
                self._chunks += 1
                chunk = told["artifact"]
                self._channel.take(
                    frames.updated(channel.remote, self.id, self.state, chunk=chunk, chunk_number=self._chunks)
                )
            case "message" if told.get("direction") != "inbound" and isinstance(told.get("parts"), list):
                with contextlib.suppress(Exception):
                    if _is_activity(told["parts"]):
                        frame = frames.updated(channel.remote, self.id, self.state)
                        self._channel.take({**frame, "activity": told["parts"]})
                    elif not _is_question(told["parts"]):  # a question comes with the state
                        self._channel.take(message_of(channel.remote, told))
        await channel.room()
        return False

    async def _status(self, state: Any, told: dict[str, Any]) -> bool:
        if state not in task_states.STATES or state == "submitted" or (state, _asks(told)) == (self.state, self._asks):
            return False
        if state in task_states.TERMINAL:
            return False if self._whole else await self._look()
        if not self._again or await self._is_so(state, told):
            self._tell(state, told)
        return False

    async def _is_so(self, state: str, told: dict[str, Any]) -> bool:
        """Tells if the task really is in the reported state. The stream begins with old events, which would show a
        question that is still open as answered."""
        _, task = await self._channel.call("GET", self._path)
        return (task.get("status"), _asks(task)) == (state, _asks(told))

    async def _look(self) -> bool:
        """Reads the task itself. Returns True if it has ended; then its end is reported, with its whole result."""
        status, task = await self._channel.call("GET", self._path)
        if status == 404:
            error = {"code": "not_found", "message": "the remote no longer has the task", "transient": True}
            task = {"status": "failed", "error": error["message"], "error_info": error}
        elif task.get("error_code") == UNREADABLE:
            error = {"code": UNREADABLE, "message": str(task["error"]), "transient": False}
            task = {"status": "failed", "error": error["message"], "error_info": error}
        return self._stands(task)

    def _stands(self, task: dict[str, Any]) -> bool:
        """Reports the task as a whole. Returns True if it has ended."""
        state = task.get("status")
        if state in task_states.STATES and state not in (self.state, "submitted"):
            self._tell(state, task)
        if state not in task_states.TERMINAL:
            return False
        if self._message_id is not None:
            self._channel.take(frames.delivered(self._channel.remote, self._message_id))
        return True

    def _tell(self, state: str, told: dict[str, Any]) -> None:
        self.state, self._asks = state, _asks(told)
        frame = frames.updated(self._channel.remote, self.id, state)
        for name in ("error", "error_info", "question"):
            if told.get(name) is not None:
                frame[name] = told[name]
        if state == "completed":
            artifacts = [one for one in told.get("artifacts") or [] if isinstance(one, dict)]
            frame["artifact"] = told.get("artifact") or (artifacts[-1] if artifacts else None)
            if len(artifacts) > 1:
                frame["artifacts"] = artifacts
        self._said()
        self._last = frame
        self._channel.take(frame)


def _asks(told: dict[str, Any]) -> Any:
    question = told.get("question")
    return question.get("id") if isinstance(question, dict) else None


def _is_activity(given: list[Any]) -> bool:
    return any(isinstance(part, dict) and _holds(part, "activity") for part in given)


def _is_question(given: list[Any]) -> bool:
    return any(isinstance(part, dict) and _holds(part, "question") for part in given)


def _holds(part: dict[str, Any], member: str) -> bool:
    content = part.get("content")
    return part.get("type") == "data" and isinstance(content, dict) and member in content
