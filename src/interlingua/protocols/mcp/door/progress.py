"""Sends the progress of a run to a client that asked for it: the output as deltas, or for a tool the text so far and
what the agent does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ....engine.ports import weight
from ....model.delta import ABSENT, DeltaError, Joiner, diff
from ....model.events import Event, OutputDelta, RunFinished, RunRestarted, Warned
from ....model.status import Status
from ....transports.jsonrpc.core import Id
from .. import translate

if TYPE_CHECKING:
    from .connection import McpConnection

_MOST_JOINED = 256 * 1024  # bytes of deltas that are kept joined while a run goes on
_TEXT_EVERY = 0.05  # seconds between two notifications of a tool's text
_TEXT_RATE = 2_000_000  # characters per second of it: the whole text per token would be quadratic


class Progress:
    """The progress for a client that asked for none."""

    def feed(self, body: Any) -> None:
        """Sends what an event shows."""

    def feed_sent(self, body: Any) -> None:
        """Takes an event that another process has sent."""

    def stop(self) -> None:
        """Sends no more output: what was sent cannot be taken back, or is not known. The result counts."""

    async def finish(self, event: Event, finished: RunFinished) -> None:
        """Sends what is missing at the end of the run."""

    def close(self) -> None: ...


class _Sent(Progress):
    """The progress of one request."""

    def __init__(self, connection: McpConnection, request: Id, token: Any, version: str, count: int) -> None:
        """`count` notifications were sent by another process."""
        self._connection = connection
        self._request = request
        self._token = token
        self._count = count
        self._has_text = version >= "2025-03-26"  # progress has text in this revision
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def feed_sent(self, body: Any) -> None:
        if isinstance(body, RunRestarted):
            self.stop()
        elif isinstance(body, OutputDelta) and not self._stopped:
            self._take(body.delta)

    def _take(self, delta: Any) -> None:
        """Takes a delta, without sending it."""

    def _send(self, message: str) -> None:
        self._count += 1
        params: dict[str, Any] = {"progressToken": self._token, "progress": self._count}
        if self._has_text:
            params["message"] = message
        self._connection.rpc.notify("notifications/progress", params, about=self._request)


class DeltaProgress(_Sent):
    """The progress of `agents/run`: its output."""

    def __init__(self, connection: McpConnection, request: Id, token: Any, version: str, count: int) -> None:
        super().__init__(connection, request, token, version, count)
        self._joined: Joiner | None = None  # the deltas that were sent, where they are short
        self._joined_bytes = 0  # about; beyond _MOST_JOINED they are read from the log once the run has ended

    def feed(self, body: Any) -> None:
        if isinstance(body, OutputDelta) and not self._stopped:
            self._take(body.delta)
            if not self._stopped:
                self._send_delta(body.delta)
        elif isinstance(body, RunRestarted):
            self.stop()
        elif isinstance(body, Warned) and self._has_text:  # deltas have no place for it
            self._send(body.message)

    def _take(self, delta: Any) -> None:
        self._joined_bytes += weight(delta)
        if self._joined_bytes > _MOST_JOINED:
            self._joined = None
            return
        if self._joined is None:
            self._joined = Joiner()
        try:
            self._joined.add(delta)
        except DeltaError:
            self.stop()

    def _send_delta(self, delta: Any) -> None:
        params = {"progressToken": self._token, "delta": delta}
        self._connection.rpc.notify("notifications/agents/run/progress", params, about=self._request)

    async def finish(self, event: Event, finished: RunFinished) -> None:
        """Sends the difference between the deltas that were sent and the output, where a delta can express it."""
        if self._stopped or finished.status is not Status.SUCCEEDED:
            return
        sent: Any = ABSENT if self._joined is None else self._joined.value
        if self._joined_bytes > _MOST_JOINED:
            sent = await self._connection.engine.runs.kept_output(event)
            if sent is ABSENT:
                return  # the run was deleted meanwhile
        try:
            delta = diff(sent, finished.output)
        except DeltaError:
            return
        if delta is not ABSENT and delta:
            self._send_delta(delta)


class TextProgress(_Sent):
    """The progress of a tool: its text so far, and lines about what the agent does."""

    def __init__(
        self, connection: McpConnection, request: Id, token: Any, version: str, count: int, text_field: str | None
    ) -> None:
        super().__init__(connection, request, token, version, count)
        self._text_field = text_field
        self._text: list[str] = []
        self._length = 0
        self._next_at = 0.0  # when the next text may be sent
        self._timer: asyncio.Handle | None = None

    def feed(self, body: Any) -> None:
        if isinstance(body, OutputDelta) and not self._stopped:
            before = self._length
            self._take(body.delta)
            if self._length > before:
                self._send_soon()
        elif isinstance(body, RunRestarted):
            self.stop()
        elif (line := translate.activity(body)) is not None:
            self._send_text()  # the text before it
            self._send(line)

    def _take(self, delta: Any) -> None:
        text = delta.get(self._text_field) if self._text_field and isinstance(delta, dict) else None
        if isinstance(text, str):
            self._text.append(text)
            self._length += len(text)

    def _send_soon(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait = self._next_at - loop.time()
            self._timer = loop.call_later(wait, self._send_text) if wait > 0 else loop.call_soon(self._send_text)

    def _send_text(self) -> None:
        """Sends the text so far, if there is more than was sent."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._text = ["".join(self._text)]
        gap = max(_TEXT_EVERY, self._length / _TEXT_RATE)
        self._next_at = asyncio.get_running_loop().time() + gap
        self._send(self._text[0])

    async def finish(self, event: Event, finished: RunFinished) -> None:
        self._send_text()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def progress_of(
    connection: McpConnection, request: Id, meta: dict[str, Any], version: str, count: int, *, tool: bool,
    text_field: str | None,
) -> Progress:  # fmt: skip
    """Returns the progress that a request asks for in its `_meta`."""
    token = meta.get("progressToken")
    if type(token) not in (str, int):
        return Progress()
    if tool:
        return TextProgress(connection, request, token, version, count, text_field)
    return DeltaProgress(connection, request, token, version, count)
